"""The theorem's terms, estimated environment by environment beside the true query error (Office-31 D→A and A→W)."""

from dataclasses import replace

from perdure import generative_replay
from perdure.experiments.ledger import Place
from perdure.experiments.methods import Setting, continual
from perdure.report.clouds import draw_bound
from perdure.report.studies import Case, Figure, bound_grids

NAME = "bound"
SETTING = Setting(features=1024, gamma=4.0, warm_up=500, steps=1000, joint_steps=5000)
SEEDS = (0,)
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300)
PAIRS = (("D", "A"), ("A", "W"))


def figure(pairs: tuple[tuple[str, str], ...], setting: Setting, seeds: tuple[int, ...]) -> Figure:
    """The figure for some pairs at a budget."""
    return Figure(
        NAME,
        "Office-31: the theorem's terms beside the error they bound",
        "bound",
        continual(generative_replay()),
        setting,
        [Case("→".join(pair), Place("office31.tasks", pair)) for pair in pairs],
        seeds,
        bound_grids,
        draw_bound,
        notes=(
            "frozen ResNet-50 features; the paper states the theorem and prints no estimate of it",
            "environment given, transductive; all errors are those of the one solver over every class seen so far",
            (
                "the right side is the sum of support error, discrepancy, KL of replay (of all environments but the newest) and "
                "C*; the true query error is the left side"
            ),
            (
                "vacuous: the right side is 100 or more for an environment on average, which says nothing, since no solver can "
                "be worse; broken: it is below the left side, so that some term is estimated too low"
            ),
            (
                "what a user without query labels can see: the support error and the discrepancy while an environment's data "
                "are at hand, its KL at the end of its lesson, the error on generated features at any time; of past "
                "environments, whose support is gone, only the numbers kept. What needs query labels: C* (oracle) and the "
                "query error, hence also the right side as a whole; they are measured after learning and choose nothing"
            ),
            (
                "discrepancy: eq. 2 at f and an f' trained afresh, no more than the supremum; C*: of a solver trained on both "
                "streams with labels, no less than the minimum. On these rows: f' and that solver are measured on the rows they "
                "were fitted to, for which the theorem holds as for any distribution; held out: on the other half. f, the "
                "features and the support error come from a learner that saw all rows either way"
            ),
            (
                "KL: between what f says of generated and of real support features of a class. The supplement takes it for the "
                "error on generated features less the support error, which stand beside it"
            ),
        ),
    )


FULL = figure(PAIRS, SETTING, SEEDS)
QUICK = figure(PAIRS[:1], QUICK_SETTING, SEEDS[:1])
