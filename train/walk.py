"""The greedy and the sampled walk in plain PyTorch: the reference every other form of `lilicorr::GreedyWalk` must equal.

Greedy, not Viterbi, on purpose: acceptance is by prefix, so an early slot is worth more than a late one (arXiv 2608.20530).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def greedy_walk(start: Tensor, pair: Tensor) -> Tensor:
    """Follow the best candidate from slot to slot.

    c_0 = argmax_j start[j]; c_{s+1} = argmax_j pair[s, c_s, j]. Compared in fp32; the lower index wins ties; NaN is never
    selected (a row of only NaN and -inf gives 0).

    Args:
        start: (N, K) scores of the first slot.
        pair: (N, S-1, K, K) scores of [slot, candidate, next slot's candidate].

    Returns:
        (N, S) int32 chosen candidate per slot.
    """
    lanes = torch.arange(start.shape[0], device=start.device)
    choice = _first_best(start)
    path = [choice]
    for slot in range(pair.shape[1]):
        choice = _first_best(pair[lanes, slot, choice])
        path.append(choice)
    return torch.stack(path, dim=1).to(torch.int32)


def sampled_walk(start: Tensor, pair: Tensor, temperature: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw each slot's candidate given the one drawn before it.

    q_s = softmax(row / T) over the row of the *sampled* predecessor; c_s is the smallest j with q_0 + … + q_j > u_s (fp32, left
    to right), or the last candidate with q > 0 when rounding leaves none. T = 0 is greedy, with one-hot q. A NaN entry has q = 0;
    +inf entries share everything; a row with nothing above -inf takes candidate 0, with one-hot q: q is always what was drawn from.

    Args:
        start: (N, K) scores of the first slot.
        pair: (N, S-1, K, K) scores of [slot, candidate, next slot's candidate].
        temperature: (N) finite, ≥ 0.
        uniforms: (N, S) in [0, 1).

    Returns:
        path (N, S) int32; q (N, S, K) float32.
    """
    lanes = torch.arange(start.shape[0], device=start.device)
    row, path, proposals = start, [], []
    for slot in range(uniforms.shape[1]):
        q = _proposal(row.float(), temperature.float()[:, None])
        choice = _draw(q, uniforms[:, slot, None])
        path.append(choice)
        proposals.append(q)
        if slot < pair.shape[1]:
            row = pair[lanes, slot, choice]
    return torch.stack(path, dim=1).to(torch.int32), torch.stack(proposals, dim=1)


def _proposal(row: Tensor, temperature: Tensor) -> Tensor:
    """(N, K) fp32 scores and (N, 1) temperatures → (N, K) distribution."""
    row = torch.where(row.isnan(), float("-inf"), row)
    best = row.amax(dim=-1, keepdim=True)
    # Equality first: the difference of two infinities is NaN.
    weights = torch.where(row == best, 1.0, ((row - best) / temperature).exp()).nan_to_num(0.0)
    point = torch.nn.functional.one_hot(_first_best(row), row.shape[-1]).float()
    is_point = (temperature == 0) | (best == float("-inf"))
    return torch.where(is_point, point, weights / weights.sum(dim=-1, keepdim=True))


def _draw(q: Tensor, uniform: Tensor) -> Tensor:
    """(N, K) distribution and (N, 1) uniforms → (N) index. Summed by hand: torch.cumsum accumulates in double on a CPU."""
    reached = torch.stack(list(itertools.accumulate(q.unbind(dim=-1))), dim=-1) > uniform
    last = q.shape[-1] - 1 - (q > 0).flip(-1).int().argmax(dim=-1)
    return torch.where(reached.any(dim=-1), reached.int().argmax(dim=-1), last)


def _first_best(row: Tensor) -> Tensor:
    """Lowest index of the largest non-NaN entry (torch.argmax documents "first of the maximal values")."""
    row = row.float()
    return torch.where(row.isnan(), float("-inf"), row).argmax(dim=-1)
