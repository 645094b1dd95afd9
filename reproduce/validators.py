"""Label-free validators of the analytic learner: how each ranks configurations, beside their true accuracy."""

from dataclasses import replace

from perdure import AnalyticConfig
from perdure.experiments.ledger import Place
from perdure.report.selection import Selection
from perdure.report.studies import Case

NAME = "validators"
BASE = AnalyticConfig(power=1.0, prior=2.0, rounds=2, neighbours=10, spread=0.9, support_weight=0.2, unknown_temperature=0.4)
"""Where the search begins."""
TRIED = {
    "power": (0.5, 0.7, 0.85),
    "prior": (0.25, 0.5, 1.0, 4.0, 8.0),
    "rounds": (0, 1, 4),
    "neighbours": (5, 20),
    "spread": (0.0, 0.8),
    "support_weight": (0.0, 0.5, 1.0),
}
CONFIGURATIONS = {"the beginning": BASE} | {
    f"{name.replace('_', ' ')} {value:g}": replace(BASE, **{name: value}) for name, values in TRIED.items() for value in values
}
"""Each differs from the first in what its name says."""
CONFIGURATIONS["the defaults"] = replace(AnalyticConfig(), unknown_temperature=BASE.unknown_temperature)
"""Of each setting what all validators together rank first over all pairs, or, of those that are no more than one standard error
behind it, what is nearest to the beginning."""
CASES = {
    "Office-31": [Case(f"{s}→{q}", Place("office31.tasks", (s, q))) for s, q in (("A", "W"), ("D", "W"), ("D", "A"), ("W", "A"))],
    "Office-Home": [
        Case(f"{s}→{q}", Place("office_home.tasks", (s, q))) for s, q in (("Ar", "Cl"), ("Cl", "Pr"), ("Pr", "Ar"), ("Rw", "Cl"))
    ],
}


def selection(configurations: dict[str, AnalyticConfig], cases: dict[str, list[Case]]) -> Selection:
    """Some of the configurations in some of the cases."""
    return Selection(
        NAME,
        "Label-free validators of the analytic learner",
        configurations,
        cases,
        notes=(
            "frozen ResNet-50 features; half of every query set and one support row in five are kept aside",
            "validators see the answers on the queries kept aside, environment unknown, and never their labels",
            "source accuracy and DEV are of the support rows kept aside; A-distance and MMD of support and query moved onto it",
            "each configuration differs from the beginning as its name says; calibrated as that is, no domain named",
        ),
    )


FULL = selection(CONFIGURATIONS, CASES)
QUICK = selection(dict(list(CONFIGURATIONS.items())[::4]), {"Office-31": CASES["Office-31"][2:]})
