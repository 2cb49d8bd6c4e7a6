"""The rules of the two walks, on cases small enough to work out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lilicorr.train.walk import greedy_walk, sampled_walk

NAN, INF = math.nan, math.inf


def one_slot(row, temperature, uniform):
    """(choice, q) of a single row."""
    start = torch.tensor([row])
    k = len(row)
    path, q = sampled_walk(start, torch.empty(1, 0, k, k), torch.tensor([temperature]), torch.tensor([[uniform]]))
    return path.item(), q[0, 0]


@pytest.mark.parametrize(
    ("row", "choice"),
    [([1.0, 3, 3], 1), ([NAN, -5, NAN], 1), ([NAN, NAN], 0), ([-INF, -INF], 0), ([0.0, INF, INF], 1), ([-0.0, 0.0], 0)],
)
def test_greedy_takes_the_first_best_and_never_nan(row, choice):
    assert greedy_walk(torch.tensor([row]), torch.empty(1, 0, len(row), len(row))).tolist() == [[choice]]


def test_greedy_follows_the_row_of_the_chosen_predecessor():
    pair = torch.tensor([[[[9.0, 0.0], [0.0, 1.0]], [[5.0, 6.0], [8.0, 7.0]]]])
    assert greedy_walk(torch.tensor([[0.0, 1.0]]), pair).tolist() == [[1, 1, 0]]


def test_sampled_draws_by_the_sum_of_the_proposal():
    row = [0.0, math.log(2), math.log(5)]
    expected = torch.tensor([1, 2, 5]) / 8
    for uniform, choice in [(0.0, 0), (0.1249, 0), (0.1251, 1), (0.3749, 1), (0.3751, 2), (0.9999, 2)]:
        found, q = one_slot(row, 1.0, uniform)
        assert found == choice
        torch.testing.assert_close(q, expected)


def test_temperature_divides_the_scores():
    _, q = one_slot([0.0, math.log(2)], 0.5, 0.0)
    torch.testing.assert_close(q, torch.tensor([0.2, 0.8]))


def test_sampled_follows_the_row_of_the_drawn_predecessor():
    pair = torch.tensor([[[[0.0, 0.0], [-INF, 0.0]]]])
    path, q = sampled_walk(torch.tensor([[5.0, 0.0]]), pair, torch.tensor([1.0]), torch.tensor([[0.9999, 0.0]]))
    assert path.tolist() == [[1, 1]]  # the greedy predecessor is 0, whose row would have given 0
    assert q[0, 1].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("row", "temperature", "choice", "expected"),
    [
        ([1.0, 3, 3], 0.0, 1, [0, 1, 0]),
        ([0.0, NAN, 0.0], 1.0, 2, [0.5, 0, 0.5]),
        ([NAN, NAN], 1.0, 0, [1, 0]),
        ([NAN, -INF], 1.0, 0, [1, 0]),
        ([1.0, INF, INF], 1.0, 2, [0, 0.5, 0.5]),
        ([0.0, -INF], 1.0, 0, [1, 0]),
        ([3e38, -3e38], 1e-45, 0, [1, 0]),
    ],
)
def test_sampled_on_the_edges(row, temperature, choice, expected):
    found, q = one_slot(row, temperature, 0.9)
    assert (found, q.tolist()) == (choice, expected)


def test_lanes_are_independent():
    generator = torch.Generator().manual_seed(0)
    start, pair = torch.randn(3, 4, generator=generator), torch.randn(3, 5, 4, 4, generator=generator)
    temperature, uniforms = torch.tensor([0.0, 0.5, 1.5]), torch.rand(3, 6, generator=generator)
    path, q = sampled_walk(start, pair, temperature, uniforms)
    assert path[0].tolist() == greedy_walk(start, pair)[0].tolist()
    for lane in range(3):
        alone, alone_q = sampled_walk(*(tensor[lane : lane + 1] for tensor in (start, pair, temperature, uniforms)))
        assert torch.equal(path[lane], alone[0])
        assert torch.equal(q[lane], alone_q[0])
