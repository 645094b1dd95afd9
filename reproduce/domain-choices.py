"""Where the query's domain drifts: readings of the paper and what each is worth, at the paper's rates."""

from dataclasses import replace

from perdure import generative_replay, optimal_baseline
from perdure.experiments.ledger import Place
from perdure.experiments.methods import UNTRAINED, Setting, continual, upper_bound
from perdure.report.figures import average_curves
from perdure.report.tables import Column, Row, Table
from perdure.scenarios import office_home

NAME = "domain-choices"
SETTING = Setting(features=2048, gamma=2.0, warm_up=500, steps=1000, joint_steps=5000, hypothesis_rate=4e-3)
SEEDS = (0,)
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300)
ORDERS = {"ascending": office_home.ASCENDING, "descending": office_home.DESCENDING}
AFRESH = replace(generative_replay(), fresh_solver=True)
"""The solver starts from scratch for each domain, so that only replay can keep what was learned."""
PRIOR = replace(AFRESH, replay_around="prior")
NO_REPLAY = replace(optimal_baseline(), fresh_solver=True)
READINGS = {
    "without replay": NO_REPLAY,
    "without replay, continued": replace(NO_REPLAY, fresh_inference=False),
    "ours": AFRESH,
    "ours, replay around the priors": PRIOR,
    "… continued": replace(PRIOR, fresh_inference=False),
    "… without encoder snapshot": replace(PRIOR, snapshot="decoder"),
    "… without encoder snapshot, continued": replace(PRIOR, snapshot="decoder", fresh_inference=False),
}


def table(supports: tuple[str, ...], setting: Setting) -> Table:
    """The table for some of the supports."""
    columns = [
        Column(f"{s}→{','.join(order[s])}", Place("office_home.domains", (s, order[s])), setting)
        for order in ORDERS.values()
        for s in supports
    ]
    return Table(
        NAME,
        "Office-Home, domains drift (frozen): readings of the paper, at its rate of 1e-4 for the inference module",
        columns,
        [
            Row("upper bound (domain split)", upper_bound(AFRESH), SEEDS),
            *(Row(name, continual(config), SEEDS) for name, config in READINGS.items()),
            *(Row(name, method, inductive_seeds=(0,), tier=3) for name, method in UNTRAINED.items()),
        ],
        average_curves,
        means={order: range(number * len(supports), (number + 1) * len(supports)) for number, order in enumerate(ORDERS)},
        notes=(
            "frozen ResNet-50 features; `office-home-domains` has the same with five times this rate, for a fifth of the steps",
            "the solver starts from scratch for each domain; f, f' at the paper's rate 4e-3, the solver at ours of 1e-2",
            "replay around the priors: classes are drawn around their priors' means, not around where their support rows lie",
            "…: replay around the priors, too. Continued: the inference module goes on from the previous domain's weights",
            "analytic learner: closed form, sums only, the same defaults everywhere; environment given: among its classes only",
            "source-only, nearest class mean and LDA keep all support and adapt to nothing",
        ),
    )


FULL = table(tuple(office_home.DOMAINS), SETTING)
QUICK = table(("Ar",), QUICK_SETTING)
