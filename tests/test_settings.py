"""What is written of a configuration, by whoever keeps it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import pytest

from perdure import AnalyticConfig, AnalyticLearner, VariationalConfig, VariationalLearner
from perdure.settings import LATER, settings_from_json, settings_to_json


@dataclass(frozen=True, kw_only=True)
class LaterAnalytic(AnalyticConfig):
    colour: str = field(default="red", metadata=LATER)


@dataclass(frozen=True, kw_only=True)
class LaterVariational(VariationalConfig):
    colour: str = field(default="red", metadata=LATER)


def test_the_fields_that_may_be_left_out_and_their_defaults_are_these() -> None:
    """What is stored without them was made with these: none may move, and a new one must be as if it were not there."""
    left_out = {
        (kind.__name__, each.name): each.default
        for kind in (AnalyticConfig, VariationalConfig)
        for each in fields(kind)
        if each.metadata == LATER
    }
    assert left_out == {
        ("VariationalConfig", "backbone"): None,
        ("VariationalConfig", "finetune"): "all",
        ("VariationalConfig", "precision"): "auto",
    }


@pytest.mark.parametrize("kind", [LaterAnalytic, LaterVariational])
def test_only_a_later_field_at_its_default_is_left_out(kind: type[LaterAnalytic | LaterVariational]) -> None:
    named = set(asdict(kind())) - {"backbone", "finetune", "precision"}
    assert set(settings_to_json(kind())) == named - {"colour"}
    assert set(settings_to_json(kind(colour="blue"))) == named
    for config in (kind(), kind(colour="blue")):
        assert settings_from_json(kind, settings_to_json(config), "here") == config


def test_both_learners_write_their_settings_in_this_way(tmp_path: Path) -> None:
    for learner in (AnalyticLearner(LaterAnalytic()), VariationalLearner(LaterVariational())):
        learner.save(tmp_path / type(learner).__name__)
        saved = json.loads((tmp_path / type(learner).__name__ / "state.json").read_text(encoding="utf-8"))
        assert saved["config"] == settings_to_json(learner.config)
