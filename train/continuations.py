"""The target's own continuations of a prompt file, greedy or sampled, made once and kept in a file beside it.

The file's name carries a hash of the target, the length and the temperature; each line is one prompt and seed, so that more
prompts or seeds add lines. What is kept are token ids: acceptance is counted in tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.prompts import Prompt
from lilicorr.train.chat import encode_chat
from lilicorr.train.generate import greedy_batch, sampled_batch
from lilicorr.train.progress import Progress
from lilicorr.train.target import stop_token_ids

BATCH_SIZE = 16


@dataclass(frozen=True)
class Continuation:
    """The opening of a prompt in the chat template, and the tokens the target answers; the last may be a stop token."""

    id: str
    category: str
    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]


def continuations(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    file: Path,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seeds: Sequence[int] = (0,),
) -> list[Continuation]:
    """One per prompt and seed, in that order; prompts that do not fit the target's context are left out. Greedy with temperature 0.

    Args:
        file: Read and appended to, see `cache_file`.

    Raises:
        UserError: the template refuses a prompt, none fits, or `file` cannot be read or written.
    """
    room = model.config.max_position_embeddings - max_new_tokens
    encoded = [(prompt, _opening(tokenizer, prompt)) for prompt in prompts]
    wanted = [(prompt, ids, seed) for prompt, ids in encoded if len(ids) <= room for seed in seeds]
    if not wanted:
        raise UserError(
            f"no prompt fits the target's context with {max_new_tokens} new tokens", hint="--max-new-tokens"
        )
    known = _read(file)
    todo = sorted((w for w in wanted if (w[1], w[2]) not in known), key=lambda w: len(w[1]))
    progress = Progress(len(todo))
    stop_ids, tokens = stop_token_ids(model, tokenizer), 0
    for begin in range(0, len(todo), BATCH_SIZE):
        batch = todo[begin : begin + BATCH_SIZE]
        ids = [ids for _, ids, _ in batch]
        if temperature:
            own = [_seed(prompt_ids, seed) for _, prompt_ids, seed in batch]
            answers = sampled_batch(
                model, ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids, temperature=temperature, seeds=own
            )
        else:
            answers = greedy_batch(model, ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        made = {(w[1], w[2]): tuple(answer) for w, answer in zip(batch, answers, strict=True)}
        _append(file, made)
        known |= made
        tokens += sum(map(len, answers))
        progress.advance(len(batch), tokens)
    return [Continuation(prompt.id, prompt.category, ids, known[ids, seed]) for prompt, ids, seed in wanted]


def _opening(tokenizer: Any, prompt: Prompt) -> tuple[int, ...]:
    try:
        return tuple(encode_chat(tokenizer, prompt.conversation()))
    except UserError as error:
        raise error.at(prompt.where) from None


def cache_file(folder: Path, name: str, model: Any, max_new_tokens: int, temperature: float) -> Path:
    """`folder/name.continuations-HASH.jsonl`, one per target, length and temperature."""
    config = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
    weights = model.get_input_embeddings().weight[:16].float().cpu().numpy().tobytes()
    norm = model.model.norm.weight.float().cpu().numpy().tobytes()
    key = hashlib.sha256(config.encode() + weights + norm + f"{max_new_tokens} {temperature}".encode())
    return folder / f"{name}.continuations-{key.hexdigest()[:12]}.jsonl"


def _seed(prompt_ids: Sequence[int], seed: int) -> int:
    """Another stream per prompt, the same in every batch and on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed} {prompt_ids}".encode()).digest()[:7], "big")


def _read(file: Path) -> dict[tuple[tuple[int, ...], int], tuple[int, ...]]:
    """(prompt ids, seed) → tokens; a half-written last line is left out."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        records = [json.loads(line) for line in lines]
        return {(tuple(r["prompt"]), r["seed"]): tuple(r["tokens"]) for r in records}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"`{file}` cannot be read: {error!r}", hint=f"rm {file}") from None


def _append(file: Path, made: dict[tuple[tuple[int, ...], int], tuple[int, ...]]) -> None:
    lines = [json.dumps({"prompt": ids, "seed": seed, "tokens": tokens}) + "\n" for (ids, seed), tokens in made.items()]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab+") as out:
            out.seek(0)
            out.truncate(out.read().rfind(b"\n") + 1)  # a line half written
            out.write("".join(lines).encode())
    except OSError as error:
        raise UserError(f"`{file}` cannot be written: {error.strerror}", hint="--cache FOLDER") from None
