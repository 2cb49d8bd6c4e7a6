"""LiLiCorr head: float64 agreement with the independent implementation, prefix rules, and scores computed on paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lilicorr.train.lilicorr import TOKEN_RMS, LiLiCorrHead
from tests.train import independent

SETTINGS = {
    "model_hidden_size": 10,
    "hidden_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_ratio": 1.7,  # int(8 * 1.7) = 13
    "block_size": 5,
    "candidate_topk": 3,
    "factor_dim": 6,
    "rms_norm_eps": 1e-5,
    "vector_eps": 1e-4,
    "logit_scale": 3.5,
}


def double_head(seed: int = 0, **changes) -> LiLiCorrHead:
    """A float64 head whose every parameter is random, norms and biases and embeddings too."""
    head = LiLiCorrHead(**SETTINGS | changes).double().eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in head.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = 1.0 + 0.3 * noise if "norm.weight" in name or name == "feature_mlp.0.weight" else 0.5 * noise
    return head


def lattice(slots: int, k: int, width: int = 10, n: int = 2, seed: int = 9) -> tuple[torch.Tensor, ...]:
    """(embeddings, log_probs sorted, hidden, anchor) in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    log_probs = torch.log_softmax(2 * draw(n, slots, k + 2), dim=-1).sort(dim=-1, descending=True).values[..., :k]
    return draw(n, slots, k, width), log_probs, draw(n, slots, width), draw(n, width)


def expected(
    head: LiLiCorrHead, inputs: tuple[torch.Tensor, ...], n: int, valid: bool
) -> tuple[np.ndarray, np.ndarray]:
    shape = independent.HeadShape(
        layers=len(head.layers),
        heads=head.layers[0].attn.heads if len(head.layers) else 1,
        block_size=head.block_size,
        rms_eps=1e-5,
        vector_eps=head.vector_eps,
        logit_scale=head.logit_scale,
    )
    weights = {name: tensor.numpy() for name, tensor in head.state_dict().items()}
    return independent.lilicorr(weights, shape, *(t[n].numpy() for t in inputs), valid)


@pytest.mark.parametrize(
    ("changes", "slots", "k"),
    [
        ({}, 4, 3),
        ({}, 2, 3),
        ({}, 1, 3),
        ({}, 4, 2),
        ({}, 3, 1),
        ({"candidate_topk": 1}, 4, 1),
        ({"model_hidden_size": 8}, 4, 3),
        ({"num_heads": 4, "num_layers": 1, "mlp_ratio": 2.0}, 4, 3),
        ({"num_layers": 0}, 4, 3),
        ({"block_size": 2}, 1, 3),
    ],
    ids=["full", "fewer slots", "one slot", "k < K", "k = 1 of K", "K = 1", "h = H", "4 heads", "no layer", "B = 2"],
)
def test_agrees_with_the_independent_implementation(changes, slots, k):
    head = double_head(**changes)
    inputs = lattice(slots, k, width=(SETTINGS | changes)["model_hidden_size"])
    start, pair = head(*inputs, anchor_valid=torch.tensor([True, False]))
    assert start.shape == (2, k)
    assert pair.shape == (2, slots - 1, k, k)
    for n, valid in enumerate((True, False)):
        ours_start, ours_pair = expected(head, inputs, n, valid)
        np.testing.assert_allclose(start[n].numpy(), ours_start, rtol=0, atol=1e-9)
        np.testing.assert_allclose(pair[n].numpy(), ours_pair, rtol=0, atol=1e-9)


def test_no_anchor_valid_means_all_valid():
    head, inputs = double_head(), lattice(4, 3)
    for a, b in zip(head(*inputs), head(*inputs, torch.tensor([True, True])), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(head(*inputs)[1], head(*inputs, torch.tensor([False, False]))[1])


def test_what_an_invalid_anchor_holds_does_not_matter():
    head, (embeddings, log_probs, hidden, anchor) = double_head(), lattice(4, 3)
    valid = torch.tensor([True, False])
    junk = torch.where(valid[:, None], anchor, float("nan"))
    for a, b in zip(
        head(embeddings, log_probs, hidden, anchor, valid),
        head(embeddings, log_probs, hidden, junk, valid),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_invalid_anchor_makes_start_zero_when_its_head_has_no_bias():
    """The norm of the zero row is zero, so only anchor_out_head's bias is left; without it every start score is exactly 0."""
    head, inputs = double_head(), lattice(4, 3)
    head.anchor_out_head.bias.zero_()
    start, _ = head(*inputs, torch.tensor([False, True]))
    assert start[0].tolist() == [0.0, 0.0, 0.0]
    assert start[1].abs().max() > 0


@pytest.mark.parametrize("name", ["slot_embedding", "rank_embedding", "relative_slot_bias", "same_slot_bias"])
def test_every_position_parameter_counts(name):
    head, inputs = double_head(), lattice(4, 3)
    before = head(*inputs)[1]
    getattr(head, name).zero_()
    assert (head(*inputs)[1] - before).abs().max() > 1e-6


def test_attention_bias_by_hand():
    """B = 3, two slots of two candidates: query minus key, centred at entry B - 1 of the table, plus the same-slot bias."""
    head = double_head(block_size=3, num_heads=1)
    head.relative_slot_bias.copy_(torch.tensor([[10.0, 20.0, 30.0, 40.0, 50.0]]))
    head.same_slot_bias.fill_(0.5)
    assert head.attention_bias(2, 2)[0].tolist() == [
        [30.5, 30.5, 20.0, 20.0],
        [30.5, 30.5, 20.0, 20.0],
        [40.0, 40.0, 30.5, 30.5],
        [40.0, 40.0, 30.5, 30.5],
    ]


def test_scores_by_hand():
    """No layers, h = H = f = 2, only the token embedding left: a score is 3.5 times the cosine of vectors known on paper.

    Token (3, 4) gives x = (3, 4)/√12.5 and g = SiLU(x) = (0.8485·0.7003, 1.1314·0.7561) = (0.5942, 0.8554), unit (0.5705, 0.8213).
    Token (1, 0) gives x = (√2, 0), g = (1.1379, 0), unit (1, 0). The anchor row (0, 5) gives the unit vector (0, 1).
    """
    head = double_head(model_hidden_size=2, hidden_size=2, factor_dim=2, num_layers=0, num_heads=1, block_size=3)
    for name, parameter in head.named_parameters():
        parameter.zero_()
        if "norm" in name:
            parameter.fill_(1.0)
        elif name.split(".")[0] in ("context_proj", "out_head", "in_head", "anchor_out_head") and "weight" in name:
            parameter.copy_(torch.eye(2))
    head.factor_input_proj.weight[:, :2] = torch.eye(2)
    a, b = [3.0, 4.0], [1.0, 0.0]
    embeddings = torch.tensor([[[a, b], [b, a]]], dtype=torch.float64)
    zeros = torch.zeros(1, 2, 2, dtype=torch.float64)
    start, pair = head(embeddings, zeros, zeros, torch.tensor([[0.0, 5.0]], dtype=torch.float64))
    np.testing.assert_allclose(start[0].numpy(), [3.5 * 0.8213, 0.0], atol=5e-4)
    np.testing.assert_allclose(pair[0, 0].numpy(), [[3.5 * 0.5705, 3.5], [3.5, 3.5 * 0.5705]], atol=5e-4)


def test_vector_eps_is_the_floor_of_the_norm():
    """A factor vector of length 1e-6 is divided by 1e-4, not by its own length."""
    head, inputs = double_head(), lattice(4, 3)
    head.in_head.weight.zero_()
    head.in_head.bias.zero_()
    head.in_head.bias[0] = 1e-6
    _, pair = head(*inputs)
    assert pair.abs().max() <= 3.5e-2
    assert pair.abs().max() > 0


def test_rank_fraction_is_taken_over_the_candidates_given():
    """k < K is not the top-left corner of the K result: rank/(k-1) is spread again (spec of the published head)."""
    head, inputs = double_head(), lattice(4, 3)
    two = (inputs[0][:, :, :2], inputs[1][:, :, :2], *inputs[2:])
    corner = head(*inputs)[1][..., :2, :2]
    assert (head(*two)[1] - corner).abs().max() > 1e-3


@pytest.mark.parametrize(("slots", "k"), [(5, 3), (4, 4), (0, 3), (4, 0)])
def test_sizes_beyond_the_trained_ones_are_refused(slots, k):
    head = double_head()
    with pytest.raises(ValueError, match="expected 1 to"):
        head(*(torch.zeros(1, *s, dtype=torch.float64) for s in ((slots, k, 10), (slots, k), (slots, 10), (10,))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scores_are_fp32_in_every_precision(dtype):
    head, inputs = double_head(), lattice(4, 3)
    exact = head(*inputs)
    low = head.to(dtype)(*(t.to(dtype) for t in inputs))
    for a, b in zip(low, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() < {torch.float32: 1e-4, torch.bfloat16: 0.7, torch.float16: 0.1}[dtype]


def test_a_new_head_has_no_zero_factor_head_and_zero_biases():
    """Both sides zero would be a saddle of the bilinear score."""
    torch.manual_seed(0)
    head = LiLiCorrHead(**SETTINGS | {"hidden_size": 64, "factor_dim": 64})
    for name in ("out_head", "in_head", "anchor_out_head"):
        linear = getattr(head, name)
        assert 0.017 < linear.weight.detach().std().item() < 0.023
        assert not linear.bias.any()
    for name in ("slot_embedding", "rank_embedding", "relative_slot_bias", "same_slot_bias"):
        assert not getattr(head, name).any()


def test_token_rows_of_a_new_head_begin_at_the_same_size_whatever_the_embedding():
    for scale in (0.02, 3.0):
        torch.manual_seed(1)
        head, table = LiLiCorrHead(**SETTINGS), scale * torch.randn(500, SETTINGS["model_hidden_size"])
        head.initialise(table)
        assert head.token_proj(table).square().mean().sqrt().item() == pytest.approx(TOKEN_RMS, rel=0.01)
    wide = LiLiCorrHead(**SETTINGS | {"hidden_size": SETTINGS["model_hidden_size"]})
    wide.initialise(table)  # has no projection to scale
