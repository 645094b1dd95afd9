"""The paper's learner on real features at the paper's budget. Slow: about two minutes a learner on one core."""

from pathlib import Path

import pytest

import perdure
from perdure.experiments.methods import continual, measure
from perdure.experiments.runner import Protocol
from perdure.scenarios import office31

PAPERS = Protocol("given", "transductive")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def real(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DATA", str(data))


def test_dslr_to_amazon_is_learned_kept_and_solved_as_well_as_by_each_snapshot() -> None:
    ours = measure(continual(perdure.VariationalConfig()), office31.tasks("D", "A"))
    no_replay = measure(continual(perdure.optimal_baseline()), office31.tasks("D", "A"))
    matrix = ours.run.accuracy[PAPERS]
    assert matrix.average >= 0.74
    assert matrix.values[-1, 0] >= matrix.values[0, 0] - 0.03
    assert matrix.average >= sum(ours.own.values()) / len(ours.own) - 0.03
    assert matrix.average >= no_replay.run.accuracy[PAPERS].average + 0.04


def test_amazon_to_webcam_reaches_ninety_per_cent() -> None:
    measured = measure(continual(perdure.VariationalConfig()), office31.tasks("A", "W"))
    assert measured.run.accuracy[PAPERS].average >= 0.90
