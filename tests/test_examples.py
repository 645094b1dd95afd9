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
    "sites_over_time.py": (
        r"Asti joined: Asti (9\d)%\n"
        r"Bari joined: Asti \1%, Bari (9\d)%\n"  # who was there before is answered as before
        r"Como joined: Asti \1%, Bari \2%, Como (9\d)%\n"
        r"Bari forgotten: Asti \1%, Como \3%\n"
        r"as if it had never joined: True\n"
    ),
    "sklearn_pipeline.py": r"power 0\.5: (8[0-4]\.\d)% right before, (8[6-9]\.\d|9\d\.\d)% adapted\n",
    "table.py": (
        r"unadapted: (9[0-3]\.\d)% right\nadapted: (9[6-9]\.\d)% right\n"
        r"first answers: (Barbera|Barolo|Grignolino)(, (Barbera|Barolo|Grignolino)){2}\n"
    ),
}
"""Each example, and what it prints."""


def test_it_is_said_of_every_example_what_it_prints() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_has_less_than_forty_lines(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.parametrize("name", sorted(PRINTS))
def test_an_example_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    run = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert re.fullmatch(PRINTS[name], run.stdout), run.stdout
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
