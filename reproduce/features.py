"""The paper's figure: both streams before and after the inference module, and a solver on generated or on real features."""

from dataclasses import replace

from perdure import generative_replay
from perdure.experiments.ledger import Place
from perdure.experiments.methods import Setting, continual
from perdure.report.clouds import draw_features
from perdure.report.studies import Case, Figure, feature_grids

NAME = "features"
SETTING = Setting(features=1024, gamma=4.0, warm_up=500, steps=1000, joint_steps=5000)
SEEDS = (0, 1, 2)
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300)
PAIR = ("D", "A")


def figure(setting: Setting, seeds: tuple[int, ...]) -> Figure:
    """The figure at a budget."""
    return Figure(
        NAME,
        "Office-31 D→A: are the features agnostic of the domain, and can generated ones stand in for real ones?",
        "features",
        continual(generative_replay()),
        setting,
        [Case("→".join(PAIR), Place("office31.tasks", PAIR))],
        seeds,
        feature_grids,
        draw_features,
        notes=(
            "frozen ResNet-50 features; the paper prints pictures without numbers and does not say of which pair",
            "environment given, transductive: each row passes through the snapshot of its own environment",
            (
                "neighbour accuracy: queries that have the class of their nearest support row, among the environment's; the "
                "query's labels score and colour, they choose nothing"
            ),
            (
                "same stream: rows whose nearest neighbour is of their own stream, of each class equally many of both; 100 is "
                "apart, about 50 is one cloud"
            ),
            "the new solvers get equally many steps at the same rate and see no query",
        ),
    )


FULL = figure(SETTING, SEEDS)
QUICK = figure(QUICK_SETTING, SEEDS[:1])
