"""The drafter's vocabulary product, reduced row by row: log-probabilities of a few tokens without the (rows, Vd) logits.

Memory is bounded by `chunk`: only that many rows of logits exist at a time, forward and backward. The gradient needs no second
product, because with W the vocabulary rows  d logsumexp / d hidden = softmax(W hidden) W  is itself only H wide and is made in the
forward pass while the chunk's logits are there. W gets no gradient: it is the target's.

Legend: M rows, Vd draft vocabulary, H width, K candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lilicorr.train.norm import at_least_fp32


class Picked(NamedTuple):
    """What the objective reads of M rows of logits; all log-probs are over the whole draft vocabulary, fp32 or wider.

    Attributes:
        gold: (M,) log-prob of the gold token; that of draft id 0 where there is none.
        ids, log_probs: (M, K) the K best tokens, sorted, and their log-probs.
        soft: (M,) Σ_v p_target(v) · log-prob(v); 0 when it was not asked for.
    """

    gold: Tensor
    ids: Tensor
    log_probs: Tensor
    soft: Tensor


def pick(
    hidden: Tensor, rows: Tensor, gold: Tensor, topk: int, target_hidden: Tensor | None = None, *, chunk: int = 2048
) -> Picked:
    """Args:
    hidden: (M, H) the drafter's final normed rows, live.
    rows: (Vd, H) frozen vocabulary rows.
    gold: (M,) int64 draft ids, -1 for none.
    topk: K, at least 1.
    target_hidden: (M, H) the target's final normed rows, for `soft`.
    chunk: rows of logits at a time.
    """
    lse, gold_logit, top_logits, soft_logit, ids = _Pick.apply(
        hidden, rows, gold.clamp_min(0), topk, target_hidden, chunk
    )
    soft = soft_logit - lse if target_hidden is not None else torch.zeros_like(lse)
    return Picked(gold_logit - lse, ids, top_logits - lse[:, None], soft)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, rows: Tensor, gold: Tensor, topk: int, target_hidden: Tensor | None, chunk: int
    ) -> tuple[Tensor, ...]:
        lse, gold_logit, top, soft, ids, mean_rows, soft_rows = [], [], [], [], [], [], []
        for begin in range(0, len(hidden), chunk):
            part = slice(begin, begin + chunk)
            logits = F.linear(hidden[part], rows)
            best = logits.topk(topk, dim=-1)
            wide = at_least_fp32(logits)
            lse.append(wide.logsumexp(-1))
            ids.append(best.indices)
            top.append(at_least_fp32(best.values))
            gold_logit.append(wide.gather(-1, gold[part, None]).squeeze(-1))
            if target_hidden is not None:
                teacher = at_least_fp32(F.linear(target_hidden[part], rows)).softmax(-1)
                soft.append((teacher * wide).sum(-1))
                soft_rows.append(teacher.to(rows.dtype) @ rows)
            if ctx.needs_input_grad[0]:
                mean_rows.append(wide.sub_(lse[-1][:, None]).exp_().to(rows.dtype) @ rows)
        soft_logit = torch.cat(soft) if soft else hidden.new_zeros(len(hidden))
        outputs = torch.cat(lse), torch.cat(gold_logit), torch.cat(top), soft_logit, torch.cat(ids)
        if ctx.needs_input_grad[0]:
            saved_soft = torch.cat(soft_rows) if soft_rows else None
            ctx.save_for_backward(torch.cat(mean_rows), saved_soft, gold, outputs[4], rows)
            ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(outputs[4])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g_lse, g_gold, g_top, g_soft, _ = grads
        mean_rows, soft_rows, gold, ids, rows = ctx.saved_tensors
        grad = g_lse[:, None] * mean_rows + g_gold[:, None] * rows[gold]
        grad += torch.einsum("mk,mkh->mh", g_top, rows[ids].to(g_top.dtype))
        if soft_rows is not None:
            grad += g_soft[:, None] * soft_rows
        return grad.to(ctx.dtype), None, None, None, None, None


def in_chunks(function: Callable[..., tuple[Tensor, ...]], chunk: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """`function` over `chunk` rows at a time, its results joined; what it makes in between is made again in the backward pass.

    For heads whose vocabulary product has weights of its own, which `pick` does not serve.
    """
    parts = []
    for begin in range(0, len(tensors[0]), chunk):
        rows = [t[begin : begin + chunk] for t in tensors]
        parts.append(checkpoint(function, *rows, use_reentrant=False))
    return tuple(torch.cat(results) for results in zip(*parts, strict=True))
