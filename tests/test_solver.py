"""The solver answers for more classes as they arrive, and what it said of the others stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from perdure.solver import TwoLayerClassifier


@pytest.fixture
def solver() -> TwoLayerClassifier:
    torch.manual_seed(0)
    return TwoLayerClassifier(6, 8, 3)


@pytest.fixture
def h() -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def test_a_classifier_is_two_layers_with_a_rectifier_between() -> None:
    solver = TwoLayerClassifier(1024, 1024, 31)
    layers = [module for module in solver.modules() if not list(module.children())]
    assert [type(layer) for layer in layers] == [nn.Linear, nn.Linear]
    assert sum(parameter.numel() for parameter in solver.parameters()) == (1024 + 1) * 1024 + (1024 + 1) * 31


def test_logits_equal_hand_computed_value() -> None:
    solver = TwoLayerClassifier(2, 2, 2)
    with torch.no_grad():
        solver.hidden.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
        solver.hidden.bias.copy_(torch.tensor([0.0, 1.0]))
        solver.output.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        solver.output.bias.copy_(torch.tensor([10.0, 20.0]))
    # (2, 3) -> (2, -3 + 1) -> rectified (2, 0) -> (2 + 10, 6 + 20); (-1, 0) -> (-1, 1) -> (0, 1) -> (2 + 10, 4 + 20)
    logits = solver(torch.tensor([[2.0, 3.0], [-1.0, 0.0]]))
    torch.testing.assert_close(logits, torch.tensor([[12.0, 26.0], [12.0, 24.0]]))


def test_growing_leaves_the_answers_of_the_present_classes_as_they_were(solver: TwoLayerClassifier, h: torch.Tensor) -> None:
    before, hidden = solver(h), solver.hidden
    solver.grow(5)
    assert solver.classes == 5
    assert solver.hidden is hidden
    assert solver(h).shape == (5, 5)
    torch.testing.assert_close(solver(h)[:, :3], before, rtol=0, atol=1e-6)


def test_classes_that_arrive_can_be_learned(solver: TwoLayerClassifier, h: torch.Tensor) -> None:
    solver.grow(5)
    solver(h)[:, 4].sum().backward()
    assert all(parameter.requires_grad for parameter in solver.parameters())
    assert solver.output.weight.grad is not None
    assert solver.output.weight.grad[4].abs().sum() > 0


def test_classes_that_arrive_start_apart(solver: TwoLayerClassifier) -> None:
    solver.grow(5)
    assert not torch.equal(solver.output.weight[3], solver.output.weight[4])
    assert not any(torch.equal(solver.output.weight[new], solver.output.weight[old]) for new in (3, 4) for old in range(3))


def test_keeping_leaves_the_answers_of_the_kept_classes_as_they_were_in_the_order_asked_for(
    solver: TwoLayerClassifier, h: torch.Tensor
) -> None:
    before = solver(h)
    solver.keep(torch.tensor([2, 0]))
    assert solver.classes == 2
    torch.testing.assert_close(solver(h), before[:, [2, 0]], rtol=0, atol=1e-6)
    assert all(parameter.requires_grad for parameter in solver.parameters())


def test_what_is_not_kept_is_gone(solver: TwoLayerClassifier) -> None:
    dropped = solver.output.weight[1].detach().clone()
    solver.keep(torch.tensor([0, 2]))
    kept = torch.cat([tensor.flatten() for tensor in solver.state_dict().values()])
    assert not torch.isin(dropped, kept).any()


def test_growing_after_keeping_gives_room_again(solver: TwoLayerClassifier, h: torch.Tensor) -> None:
    before = solver(h)
    solver.keep(torch.tensor([1]))
    solver.grow(3)
    assert solver(h).shape == (5, 3)
    torch.testing.assert_close(solver(h)[:, 0], before[:, 1], rtol=0, atol=1e-6)


def test_one_row_is_answered_as_it_is_among_others(solver: TwoLayerClassifier, h: torch.Tensor) -> None:
    torch.testing.assert_close(solver(h[:1]), solver(h)[:1], rtol=0, atol=1e-6)
