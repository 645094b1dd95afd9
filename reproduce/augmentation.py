"""Replay as augmentation: do features of one query domain help with the next? The pairs that the paper names."""

from dataclasses import replace

from perdure import generative_replay
from perdure.experiments.ledger import Place
from perdure.experiments.methods import Setting, continual
from perdure.report.clouds import draw_augmentation
from perdure.report.studies import Case, Figure, augmentation_grids

NAME = "augmentation"
SETTING = Setting(features=2048, gamma=2.0, warm_up=500, steps=1000, joint_steps=5000, hypothesis_rate=4e-3, inference_rate=5e-4)
"""That of `office-home-domains`."""
SEEDS = (0, 1, 2)
QUICK_SETTING = replace(SETTING, warm_up=150, steps=300)
SEQUENCES = (("Ar", ("Rw", "Pr", "Cl")), ("Cl", ("Rw", "Pr", "Ar")), ("Ar", ("Cl", "Pr", "Rw")), ("Pr", ("Cl", "Ar", "Rw")))
"""Support, then the query domain that is replayed, then those that are learned right after it, each from the same start."""
QUOTED = {
    ("Ar→Rw", "Ar→Pr"): "about +3",
    ("Ar→Rw", "Ar→Cl"): "not significant",
    ("Cl→Rw", "Cl→Pr"): "+1.35",
    ("Cl→Rw", "Cl→Ar"): "improves",
    ("Ar→Cl", "Ar→Pr"): "+3.45",
    ("Ar→Cl", "Ar→Rw"): "improves",
    ("Pr→Cl", "Pr→Ar"): "+1.89",
    ("Pr→Cl", "Pr→Rw"): "not significant",
}
"""Replayed, learned: what the paper says of it."""


def figure(sequences: tuple[tuple[str, tuple[str, ...]], ...], setting: Setting, seeds: tuple[int, ...]) -> Figure:
    """The figure for some of the sequences."""
    return Figure(
        NAME,
        "Office-Home: replay of an earlier query domain as augmentation",
        "augmentation",
        continual(generative_replay()),
        setting,
        [
            Case(f"{s}→{q[0]}, then {' or '.join(f'{s}→{later}' for later in q[1:])}", Place("office_home.domains", (s, q)))
            for s, q in sequences
        ],
        seeds,
        augmentation_grids(QUOTED),
        draw_augmentation,
        notes=(
            "frozen ResNet-50 features; the paper fine-tunes the ResNet-50 in this scenario and makes 5,000 steps",
            (
                "with and without replay start from the same weights and see the same batches; the solver is a new one for each "
                "domain, so they differ by the replayed features alone"
            ),
            "with 250 + 750 steps at the paper's rate for the inference module, 1e-4, replay cost 2 to 7 points on every pair",
            "gained: the mean over seeds of the difference, ± its standard deviation (n − 1)",
        ),
    )


FULL = figure(SEQUENCES, SETTING, SEEDS)
QUICK = figure(SEQUENCES[:1], QUICK_SETTING, SEEDS[:1])
