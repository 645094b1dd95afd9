"""The paper's figure: t-SNE of the features of all tasks so far, after each of them (Office-31 D→A)."""

from dataclasses import replace

from perdure import generative_replay
from perdure.experiments.ledger import Place
from perdure.experiments.methods import Setting, continual
from perdure.report.clouds import draw_alignment
from perdure.report.studies import Case, Figure, alignment_grids

NAME = "alignment"
SETTING = Setting(features=1024, gamma=4.0, warm_up=500, steps=1000, joint_steps=5000)
SEEDS = (0, 1, 2)
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300)
PAIR = ("D", "A")


def figure(setting: Setting, seeds: tuple[int, ...]) -> Figure:
    """The figure at a budget."""
    return Figure(
        NAME,
        "Office-31 D→A: features aligned task by task",
        "alignment",
        continual(generative_replay()),
        setting,
        [Case("→".join(PAIR), Place("office31.tasks", PAIR))],
        seeds,
        alignment_grids,
        draw_alignment,
        notes=(
            "frozen ResNet-50 features (the paper: ResNet-34); the paper prints pictures without numbers",
            "environment given, transductive: each row passes through the snapshot of its own environment",
            (
                "neighbour accuracy: queries that have the class of their nearest support row, among all classes so far; the "
                "query's labels score and colour, they choose nothing"
            ),
            (
                "same stream: rows whose nearest neighbour is of their own stream, of each class equally many of both; 100 is "
                "apart, about 50 is one cloud"
            ),
            "the solver's accuracy is on the queries, the mean of the environments so far",
        ),
    )


FULL = figure(SETTING, SEEDS)
QUICK = figure(QUICK_SETTING, SEEDS[:1])
