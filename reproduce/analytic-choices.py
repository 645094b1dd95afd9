"""The analytic learner: what each of its steps is worth, on two pairs of Office-31 and two of Office-Home."""

from dataclasses import replace

from perdure import AnalyticConfig
from perdure.experiments.ledger import Place
from perdure.experiments.methods import LOWER_BOUNDS, Method, Setting
from perdure.report.figures import average_curves
from perdure.report.tables import Column, Row, Table

NAME = "analytic-choices"
NOTHING_TRAINED = Setting(features=1024, gamma=4.0, warm_up=0, steps=0, joint_steps=0)
PAIRS = (
    ("office31.tasks", "D", "A"),
    ("office31.tasks", "A", "W"),
    ("office_home.tasks", "Ar", "Cl"),
    ("office_home.tasks", "Rw", "Pr"),
)
OURS = AnalyticConfig()
STEPS = {
    "analytic learner": OURS,
    "no neighbours": replace(OURS, spread=0.0),
    "fitted once": replace(OURS, rounds=0),
    "fitted four times more": replace(OURS, rounds=4),
    "guard never refuses": replace(OURS, guard=1.0),
    "features to the power 0.5": replace(OURS, power=0.5),
    "support counts as the query does": replace(OURS, support_weight=1.0),
    "support counts nothing": replace(OURS, support_weight=0.0),
    "a prior of two rows a feature": replace(OURS, prior=2.0),
    "a prior of eight rows a feature": replace(OURS, prior=8.0),
}
"""Each differs from the first in what its name says."""


def table(pairs: tuple[tuple[str, str, str], ...]) -> Table:
    """The table for some of the pairs."""
    methods = {name: Method("analytic", analytic=config) for name, config in STEPS.items()} | LOWER_BOUNDS
    return Table(
        NAME,
        "Steps of the analytic learner",
        [Column(f"{s}→{q}", Place(source, (s, q)), NOTHING_TRAINED) for source, s, q in pairs],
        [Row(name, method, inductive_seeds=(0,)) for name, method in methods.items()],
        average_curves,
        means={"mean": range(len(pairs))},
        notes=(
            "frozen ResNet-50 features; nothing is trained, and nothing is random but which half of a query is kept aside",
            "each row differs from the first in what its name says",
            "source-only, nearest class mean and LDA keep all support and adapt to nothing",
            "environment given: all choose among its classes only",
        ),
    )


FULL = table(PAIRS)
QUICK = table(PAIRS[:2])
