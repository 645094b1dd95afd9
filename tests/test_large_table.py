"""Of a table that comes in pieces no more than a piece is in memory, however long it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is asked of /proc/self/status")


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    file = Path(__file__).resolve().parents[1] / "benchmarks" / "large_table.py"
    spec = importlib.util.spec_from_file_location("large_table", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def test_a_longer_support_takes_less_memory_than_its_rows(benchmark: ModuleType) -> None:
    short, long = (benchmark.measure(rows, 64, query=1000) for rows in (100_000, 500_000))
    assert long.table - short.table > 97  # MiB more of rows
    assert long.peak - short.peak < 60
    assert min(short.right, long.right) > 0.95


@pytest.mark.slow
def test_two_million_rows_are_learned_within_one_gigabyte(benchmark: ModuleType) -> None:
    cost = benchmark.measure(2_000_000, 64, query=100_000)
    assert cost.table > 488
    assert cost.peak * 2**20 < 1e9  # 745 MiB, of which 262 are there before anything is read
    assert cost.right > 0.95
