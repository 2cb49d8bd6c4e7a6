"""Two-part attention against PyTorch's own attention over the concatenated, filtered keys."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from lilicorr.export.attention import two_part_attention, visibility_mask

KV_HEADS, GROUP, WIDTH, CAPACITY, NEW = 2, 3, 8, 6, 4


def _case(lengths: list[int], causal: bool, window: int | None):
    torch.manual_seed(0)
    lanes = len(lengths)
    query = torch.randn(lanes, KV_HEADS * GROUP, NEW, WIDTH)
    k_cache, v_cache = torch.randn(2, lanes, KV_HEADS, CAPACITY, WIDTH)
    k_new, v_new = torch.randn(2, lanes, KV_HEADS, NEW, WIDTH)
    committed = torch.tensor(lengths)
    positions = committed[:, None] + torch.arange(NEW)
    keys = torch.cat([torch.arange(CAPACITY).expand(lanes, -1), positions], dim=1)
    valid = torch.cat([torch.arange(CAPACITY) < committed[:, None], torch.ones(lanes, NEW, dtype=torch.bool)], dim=1)
    mask = visibility_mask(positions, keys, valid, group=GROUP, causal=causal, window=window)
    return query, k_cache, v_cache, k_new, v_new, mask


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_equals_attention_over_the_visible_keys_of_ragged_lanes(causal, window):
    lengths = [0, 6, 3]
    query, k_cache, v_cache, k_new, v_new, mask = _case(lengths, causal, window)
    found = two_part_attention(query, k_cache, v_cache, k_new, v_new, mask, 0.3)
    for lane, length in enumerate(lengths):
        keys = torch.cat([k_cache[lane, :, :length], k_new[lane]], dim=1).repeat_interleave(GROUP, dim=0)
        values = torch.cat([v_cache[lane, :, :length], v_new[lane]], dim=1).repeat_interleave(GROUP, dim=0)
        distance = (length + torch.arange(NEW))[:, None] - torch.arange(length + NEW)
        visible = torch.ones_like(distance, dtype=torch.bool)
        if causal:
            visible &= distance >= 0
        if window is not None:
            visible &= distance < window
        expected = scaled_dot_product_attention(query[lane], keys, values, attn_mask=visible, scale=0.3)
        torch.testing.assert_close(found[lane], expected, rtol=1e-5, atol=1e-6)


def test_rows_beyond_the_committed_length_do_not_matter():
    query, k_cache, v_cache, k_new, v_new, mask = _case([2], True, None)
    found = two_part_attention(query, k_cache, v_cache, k_new, v_new, mask, 0.3)
    k_cache[:, :, 2:], v_cache[:, :, 2:] = 1e4, -1e4
    assert torch.equal(found, two_part_attention(query, k_cache, v_cache, k_new, v_new, mask, 0.3))


def test_scores_that_overflow_before_scaling_stay_finite_in_half_precision():
    query, k_cache, v_cache, k_new, v_new, mask = _case([4], True, None)
    halves = [torch.full_like(t, 100).half() for t in (query, k_cache)]  # 8 · 100² > 65504, the largest half
    found = two_part_attention(*halves, v_cache.half(), k_new.half(), v_new.half(), mask, WIDTH**-0.5)
    assert found.dtype == torch.float16
    assert found.isfinite().all()
