"""The paper's table of components as curves: every row of it on D→A (Office-31) and Ar→Cl (Office-Home)."""

from dataclasses import replace

from perdure import (
    baseline_2,
    baseline_3,
    generative_replay,
    memory_replay,
    naive_baseline,
    noise_replay,
    optimal_baseline,
)
from perdure.experiments.ledger import Place
from perdure.experiments.methods import UNTRAINED, Setting, continual
from perdure.report.figures import component_curves
from perdure.report.tables import Column, Row, Table

NAME = "ablation"
OFFICE31 = Setting(features=1024, gamma=4.0, warm_up=500, steps=1000, joint_steps=5000)
OFFICE_HOME = Setting(features=2048, gamma=2.0, warm_up=500, steps=1000, joint_steps=5000)
SEEDS = (0, 1, 2)
"""On D→A; Ar→Cl has the first only."""
PAPERS_RATE = 4e-4
PRIOR = replace(generative_replay(), replay_around="prior")


def table(office31: Setting, office_home: Setting | None, seeds: tuple[int, ...]) -> Table:
    """The table at a budget, with the second data set or without."""
    d_a, ar_cl = Place("office31.tasks", ("D", "A")), Place("office_home.tasks", ("Ar", "Cl"))
    columns = [Column("D→A first task", d_a, office31, "first task"), Column("D→A average", d_a, office31)]
    if office_home is not None:
        columns += [
            Column("Ar→Cl first task", ar_cl, office_home, "first task", seeds=1),
            Column("Ar→Cl average", ar_cl, office_home, seeds=1),
        ]
    at_papers_rate = replace(optimal_baseline(), solver_rate=PAPERS_RATE)
    return Table(
        NAME,
        "Components of the method, on one pair of each data set",
        columns,
        [
            Row("ours", continual(generative_replay()), seeds, seeds[:1]),
            Row("memory replay", continual(memory_replay()), seeds),
            Row("noise replay", continual(noise_replay()), seeds),
            Row("baseline 1 (optimal)", continual(optimal_baseline()), seeds),
            Row("baseline 1, solver rate 4e-4", continual(at_papers_rate), seeds),
            Row("baseline 2 (no warm-up)", continual(baseline_2()), seeds),
            Row("baseline 3 (no task confusion)", continual(baseline_3()), seeds),
            Row("baseline 4 (naive)", continual(naive_baseline()), seeds),
            Row("ours, replay around the priors", continual(PRIOR), seeds),
            Row("… without warm-up", continual(replace(PRIOR, warm_up=0)), seeds),
            Row("… without task confusion", continual(replace(PRIOR, task_confusion=False)), seeds),
            *(Row(name, method, inductive_seeds=(0,), tier=3) for name, method in UNTRAINED.items()),
        ],
        component_curves,
        notes=(
            "frozen ResNet-50 features (the paper: ResNet-34 on Office-31); the paper prints curves without numbers",
            "without warm-up all updates are end to end, as many as with it",
            "replay around the priors: classes are drawn around their priors' means (…: so, too), not where support rows lie",
            "memory replay stores features of up to 1,024 support rows of each task",
            "analytic learner: closed form, sums only, the same defaults everywhere; environment given: among its classes only",
            "source-only, nearest class mean and LDA keep all support and adapt to nothing",
            "environment given: these three choose among its classes only, the others among all classes seen so far",
        ),
    )


FULL = table(OFFICE31, OFFICE_HOME, SEEDS)
PAPER = table(OFFICE31, replace(OFFICE_HOME, steps=5000), SEEDS)
QUICK = table(replace(OFFICE31, warm_up=100, steps=200), None, SEEDS[:1])
