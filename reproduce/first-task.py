"""The supplement's figure: accuracy on the first task while learning the others, all six pairs of Office-31."""

from dataclasses import replace

from perdure import generative_replay, optimal_baseline
from perdure.experiments.ledger import Place
from perdure.experiments.methods import UNTRAINED, Setting, continual
from perdure.report.figures import first_task_curves
from perdure.report.tables import Column, Row, Table
from perdure.scenarios import office31

NAME = "first-task"
SETTING = Setting(features=1024, gamma=4.0, warm_up=500, steps=1000, joint_steps=5000)
SEEDS = (0, 1, 2)
PAPERS_RATE = 4e-4
QUICK_PAIRS = (("D", "A"), ("A", "W"))
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300, joint_steps=1500)


def table(pairs: tuple[tuple[str, str], ...], setting: Setting, seeds: tuple[int, ...]) -> Table:
    """The figure for some of the pairs; its runs are those of `office31-tasks`."""
    at_papers_rate = replace(optimal_baseline(), solver_rate=PAPERS_RATE)
    return Table(
        NAME,
        "Office-31, tasks drift: accuracy on the first task",
        [Column(f"{s}→{q}", Place("office31.tasks", (s, q)), setting, "first task") for s, q in pairs],
        [
            Row("ours", continual(generative_replay()), seeds, seeds[:1]),
            Row("optimal baseline", continual(optimal_baseline()), seeds),
            Row("optimal baseline, solver rate 4e-4", continual(at_papers_rate), seeds),
            *(Row(name, method, inductive_seeds=(0,), tier=3) for name, method in UNTRAINED.items()),
        ],
        first_task_curves,
        means={"mean": range(len(pairs))},
        notes=(
            "frozen ResNet-50 features (the paper: ResNet-34); the paper prints curves without numbers",
            "analytic learner: closed form, sums only, the same defaults everywhere; environment given: among its classes only",
            "source-only, nearest class mean and LDA keep all support and adapt to nothing",
            "environment given: these three choose among its classes only, the others among all classes seen so far",
        ),
    )


FULL = table(office31.PAIRS, SETTING, SEEDS)
QUICK = table(QUICK_PAIRS, QUICK_SETTING, SEEDS[:1])
