"""The paper's figure: average accuracy over all learned domains while learning, every support in both orders."""

from dataclasses import replace

from perdure import generative_replay, optimal_baseline
from perdure.experiments.ledger import Place
from perdure.experiments.methods import UNTRAINED, Setting, continual
from perdure.report.figures import average_curves
from perdure.report.tables import Column, Row, Table
from perdure.scenarios import office_home

NAME = "domain-curves"
SETTING = Setting(features=2048, gamma=2.0, warm_up=500, steps=1000, joint_steps=5000, hypothesis_rate=4e-3, inference_rate=5e-4)
"""As in `office-home-domains`."""
SEEDS = (0,)
PAPER_SETTING = replace(SETTING, steps=5000, inference_rate=1e-4)
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300)
ORDERS = {"ascending": office_home.ASCENDING, "descending": office_home.DESCENDING}
AFRESH = replace(generative_replay(), fresh_solver=True)
NO_REPLAY = replace(optimal_baseline(), fresh_solver=True)


def table(supports: tuple[str, ...], setting: Setting) -> Table:
    """The figure for some of the supports; its runs are those of `office-home-domains`."""
    return Table(
        NAME,
        "Office-Home, domains drift (frozen): average over the domains learned so far",
        [
            Column(f"{s}→{','.join(order[s])}", Place("office_home.domains", (s, order[s])), setting)
            for order in ORDERS.values()
            for s in supports
        ],
        [
            Row("ours", continual(AFRESH), SEEDS, SEEDS[:1]),
            Row("without encoder snapshot", continual(replace(AFRESH, snapshot="decoder")), SEEDS),
            Row("without replay", continual(NO_REPLAY), SEEDS),
            *(Row(name, method, inductive_seeds=(0,), tier=3) for name, method in UNTRAINED.items()),
        ],
        average_curves,
        means={order: range(number * len(supports), (number + 1) * len(supports)) for number, order in enumerate(ORDERS)},
        notes=(
            "frozen ResNet-50 features; the paper fine-tunes the ResNet-50 and prints curves without numbers",
            "analytic learner: closed form, sums only, the same defaults everywhere; environment given: among its classes only",
            "source-only, nearest class mean and LDA keep all support and adapt to nothing",
        ),
    )


FULL = table(tuple(office_home.DOMAINS), SETTING)
PAPER = table(tuple(office_home.DOMAINS), PAPER_SETTING)
QUICK = table(("Ar",), QUICK_SETTING)
