"""The loss of one training step written straightforwardly: what `train_throughput.py` and a test compare the trainer with.

All block tokens attend in one dense (A·B) × (T + A·B) masked matrix, the drafter's logits and their log-softmax are whole tensors,
and the distractor penalty looks the target's logits up in a whole (T, V) tensor. Same anchors, same weights, same loss as
`Trainer.losses` with a LiLiCorr head and hard labels. Legend: A blocks of B rows, T text rows, S slots, K candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lilicorr.train.conversation import Conversation
from lilicorr.train.drafter import Drafter
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.trainer import Trainer


def dense_loss(trainer: Trainer, lm_head: Tensor, item: Conversation, generator: torch.Generator) -> Tensor:
    """The loss of `trainer.losses(item, generator)`; `lm_head` is the target's whole (V, H)."""
    recipe, drafter, tables = trainer.recipe, trainer.drafter, trainer.tables
    weights, config, head = recipe.objective, drafter.config, drafter.head
    assert isinstance(head, LiLiCorrHead)
    choices = torch.tensor(item.anchors)
    anchors = choices[torch.randperm(len(choices), generator=generator)[: recipe.anchors_per_sequence].sort().values]
    anchors = anchors.to(trainer.device)
    features, target_hidden = (t.to(trainer.device).float() for t in trainer.cache.get(item))
    ids = torch.tensor(item.ids, device=trainer.device)
    with torch.autocast(trainer.device.type, dtype=torch.bfloat16, enabled=recipe.bf16):
        context = drafter.context(features)
        positions = anchors[:, None] + torch.arange(config.block_size, device=trainer.device)
        tokens = torch.full_like(positions, config.mask_token_id)
        tokens[:, 0] = ids[anchors]
        hidden = dense_hidden(drafter, trainer.embeddings[tokens], context, positions)[:, 1:]
        logits = F.linear(hidden, tables.rows).float()
        log_q = logits.log_softmax(-1)
        inside = positions[:, 1:].clamp_max(len(ids) - 1)
        ends = [next(end for begin, end in item.answers if begin <= anchor < end) for anchor in anchors.tolist()]
        supervised = positions[:, 1:] < torch.tensor(ends, device=trainer.device)[:, None]
        gold = trainer.to_draft[ids[inside]]

        labelled = supervised & (gold >= 0)
        decay = torch.exp(-torch.arange(config.slots, device=trainer.device) / weights.decay) * labelled
        cross_entropy = -log_q.gather(-1, gold.clamp_min(0)[..., None]).squeeze(-1)
        loss = (decay * cross_entropy).sum() / (decay.sum() + 1e-6)

        best = logits.topk(head.candidate_topk, dim=-1).indices
        candidates = tables.to_target(best)
        start, pair = head(trainer.embeddings[candidates], log_q.gather(-1, best), hidden, context[anchors - 1])
        is_gold = best == gold[..., None]
        index = is_gold.int().argmax(-1)
        counted = supervised.all(-1, keepdim=True) & (is_gold.any(-1).cumprod(-1) > 0)
        lanes = torch.arange(len(anchors), device=trainer.device)
        rows = [start, *(pair[lanes, s, index[:, s]] for s in range(config.slots - 1))]
        scores = torch.stack(rows, dim=1)
        count = counted.sum().clamp_min(1)
        log_p = scores.log_softmax(-1)
        loss = loss + weights.head_ce * (-log_p.gather(-1, index[..., None]).squeeze(-1) * counted).sum() / count
        with torch.no_grad():
            target_logits = F.linear(target_hidden, lm_head.to(tables.rows.dtype)).float()  # (T, V)
            z = target_logits[inside - 1].gather(-1, candidates)
        worse = F.relu(z.gather(-1, index[..., None]) - z)
        return loss + weights.head_penalty * ((log_p.exp() * worse).sum(-1) * counted).sum() / count


def dense_hidden(drafter: Drafter, blocks: Tensor, context: Tensor, positions: Tensor) -> Tensor:
    """Final normed rows (A, B, H) of blocks (A, B, H) over context (T, H), with one mask over all keys."""
    A, B, H = blocks.shape
    T, rows = len(context), A * B
    owner = torch.arange(rows, device=blocks.device) // B
    visible = torch.cat(
        [
            torch.arange(T, device=blocks.device) < positions[:, :1].expand(A, B).reshape(-1, 1),
            owner[:, None] == owner[None, :],
        ],
        dim=1,
    )  # (A·B, T + A·B)
    x = blocks.reshape(rows, H).float()
    block_rope, context_rope = drafter.rotary(positions.flatten()), drafter.rotary(torch.arange(T, device=x.device))
    for layer in drafter.layers:
        attention = layer.self_attn

        def attend(q: Tensor, k: Tensor, v: Tensor, attention=attention) -> Tensor:
            k_context, v_context = attention.keys_values(context, context_rope)
            repeats = q.shape[0] // k.shape[0]
            k, v = (torch.cat(p, dim=1).repeat_interleave(repeats, 0) for p in ((k_context, k), (v_context, v)))
            scores = (q @ k.transpose(-1, -2) * attention.head_dim**-0.5).float()
            return scores.masked_fill(~visible, float("-inf")).softmax(-1).to(v.dtype) @ v

        x = layer(x, block_rope, attend)
    return drafter.norm(x).view(A, B, H)
