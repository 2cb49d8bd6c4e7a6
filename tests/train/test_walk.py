"""Greedy walk reference: by hand, ties and NaN, and exact agreement with the independent loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lilicorr.train.walk import greedy_walk
from tests.train import independent

NAN, INF = float("nan"), float("inf")


def test_by_hand_is_greedy_and_not_viterbi():
    """Start prefers 1 (2 > 1). From 1 the best successor is 0 (0 > -1), although the path 0 → 1 has the larger sum (1 + 9)."""
    start = torch.tensor([[1.0, 2.0]])
    pair = torch.tensor([[[[5.0, 9.0], [0.0, -1.0]], [[3.0, 4.0], [7.0, 6.0]]]])
    path = greedy_walk(start, pair)
    assert path.dtype == torch.int32
    assert path.tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    ("row", "chosen"),
    [
        ([1.0, 1.0, 0.0], 0),
        ([0.0, 2.0, 2.0], 1),
        ([NAN, 1.0, 2.0], 2),
        ([-INF, NAN, -5.0], 2),
        ([NAN, NAN, NAN], 0),
        ([-INF, -INF, -INF], 0),
        ([NAN, INF, INF], 1),
        ([-0.0, 0.0, 0.0], 0),
    ],
)
def test_lower_index_wins_and_nan_never(row, chosen):
    scores = torch.tensor([row])
    assert greedy_walk(scores, torch.empty(1, 0, 3, 3)).tolist() == [[chosen]]
    pair = torch.zeros(1, 1, 3, 3)
    pair[0, 0, 0] = scores
    assert greedy_walk(torch.tensor([[1.0, 0.0, 0.0]]), pair).tolist() == [[0, chosen]]


def test_one_candidate():
    assert greedy_walk(torch.tensor([[NAN]]), torch.zeros(1, 2, 1, 1)).tolist() == [[0, 0, 0]]


def test_half_precision_is_compared_exactly():
    """fp16 values are compared as they are: 1 and the next fp16 above it are no tie."""
    start = torch.tensor([[1.0, 1.0009765625]], dtype=torch.float16)
    assert greedy_walk(start, torch.empty(1, 0, 2, 2)).tolist() == [[1]]


def test_agrees_exactly_with_the_independent_loop():
    """Coarse scores make many ties; a few are NaN."""
    rng = np.random.default_rng(3)
    start = rng.integers(-2, 3, (200, 4)).astype(np.float32)
    pair = rng.integers(-2, 3, (200, 5, 4, 4)).astype(np.float32)
    for scores in (start, pair):
        scores[rng.random(scores.shape) < 0.1] = np.nan
    paths = greedy_walk(torch.from_numpy(start), torch.from_numpy(pair)).tolist()
    assert paths == [independent.walk(s, p) for s, p in zip(start, pair, strict=True)]
    assert len({tuple(path) for path in paths}) > 50
