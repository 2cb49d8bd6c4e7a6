"""Acceptance of a drafter on the target's own continuations: exact replay of speculative decoding, all rounds of a text at once.

At temperature 0 the continuation is greedy and a draft is accepted while it equals it: the rounds are those of `replay` and of the
runtime's loop. At temperature T the continuation is sampled from the target and the same comparison is the standard rule for greedy
drafts: with a point mass as proposal a draft d is accepted with probability p(d), and the sampled token is d with probability p(d).

The drafts of every possible anchor are made in one batched forward; the walk over the rounds then only reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lilicorr.runtime.prompts import read_prompts
from lilicorr.runtime.stats import drafted
from lilicorr.train.checkpoint import read_drafter
from lilicorr.train.continuations import Continuation, cache_file, continuations
from lilicorr.train.drafter import Drafter
from lilicorr.train.progress import Progress
from lilicorr.train.replay import tables_of
from lilicorr.train.target import load_target, target_features

ORACLE_TOPK = 8  # candidates per slot that the oracle may choose from, where the head names no number of its own
ANCHORS_AT_ONCE = 64


@dataclass(frozen=True)
class Rounds:
    """The rounds of one continuation; every list has one entry per round.

    Attributes:
        accepted: drafts accepted.
        offered: drafts verified: S, or fewer where the limit on new tokens leaves no room for them and the target's own token.
        emitted: tokens the round adds: accepted + 1, or fewer at the end of the text.
        argmax, oracle: leading slots whose token is the drafter's most probable one; is among its K best.
    """

    accepted: list[int]
    offered: list[int]
    emitted: list[int]
    argmax: list[int]
    oracle: list[int]


@torch.inference_mode()
def rounds_of(
    model: Any, drafter: Drafter, item: Continuation, features: Tensor, max_new_tokens: int
) -> tuple[Rounds, Rounds]:
    """Replay one continuation: with the head's drafts, and with each slot's most probable token.

    Args:
        features: (1, T, F·H) of prompt and continuation, see `target_features`.
        max_new_tokens: The limit under which the continuation was made; a shorter one ended by itself.
    """
    if len(item.tokens) < 2:  # the first token comes from prefill
        return Rounds([], [], [], [], []), Rounds([], [], [], [], [])
    ids = torch.tensor([*item.prompt_ids, *item.tokens], device=model.device)
    slots, length = drafter.config.slots, len(ids)
    anchors = torch.arange(len(item.prompt_ids), length - 1, device=ids.device)
    positions = anchors[:, None] + 1 + torch.arange(slots, device=ids.device)
    gold = torch.where(positions < length, ids[positions.clamp_max(length - 1)], -1)
    drafts, best = _drafts(model, drafter, ids, drafter.context(features), anchors)
    accepted, argmax, oracle = (
        hit.cumprod(-1).sum(-1).tolist()
        for hit in (drafts == gold, best[..., 0] == gold, (best == gold[..., None]).any(-1))
    )
    room = max_new_tokens - len(item.tokens)
    return _walk(accepted, argmax, oracle, slots, room), _walk(argmax, argmax, oracle, slots, room)


def _walk(accepted: list[int], argmax: list[int], oracle: list[int], slots: int, room: int) -> Rounds:
    """The rounds, given for every possible anchor of the text how many drafts would be accepted there, and how many tokens more
    the text could have had."""
    result = Rounds([], [], [], [], [])
    at = 0
    while at < len(accepted):
        known = len(accepted) - at
        offered = min(slots, known + room - 1)
        emitted = min(accepted[at] + 1, known)
        result.accepted.append(min(accepted[at], offered))
        result.offered.append(offered)
        result.emitted.append(emitted)
        result.argmax.append(argmax[at])
        result.oracle.append(oracle[at])
        at += emitted
    return result


def _drafts(model: Any, drafter: Drafter, ids: Tensor, context: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Drafts (A, S) of the blocks at `anchors` and the K most probable target ids per slot (A, S, K)."""
    config, tables = drafter.config, tables_of(model, drafter)
    topk = min(config.output_size, config.lilicorr.candidate_topk if config.lilicorr else ORACLE_TOPK)
    embedding = model.get_input_embeddings()
    masks = ids.new_full((1, config.rows(config.slots) - 1), config.mask_token_id)
    drafts, best = [], []
    for part in anchors.split(ANCHORS_AT_ONCE):
        block = embedding(torch.cat([ids[part][:, None], masks.expand(len(part), -1)], dim=1))
        hidden = drafter(block[None], context, part[None])[0, :, config.first_row :][:, : config.slots]
        hidden = hidden.contiguous()  # of a slice the vocabulary product would be made block by block, 5 times slower
        drafts.append(drafter.drafting.draft(hidden, ids[part], context[0, part - 1], tables))
        best.append(tables.to_target(tables.logits(hidden).topk(topk, dim=-1).indices))
    return torch.cat(drafts), torch.cat(best)


def summary(rounds: Sequence[Rounds]) -> dict[str, Any]:
    """Acceptance length is the mean over the rounds of each text that drafted, then over the texts that had one."""
    seen = [r for r in rounds if r.emitted]
    accepted = [n for r in seen for n in r.accepted]
    offered = [n for r in seen for n in r.offered]
    slots = range(1, max(offered, default=0) + 1)
    return {
        "texts": len(seen),
        "rounds": len(accepted),
        "acceptance_length": _mean(
            [sum(lengths) / len(lengths) for r in seen if (lengths := drafted(r.emitted, r.offered))]
        ),
        "slot_acceptance": [sum(n >= slot for n in accepted) / sum(n >= slot for n in offered) for slot in slots],
        "accepted_prefix": _mean(accepted),
        "top1_prefix": _mean([n for r in seen for n in r.argmax]),
        "oracle_prefix": _mean([n for r in seen for n in r.oracle]),
    }


def evaluate(
    checkpoints: Sequence[Path],
    target_dir: Path,
    prompt_files: Sequence[Path],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seeds: int = 1,
    limit: int | None = None,
    cache: Path | None = None,
) -> list[dict[str, Any]]:
    """One result per checkpoint and prompt file: `summary` of all its texts, of each category, and of the drafter without its head.

    Args:
        seeds: Continuations per prompt, at temperature > 0.
        limit: Prompts per file.
        cache: Folder of the continuations; None: beside each prompt file.

    Raises:
        UserError: an unusable target, checkpoint or prompt file, or continuations that cannot be written.
    """
    from transformers import AutoTokenizer

    drafters = [read_drafter(folder).float() for folder in checkpoints]
    model = load_target(target_dir)
    tokenizer = AutoTokenizer.from_pretrained(target_dir, local_files_only=True)
    results = []
    for path in prompt_files:
        items = continuations(
            model,
            tokenizer,
            read_prompts(path, limit),
            cache_file(cache or path.parent, path.stem, model, max_new_tokens, temperature),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seeds=range(seeds) if temperature else (0,),
        )
        replays: list[list[tuple[Rounds, Rounds]]] = [[] for _ in drafters]
        progress, tokens = Progress(len(items)), 0
        for item in items:
            features: dict[tuple[int, ...], Tensor] = {}
            ids = torch.tensor([[*item.prompt_ids, *item.tokens]], device=model.device)
            for drafter, seen in zip(drafters, replays, strict=True):
                layers = drafter.config.target_layer_ids
                if layers not in features:
                    features[layers], _ = target_features(model, ids, layers)
                seen.append(rounds_of(model, drafter, item, features[layers], max_new_tokens))
            tokens += len(item.tokens)
            progress.advance(1, tokens)
        categories = list(dict.fromkeys(item.category for item in items))
        for folder, drafter, seen in zip(checkpoints, drafters, replays, strict=True):
            grouped = {
                name: [pair for item, pair in zip(items, seen, strict=True) if item.category == name]
                for name in categories
            }
            results.append(
                {
                    "checkpoint": str(folder),
                    "head": drafter.config.head.kind if drafter.config.head else "none",
                    "prompts": path.stem,
                    "temperature": temperature,
                    "max_new_tokens": max_new_tokens,
                    **summary([own for own, _ in seen]),
                    "acceptance_length_without_head": summary([plain for _, plain in seen])["acceptance_length"],
                    "categories": {name: summary([own for own, _ in pairs]) for name, pairs in grouped.items()},
                }
            )
    return results


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
