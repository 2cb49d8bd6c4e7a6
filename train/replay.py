"""Greedy speculative decoding of one sequence in plain torch: the reference that bundles and training are measured against.

`replay` decodes, forwarding the whole text through the target in every round. `acceptance_on_continuation` goes through the
same rounds over a greedy continuation that is already known, with one forward of the target. No cache in either, no
batch, no speed: written to be read.

A round drafts from the target's features strictly before the anchor (the last committed token), verifies the draft,
commits the matching prefix and the target's own next token, which is the next anchor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lilicorr.train.drafter import Drafter
from lilicorr.train.heads import NoHead, Tables
from lilicorr.train.target import target_features


@dataclass(frozen=True)
class ReplayRound:
    draft_tokens: tuple[int, ...]
    accepted: int  # leading drafts among the tokens committed
    emitted: int  # tokens committed: accepted + 1, or fewer when a stop token or the length limit cut them


@dataclass(frozen=True)
class Replay:
    tokens: tuple[int, ...]  # everything after the prompt; the first comes from prefill, not from a round
    rounds: tuple[ReplayRound, ...]

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per round; nan when there was none."""
        return sum(r.emitted for r in self.rounds) / len(self.rounds) if self.rounds else float("nan")


@torch.inference_mode()
def replay(
    model: Any,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    stop_ids: Collection[int],
    block_size: int | None = None,
    use_head: bool = True,
) -> Replay:
    """Decode greedily with speculation; the tokens are those of plain greedy decoding.

    Args:
        model: The target, a transformers causal language model in eval mode.
        prompt_ids: At least one token.
        max_new_tokens: At least 1.
        stop_ids: Decoding ends with the first of these, which is kept.
        block_size: Anchor and slots; 1 is plain decoding. Default: as trained.
        use_head: False drafts each slot's most probable token.

    Raises:
        ValueError: block_size below 1 or above the trained one.
    """
    slots = _slots(drafter, block_size)
    layer_ids = drafter.config.target_layer_ids
    lm_head = model.get_output_embeddings()
    tables = tables_of(model, drafter)
    text = list(prompt_ids)
    _, last_hidden = target_features(model, _row(model, text), layer_ids)
    text.append(int(lm_head(last_hidden[:, -1]).argmax(-1)))
    rounds = []
    while len(text) - len(prompt_ids) < max_new_tokens and text[-1] not in stop_ids:
        anchor = len(text) - 1
        features, _ = target_features(model, _row(model, text[:anchor]), layer_ids)
        drafted = draft(model, drafter, text[anchor], drafter.context(features), anchor, slots, use_head, tables)
        _, last_hidden = target_features(model, _row(model, text + drafted), layer_ids)
        best = lm_head(last_hidden[0, anchor:]).argmax(-1).tolist()  # best[i] follows text[:anchor + 1 + i]
        accepted = _matching(drafted, best)
        committed = [*drafted[:accepted], best[accepted]]
        committed = _until_stop(committed, stop_ids)[: max_new_tokens - (len(text) - len(prompt_ids))]
        text += committed
        rounds.append(ReplayRound(tuple(drafted), min(accepted, len(committed)), len(committed)))
    return Replay(tuple(text[len(prompt_ids) :]), tuple(rounds))


@torch.inference_mode()
def acceptance_on_continuation(
    model: Any,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    continuation_ids: Sequence[int],
    block_size: int | None = None,
    use_head: bool = True,
) -> Replay:
    """The rounds `replay` would go through, given that `continuation_ids` (not empty) is the target's greedy continuation.

    Raises:
        ValueError: block_size below 1 or above the trained one.
    """
    slots = _slots(drafter, block_size)
    text = [*prompt_ids, *continuation_ids]
    features, _ = target_features(model, _row(model, text), drafter.config.target_layer_ids)
    context, tables = drafter.context(features), tables_of(model, drafter)
    rounds = []
    anchor = len(prompt_ids)
    while anchor + 1 < len(text):
        drafted = draft(model, drafter, text[anchor], context, anchor, slots, use_head, tables)
        known = text[anchor + 1 :]
        accepted = _matching(drafted, known)
        emitted = min(accepted + 1, len(known))
        rounds.append(ReplayRound(tuple(drafted), accepted, emitted))
        anchor += emitted
    return Replay(tuple(continuation_ids), tuple(rounds))


def draft(
    model: Any,
    drafter: Drafter,
    anchor_id: int,
    context: Tensor,
    anchor: int,
    slots: int,
    use_head: bool = True,
    tables: Tables | None = None,
) -> list[int]:
    """The tokens proposed for positions anchor + 1 … anchor + slots.

    Args:
        anchor_id: The token at position `anchor`.
        context: (1, C, H) fused context rows at positions 0 … C-1, C ≥ anchor ≥ 1; rows from `anchor` on are not used.
        tables: Of this model and drafter (`tables_of`), for callers that draft often.
    """
    if slots == 0:
        return []
    config = drafter.config
    tables = tables or tables_of(model, drafter)
    ids = _row(model, [anchor_id] + [config.mask_token_id] * (config.rows(slots) - 1))
    block = model.get_input_embeddings()(ids)  # (1, rows, H)
    rows = drafter(block[:, None], context[:, :anchor], _row(model, [anchor]))[:, 0]
    hidden = rows[:, config.first_row :][:, :slots]
    head = drafter.drafting if use_head else NoHead()
    return head.draft(hidden, ids[:, 0], context[:, anchor - 1], tables)[0].tolist()


def tables_of(model: Any, drafter: Drafter) -> Tables:
    """What the drafter's head reads of `model`."""
    return drafter.tables(model.get_input_embeddings().weight, model.get_output_embeddings().weight)


def _slots(drafter: Drafter, block_size: int | None) -> int:
    trained = drafter.config.slots + 1
    served = trained if block_size is None else block_size
    if not 1 <= served <= trained:
        raise ValueError(f"block_size is {served}, expected 1 to {trained} (as trained)")
    return served - 1


def _row(model: Any, ids: Sequence[int]) -> Tensor:
    return torch.tensor([ids], device=model.device)


def _matching(drafted: Sequence[int], expected: Sequence[int]) -> int:
    """Length of the common prefix."""
    count = 0
    for a, b in zip(drafted, expected, strict=False):
        if a != b:
            break
        count += 1
    return count


def _until_stop(tokens: list[int], stop_ids: Collection[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens
