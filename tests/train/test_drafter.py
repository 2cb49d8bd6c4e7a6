"""Drafter: float64 agreement with the independent implementation, many blocks at once, and one layer computed on paper."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from lilicorr.train.config import DrafterConfig
from lilicorr.train.drafter import Drafter
from tests.train import independent

PLAIN = DrafterConfig(
    hidden_size=12,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    intermediate_size=10,
    rms_norm_eps=1e-5,
    vocab_size=40,
    max_position_embeddings=64,
    rope={"rope_type": "default", "rope_theta": 500.0},
    block_size=4,
    mask_token_id=3,
    target_layer_ids=(1, 2),
    num_target_layers=6,
)
SLIDING = ("sliding_attention", "full_attention")
VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "biases": {"attention_bias": True},
    "one K/V head": {"num_key_value_heads": 1},
    "no grouping": {"num_key_value_heads": 4},
    "sliding": {"layer_types": SLIDING, "sliding_window": 4},
    "sliding causal": {"layer_types": SLIDING, "sliding_window": 4, "causal": True},
    "window given, no layer slides": {"layer_types": ("full_attention",) * 2, "sliding_window": 4},
    "convolutions": {"conv_kernel_size": 2, "conv_group_size": 4},
    "three taps": {"conv_kernel_size": 3, "conv_group_size": 1},
    "three features": {"target_layer_ids": (0, 2, 4)},
}


def double_drafter(config: DrafterConfig, seed: int = 0) -> Drafter:
    """A float64 drafter whose every parameter is random, with the exact rotary frequencies (the module's are fp32)."""
    drafter = Drafter(config).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in drafter.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = 1.0 + 0.3 * noise if "norm" in name else 0.5 * noise
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    drafter.rotary.inv_freq = config.rope["rope_theta"] ** -exponents
    return drafter.requires_grad_(False)


def arrays(module: torch.nn.Module) -> independent.Weights:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def shape_of(config: DrafterConfig) -> independent.DrafterShape:
    sliding = {i: config.sliding_window for i, kind in enumerate(config.layer_types) if kind == "sliding_attention"}
    return independent.DrafterShape(
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_eps=config.rms_norm_eps,
        rope_theta=config.rope["rope_theta"],
        causal=config.causal,
        windows=sliding,
        conv_taps=config.conv_kernel_size or 0,
        conv_group=config.conv_group_size or 0,
    )


def inputs(config: DrafterConfig, context: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(config.block_size, config.hidden_size, generator=generator, dtype=torch.float64)
    width = len(config.target_layer_ids) * config.hidden_size
    return block, torch.randn(context, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("context", [1, 7])
def test_agrees_with_the_independent_implementation(changes, context):
    config = dataclasses.replace(PLAIN, **changes)
    drafter = double_drafter(config)
    block, features = inputs(config, context)
    ours = drafter.block_hidden(block[None], features[None])[0].numpy()
    theirs = independent.block_hidden(arrays(drafter), shape_of(config), block.numpy(), features.numpy())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["causal", "sliding", "convolutions"])
def test_every_variant_changes_the_result(name):
    """Otherwise the agreement above could hold with the variant ignored on both sides."""
    config = dataclasses.replace(PLAIN, **VARIANTS[name])
    drafter = double_drafter(config)
    block, features = inputs(config, 7)
    plain = {k: v for k, v in drafter.state_dict().items() if "_conv." not in k}
    without = double_drafter(PLAIN)
    without.load_state_dict(plain)
    difference = drafter.block_hidden(block[None], features[None]) - without.block_hidden(block[None], features[None])
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["plain", "sliding causal", "convolutions"])
def test_many_blocks_equal_single_blocks(name):
    """Two sequences, three anchors each, unordered, one at 0 (no context) and one beyond the last row."""
    config = dataclasses.replace(PLAIN, **VARIANTS[name])
    drafter = double_drafter(config)
    generator = torch.Generator().manual_seed(2)
    anchors = torch.tensor([[8, 2, 6], [0, 8, 5]])
    blocks = torch.randn(2, 3, config.block_size, config.hidden_size, generator=generator, dtype=torch.float64)
    features = torch.randn(2, 8, 2 * config.hidden_size, generator=generator, dtype=torch.float64)
    together = drafter(blocks, drafter.context(features), anchors)
    for r in range(2):
        for a in range(3):
            alone = independent.block_hidden(
                arrays(drafter), shape_of(config), blocks[r, a].numpy(), features[r, : anchors[r, a]].numpy()
            )
            np.testing.assert_allclose(together[r, a].numpy(), alone, rtol=0, atol=1e-9)


def test_rows_at_and_after_the_anchor_are_never_seen():
    drafter = double_drafter(PLAIN)
    block, features = inputs(PLAIN, 6)
    changed = features.clone()
    changed[4:] = 1e3
    anchors = torch.tensor([[4]])
    before, after = (drafter(block[None, None], drafter.context(f[None]), anchors) for f in (features, changed))
    assert torch.equal(before, after)


def test_one_layer_by_hand():
    """H = D = 2, one head, no MLP, identity projections, context at position 0, a block of one at position 1, theta 1.

    Features (3, 4) normed: c = (0.8485, 1.1314). Block x = (0, 2) normed: n = (0, 1.4142), whose mean square is 1, so q_norm and
    k_norm change nothing. One radian turns q and the block's key alike: n·n/√2 = 1.4142. The context key is not turned:
    1.4142·(−sin 1, cos 1)·c/√2 = −0.1027. Share of the context row 1/(1 + e^1.5169) = 0.1799, so x + attention =
    (0.1799·0.8485, 2 + 0.1799·1.1314 + 0.8201·1.4142) = (0.1526, 3.3633), whose root mean square is 2.3807.
    """
    config = dataclasses.replace(
        PLAIN,
        hidden_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=2,
        intermediate_size=1,
        rms_norm_eps=0.0,
        rope={"rope_type": "default", "rope_theta": 1.0},
        block_size=1,
        target_layer_ids=(0,),
    )
    drafter = Drafter(config).double()
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if parameter.shape == (2, 2):
                parameter.copy_(torch.eye(2))
            elif "mlp" in name:
                parameter.zero_()
    result = drafter.block_hidden(
        torch.tensor([[[0.0, 2.0]]], dtype=torch.float64), torch.tensor([[[3.0, 4.0]]], dtype=torch.float64)
    )
    np.testing.assert_allclose(result[0, 0].detach().numpy(), [0.0641, 1.4128], atol=5e-5)


def test_rotary_table_matches_transformers():
    """Default and YaRN: the frequencies and the attention factor of transformers' own Qwen3 rotary module."""
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    from lilicorr.train.rope import Rotary

    yarn = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    for rope in ({"rope_type": "default", "rope_theta": 1e6}, yarn):
        config = Qwen3Config(head_dim=16, max_position_embeddings=256, rope_parameters=dict(rope))
        positions = torch.tensor([[0, 1, 17, 255]])
        theirs = Qwen3RotaryEmbedding(config)(torch.zeros(1), positions)
        ours = Rotary(rope, 16, 256)(positions)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_candidates_are_sorted_target_ids_with_log_probs_over_the_draft_vocabulary():
    config = dataclasses.replace(PLAIN, draft_vocab_size=5)
    drafter = double_drafter(config)
    kept = torch.tensor([2, 3, 11, 12, 39])
    drafter.d2t = kept - torch.arange(5)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(1, 3, 12, generator=generator, dtype=torch.float64)
    table = torch.randn(40, 12, generator=generator, dtype=torch.float64)
    ids, log_probs = drafter.candidates(hidden, table)
    for slot in range(3):
        scores = {int(t): float(table[t] @ hidden[0, slot]) for t in kept}
        best = max(scores, key=scores.get)
        assert ids[0, slot].tolist() == [best]
        total = np.log(sum(np.exp(s) for s in scores.values()))
        assert float(log_probs[0, slot, 0]) == pytest.approx(scores[best] - total, abs=1e-12)


def test_own_output_head_replaces_the_targets():
    drafter = double_drafter(dataclasses.replace(PLAIN, has_own_lm_head=True))
    assert drafter.output_rows(torch.zeros(40, 12, dtype=torch.float64)) is drafter.lm_head.weight
