"""The greedy walk in plain PyTorch: the reference every other form of `lilicorr::GreedyWalk` must equal exactly.

Greedy, not Viterbi, on purpose: acceptance is by prefix, so an early slot is worth more than a late one (arXiv 2608.20530).
"""

from __future__ import annotations

import torch
from torch import Tensor


def greedy_walk(start: Tensor, pair: Tensor) -> Tensor:
    """Follow the best candidate from slot to slot.

    c_0 = argmax_j start[j]; c_{s+1} = argmax_j pair[s, c_s, j]. Compared in fp32; the lower index wins ties; NaN is never
    selected (a row of NaN or of -inf only gives 0).

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


def _first_best(row: Tensor) -> Tensor:
    """Lowest index of the largest non-NaN entry (torch.argmax documents "first of the maximal values")."""
    row = row.float()
    return torch.where(row.isnan(), float("-inf"), row).argmax(dim=-1)
