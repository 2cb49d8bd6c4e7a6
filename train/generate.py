"""Batched decoding of a Hugging Face causal language model, greedy or sampled, in plain torch.

Prompts of unequal length are padded on the left; lanes that have ended leave the batch. No speculation, no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Choose = Callable[[Tensor, Sequence[int]], Tensor]
"""(logits (N, V) of the running lanes, their prompt numbers) → (N,) chosen tokens."""

COMPACT_AT = 0.75  # share of running lanes below which the cache is copied without the ended ones


def greedy_batch(
    model: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, stop_ids: frozenset[int]
) -> list[list[int]]:
    """Greedy continuations of `prompts`; each ends with its first stop token (kept) or after `max_new_tokens`.

    Args:
        model: A transformers causal language model in eval mode.
        prompts: Token ids, each prompt at least one token long.
        max_new_tokens: At least 1.
        stop_ids: Tokens that end a lane.
    """
    return _decode(model, prompts, lambda logits, lanes: logits.argmax(-1), max_new_tokens, stop_ids)


def sampled_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    temperature: float,
    seeds: Sequence[int],
) -> list[list[int]]:
    """As `greedy_batch`, drawn from softmax(logits / temperature), temperature > 0.

    Every prompt has a seed of its own, so that its answer does not depend on which prompts it is decoded with (but for rounding).
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def draw(logits: Tensor, lanes: Sequence[int]) -> Tensor:
        uniforms = torch.cat([torch.rand(1, 1, generator=generators[lane], dtype=torch.float64) for lane in lanes])
        reached = (logits.double() / temperature).softmax(-1).cumsum(-1)
        # Scaled by the last sum, which rounding leaves near 1: there is always a token above the uniform.
        return (reached > uniforms.to(logits.device) * reached[:, -1:]).int().argmax(-1)

    return _decode(model, prompts, draw, max_new_tokens, stop_ids)


@torch.inference_mode()
def _decode(
    model: Any, prompts: Sequence[Sequence[int]], choose: Choose, max_new_tokens: int, stop_ids: frozenset[int]
) -> list[list[int]]:
    from transformers import DynamicCache

    tokens, mask = _pad_left(prompts, model.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    answers: list[list[int]] = [[] for _ in prompts]
    lanes = list(range(len(prompts)))  # batch row -> prompt
    # An index, not the number 1: a slice of the prompts' rows is strided, and torch then copies the vocabulary table per lane.
    last = torch.tensor([-1], device=model.device)
    for step in range(max_new_tokens):
        # By position: transformers 5 renames the keyword of the fourth argument (past_key_values, then cache).
        logits = model(tokens, mask, positions, cache, logits_to_keep=last).logits[:, -1]  # (N, V)
        tokens = choose(logits, lanes)[:, None]
        running = []
        for row, token in enumerate(tokens[:, 0].tolist()):
            answer = answers[lanes[row]]
            if answer and answer[-1] in stop_ids:
                continue
            answer.append(token)
            if token not in stop_ids:
                running.append(row)
        if not running or step + 1 == max_new_tokens:
            break
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(lanes), 1)], 1)
        if len(running) <= COMPACT_AT * len(lanes):
            keep = torch.tensor(running, device=tokens.device)
            tokens, mask, positions = tokens[keep], mask[keep], positions[keep]
            cache.batch_select_indices(keep)
            lanes = [lanes[row] for row in running]
    return answers


def _pad_left(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both (N, longest) int64; padded places hold token 0 and mask 0."""
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor(mask, device=device)
