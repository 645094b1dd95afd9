"""A generator is a function of the seed and of where it is used, so resuming needs nobody's state."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

from perdure.randomness import Batches, Use, derive, generator, initialised_from


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_seed_depends_on_every_argument_and_on_their_order(depth: int) -> None:
    places = [(seed, use, *where) for seed in (0, 1) for use in Use for where in itertools.product((0, 1, 2), repeat=depth)]
    assert len({derive(*place) for place in places}) == len(places)


def test_a_seed_fits_a_generator_on_any_device() -> None:
    seeds = [derive(seed, Use.STEP, 3) for seed in range(200)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**60  # none of the bits is thrown away


def test_uses_never_share_a_number() -> None:
    assert len({int(use) for use in Use.__members__.values()}) == len(Use.__members__)


def test_a_generator_draws_the_same_numbers_in_another_process() -> None:
    here = torch.randn(3, generator=generator(7, Use.REPLAY, 2, 5)).tolist()
    code = (
        "import torch; from perdure.randomness import *; print(torch.randn(3, generator=generator(7, Use.REPLAY, 2, 5)).tolist())"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(here)


def test_a_generator_does_not_depend_on_what_ran_before() -> None:
    first = torch.randn(3, generator=generator(7, Use.STEP, 700))
    torch.randn(100)
    torch.randn(100, generator=generator(7, Use.STEP, 699))
    assert torch.equal(torch.randn(3, generator=generator(7, Use.STEP, 700)), first)


def test_first_weights_come_from_the_seed_and_the_place() -> None:
    def weights(*place: int) -> torch.Tensor:
        with initialised_from(*place):
            return torch.nn.Linear(4, 4).weight

    assert torch.equal(weights(0, 1), weights(0, 1))
    assert not torch.equal(weights(0, 1), weights(0, 2))
    assert not torch.equal(weights(0, 1), weights(1, 1))


def test_the_callers_random_state_stays_as_it_was_even_after_an_error() -> None:
    def build_and_fail() -> None:
        with initialised_from(0, 1):
            torch.randn(5)
            raise RuntimeError("on purpose")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose"):
        build_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


# Batches


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (10, 5), (7, 7), (3, 10), (5, 1), (1, 4), (32, 32)])
def test_every_pass_visits_each_row_exactly_once(rows: int, batch: int) -> None:
    batches = Batches(rows, batch, 0, Use.SUPPORT_ORDER, 1)
    drawn = torch.cat([batches(step) for step in range(6 * rows)])  # a whole number of passes: 6 * batch of them
    assert len(drawn) == 6 * rows * batch
    for one_pass in drawn.split(rows):
        assert sorted(one_pass.tolist()) == list(range(rows))


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (3, 10), (7, 7)])
def test_every_batch_is_full(rows: int, batch: int) -> None:
    batches = Batches(rows, batch, 0, Use.SUPPORT_ORDER)
    assert {len(batches(step)) for step in range(20)} == {batch}


def test_passes_are_shuffled_and_differ() -> None:
    batches = Batches(50, 50, 0, Use.SUPPORT_ORDER)
    passes = [batches(step).tolist() for step in range(4)]
    assert all(first != second for first, second in itertools.combinations([*passes, list(range(50))], 2))


@pytest.mark.parametrize(("rows", "batch"), [(10, 3), (3, 10)])
def test_a_batch_is_a_function_of_its_step_alone(rows: int, batch: int) -> None:
    in_order = Batches(rows, batch, 0, Use.QUERY_ORDER, 2)
    expected = [in_order(step).tolist() for step in range(12)]
    backwards = Batches(rows, batch, 0, Use.QUERY_ORDER, 2)
    assert [backwards(step).tolist() for step in reversed(range(12))] == expected[::-1]
    assert [Batches(rows, batch, 0, Use.QUERY_ORDER, 2)(step).tolist() for step in range(12)] == expected


def test_streams_seeds_and_lessons_are_shuffled_apart() -> None:
    orders = [
        Batches(50, 50, 0, Use.SUPPORT_ORDER, 1),
        Batches(50, 50, 0, Use.QUERY_ORDER, 1),
        Batches(50, 50, 0, Use.SUPPORT_ORDER, 2),
        Batches(50, 50, 1, Use.SUPPORT_ORDER, 1),
    ]
    drawn = [tuple(order(0).tolist()) for order in orders]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(("rows", "batch", "most"), [(10, 3, 2), (7, 7, 1), (3, 10, 4)])
def test_only_the_passes_in_use_are_kept(rows: int, batch: int, most: int) -> None:
    batches = Batches(rows, batch, 0, Use.SUPPORT_ORDER)
    held = []
    for step in range(100):
        batches(step)
        held.append(len(batches._passes))
    assert max(held) == most


def test_rows_are_numbered_on_the_device_asked_for() -> None:
    assert Batches(10, 3, 0, Use.SUPPORT_ORDER, device="meta")(0).device == torch.device("meta")
    assert Batches(10, 3, 0, Use.SUPPORT_ORDER)(0).device == torch.device("cpu")
