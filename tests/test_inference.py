"""The inference module is the one the supplement describes, and filters each stream as itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from perdure.inference import Centring, Decoder, Encoder, InferenceModule


def rows(n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def module() -> InferenceModule:
    torch.manual_seed(0)
    return InferenceModule(inputs=6, latent=4, features=5)


# Centring


def test_fitted_rows_have_mean_zero_and_the_length_asked_for() -> None:
    centring, x = Centring((6,)), 3 * rows(50, 6) + 10
    centring.fit(x, 7.0)
    centred = centring(x)
    assert_close(centred.mean(dim=0), torch.zeros(6), rtol=0, atol=1e-5)
    assert centred.square().sum(dim=1).mean().sqrt().item() == pytest.approx(7.0, rel=1e-5)


def test_centring_equals_hand_computed_value() -> None:
    # Mean (2, 3); both rows are 1 away from it, so length 10 stretches ten times.
    centring = Centring((2,))
    centring.fit(torch.tensor([[1.0, 3.0], [3.0, 3.0]]), 10.0)
    assert_close(centring(torch.tensor([[3.0, 5.0]])), torch.tensor([[10.0, 20.0]]))


def test_centring_is_the_identity_until_it_is_fitted() -> None:
    x = rows(3, 6)
    assert torch.equal(Centring((6,))(x), x)
    pictures = rows(2, 12).reshape(2, 3, 2, 2)
    assert torch.equal(Centring(())(pictures), pictures)


def test_rows_that_are_all_the_same_are_centred_and_not_divided_by_zero() -> None:
    centring = Centring((2,))
    centring.fit(torch.ones(4, 2), 7.0)
    assert_close(centring(torch.ones(1, 2)), torch.zeros(1, 2))


def test_centring_is_saved_but_not_trained() -> None:
    centring = Centring((6,))
    assert set(centring.state_dict()) == {"mean", "scale"}
    assert not list(centring.parameters())


# The encoder


def test_the_encoder_is_one_linear_layer_from_features_to_mean_and_log_variance() -> None:
    encode = Encoder(2048, 512)
    assert sum(parameter.numel() for parameter in encode.parameters()) == (2048 + 1) * 2 * 512
    posterior = encode(rows(3, 2048), "query")
    assert posterior.mean.shape == posterior.log_variance.shape == (3, 512)


def test_the_posterior_equals_hand_computed_value() -> None:
    encode = Encoder(1, 1)
    with torch.no_grad():
        encode.to_posterior.weight.copy_(torch.tensor([[2.0], [3.0]]))
        encode.to_posterior.bias.copy_(torch.tensor([10.0, 20.0]))
    mean, log_variance = encode(torch.tensor([[1.0], [-4.0]]), "query")
    assert_close(mean, torch.tensor([[12.0], [2.0]]))
    assert_close(log_variance, torch.tensor([[23.0], [8.0]]))


def test_each_stream_is_centred_by_its_own_mean(module: InferenceModule) -> None:
    x_s, x_q = rows(20, 6, seed=1) + 5, rows(30, 6, seed=2) - 5
    module.encode.support.fit(x_s, 7.0)
    module.encode.query.fit(x_q, 7.0)
    linear = module.encode.to_posterior
    assert_close(module.encode(x_s, "support").mean.mean(dim=0), linear.bias[:4], rtol=0, atol=1e-5)
    assert_close(module.encode(x_q, "query").mean.mean(dim=0), linear.bias[:4], rtol=0, atol=1e-5)
    assert (module.encode(x_s, "query").mean.mean(dim=0) - linear.bias[:4]).abs().max() > 1


def test_both_streams_at_once_are_encoded_as_each_alone(module: InferenceModule) -> None:
    x_s, x_q = rows(4, 6, seed=1), rows(3, 6, seed=2)
    module.encode.support.fit(x_s, 7.0)
    module.encode.query.fit(x_q, 2.0)
    both, support, query = module.encode.both(x_s, x_q), module.encode(x_s, "support"), module.encode(x_q, "query")
    assert_close(both.mean, torch.cat([support.mean, query.mean]))
    assert_close(both.log_variance, torch.cat([support.log_variance, query.log_variance]))


def test_a_backbone_comes_first_and_is_trained_along() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 6))
    module = InferenceModule(inputs=6, latent=4, features=5, backbone=backbone)
    pictures = rows(3, 12).reshape(3, 3, 2, 2)
    assert_close(module.encode(pictures, "query").mean, module.encode.to_posterior(backbone(pictures))[:, :4])
    module(pictures).square().sum().backward()
    assert backbone[1].weight.grad is not None
    assert backbone[1].weight.grad.abs().sum() > 0


# The decoder


def test_the_decoder_is_a_linear_layer_a_rectifier_and_batch_norm() -> None:
    decode = Decoder(512, 1024)
    assert sum(parameter.numel() for parameter in decode.parameters()) == (512 + 1) * 1024 + 2 * 1024
    assert isinstance(decode.norm, nn.BatchNorm1d)


def test_features_equal_hand_computed_value() -> None:
    decode = Decoder(1, 2)
    with torch.no_grad():
        decode.linear.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        decode.linear.bias.copy_(torch.tensor([0.0, 0.0]))
        decode.norm.weight.copy_(torch.tensor([2.0, 1.0]))
        decode.norm.bias.copy_(torch.tensor([10.0, 20.0]))
        decode.norm.running_mean.copy_(torch.tensor([1.0, 0.0]))
        decode.norm.running_var.copy_(torch.tensor([4.0, 9.0]))
    # z = 5 -> (5, -5) -> rectified (5, 0) -> normalised ((5 - 1) / 2, 0) -> (2 * 2 + 10, 20)
    assert_close(decode.eval()(torch.tensor([[5.0]])), torch.tensor([[14.0, 20.0]]), rtol=1e-5, atol=1e-4)


def test_while_training_each_stream_is_normalised_by_its_own_statistics(module: InferenceModule) -> None:
    z = torch.cat([rows(40, 4, seed=1) + 3, 5 * rows(60, 4, seed=2) - 3])
    h = module.decode.train().both(z, 40)
    for stream in (h[:40], h[40:]):
        assert_close(stream.mean(dim=0), torch.zeros(5), rtol=0, atol=1e-4)
    assert_close(h[:40], module.decode(z[:40]))
    assert_close(h[40:], module.decode(z[40:]))
    assert not torch.allclose(module.decode(z), h, atol=0.1)  # one pass over both would mix them


# The whole


def test_answering_features_are_those_of_the_posterior_mean(module: InferenceModule) -> None:
    module.eval()
    x = rows(7, 6)
    assert_close(module(x), module.decode(module.encode(x, "query").mean))
    assert torch.equal(module(x), module(x))


def test_the_stream_decides_the_centring_of_the_whole(module: InferenceModule) -> None:
    module.eval().encode.support.fit(rows(20, 6) + 5, 7.0)
    x = rows(7, 6)
    assert_close(module(x, "support"), module.decode(module.encode(x, "support").mean))
    assert not torch.allclose(module(x, "support"), module(x))


@pytest.mark.parametrize("n", [1, 2, 33])
def test_answers_do_not_depend_on_who_else_is_in_the_batch(module: InferenceModule, n: int) -> None:
    module.eval()
    x = rows(33, 6)
    assert module(x[:n]).shape == (n, 5)
    assert_close(module(x[:n]), module(x)[:n])
