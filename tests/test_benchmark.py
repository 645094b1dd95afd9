"""The benchmark compares a step with its own matrix products: all of them, and nothing else."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from torch.utils.flop_counter import FlopCounterMode

from perdure import VariationalConfig, VariationalLearner


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "step_benchmark", Path(__file__).resolve().parents[1] / "benchmarks" / "step.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_products_beside_a_step_are_the_steps_own(benchmark: ModuleType) -> None:
    config = VariationalConfig(replay="none", warm_up=0, steps=1)
    products = benchmark.matrix_products(config)
    with FlopCounterMode(display=False) as alone:
        products()
    learner = VariationalLearner(config)
    step = learner.step

    def counted(*batch: object) -> object:
        with FlopCounterMode(display=False) as within:
            losses = step(*batch)
        flops.append(within.get_total_flops())
        return losses

    flops: list[int] = []
    learner.step = counted
    learner.learn(benchmark.environment(0), progress=False)
    assert flops == [alone.get_total_flops()]


def test_the_benchmark_measures_what_it_prints(benchmark: ModuleType) -> None:
    config = replace(VariationalConfig(), latent=8, features=16, width=16)
    step, products, learner = benchmark.measure(config, past=2, steps=8)
    assert 0 < products < step
    assert learner.environments == ["0", "1", "2"]
    assert learner.bytes_held["0"] > 4 * benchmark.INPUTS * 2 * 8  # at least the encoder
