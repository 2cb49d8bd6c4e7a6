"""flex_attention over tiles against the block-local form, and the tiles against the whole mask."""

from __future__ import annotations

import types

import pytest
import torch

from lilicorr.train import block_attention as module
from lilicorr.train.block_attention import block_local, tiled

B, g, r, D = 3, 2, 2, 8
CASES = {
    "full": (None, False),
    "causal": (None, True),
    "window": (5, False),
    "window, causal": (5, True),
}


def tensors(R: int, A: int, C: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((R, g, C, D), (R, g, C, D), (R, A, g * r, B, D), (R, A, g, B, D), (R, A, g, B, D))
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def unfused(*arguments, **options):
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(*arguments, **options)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles smaller than the texts of these tests."""
    monkeypatch.setattr(module, "TILE", 16)


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()  # flex_attention has no backward pass on a CPU
def test_same_numbers(case, small_tiles):
    """Unordered anchors, one at 0 (no context), one at the end, one sequence with few rows to see."""
    C, A = 70, 11
    anchors = torch.stack([torch.randperm(C + 1, generator=torch.Generator().manual_seed(3))[:A], torch.arange(A)])
    anchors[0, 0], anchors[0, 5] = 0, C
    inputs = tensors(2, A, C, torch.float32)
    expected = block_local(anchors, B, C, *CASES[case])(*inputs)
    torch.testing.assert_close(tiled(anchors, B, C, *CASES[case], unfused)(*inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: the compiled kernel and its backward pass")
@pytest.mark.parametrize("case", CASES)
def test_same_numbers_and_gradients_on_a_gpu(case):
    """Two lengths of text, so that what was compiled for the first serves the second."""
    for C, A in ((300, 40), (411, 57)):
        anchors = torch.randperm(C + 1, generator=torch.Generator().manual_seed(3))[None, :A].cuda()
        results = []
        for attention in (block_local, module.block_attention):
            inputs = [t.detach().cuda().requires_grad_() for t in tensors(1, A, C, torch.float32)]
            out = attention(anchors, B, C, *CASES[case])(*inputs)
            (out * torch.arange(D, device="cuda")).sum().backward()
            results.append([out, *(t.grad for t in inputs)])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ordered", [True, False])
def test_tiles_are_those_with_a_visible_pair(case, ordered, small_tiles):
    """Against the whole mask, written out: partial tiles have some pairs, full ones all, the others none."""
    window, causal = CASES[case]
    C, A = 90, 20
    anchors = torch.randperm(C + 1, generator=torch.Generator().manual_seed(1))[None, :A]
    anchors = anchors.sort().values if ordered else anchors
    seen = {}
    tiled(anchors, B, C, window, causal, lambda *a, block_mask, **o: seen.update(mask=block_mask) or a[0])(
        *tensors(1, A, C, torch.float32)
    )
    whole = torch.zeros(A * B, C + A * B, dtype=torch.bool)
    for i in range(A * B):
        anchor, position = int(anchors[0, i // B]), int(anchors[0, i // B]) + i % B
        first = 0 if window is None else max(0, position - window + 1)
        whole[i, first:anchor] = True
        own = C + i // B * B
        whole[i, own : (C + i + 1 if causal else own + B)] = True
    mask = seen["mask"]
    rows, keys = -(-A * B // 16), -(-(C + A * B) // 16)
    assert mask.shape[-2:] == whole.shape
    table = torch.zeros(rows, keys, dtype=torch.int)
    for kind, (count, indices) in enumerate(
        [(mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)], 1
    ):
        for i in range(rows):
            table[i, indices[0, 0, i, : count[0, 0, i]].long()] += kind
    for i in range(rows):
        for j in range(keys):
            part = whole[16 * i : 16 * (i + 1), 16 * j : 16 * (j + 1)]
            if table[i, j] == 2:
                assert part.all()
            elif part.any():
                assert table[i, j] == 1, (i, j)
    assert (table == 0).any()
    if ordered and window is None:
        assert (table == 2).any()


def test_many_blocks_make_their_scores_again(monkeypatch):
    """In parts with recomputation or all at once: the same numbers and gradients."""
    anchors, results = torch.arange(1, 12)[None], []
    for at_once in (64, 4):
        monkeypatch.setattr(module, "ANCHORS_AT_ONCE", at_once)
        inputs = tensors(1, 11, 12, torch.float64)
        out = block_local(anchors, B, 12, 4, True)(*inputs)
        out.square().sum().backward()
        results.append([out, *(t.grad for t in inputs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("device", "blocks", "form"), [("cuda", 2, "tiled"), ("cuda", 1, "local"), ("cpu", 2, "local")]
)
def test_a_gpu_takes_the_tiles(monkeypatch, device, blocks, form):
    anchors = types.SimpleNamespace(device=torch.device(device), shape=(1, blocks))
    monkeypatch.setattr(module, "_compiled", lambda: "kernel")
    monkeypatch.setattr(module, "tiled", lambda *a: ("tiled", a[-1]))
    monkeypatch.setattr(module, "block_local", lambda *a: ("local", "kernel"))
    assert module.block_attention(anchors, 3, 9, None, False) == (form, "kernel")
