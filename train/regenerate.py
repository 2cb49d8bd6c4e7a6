"""The target's own greedy responses to a prompt file: what a drafter is trained on.

One JSON line per prompt, in no particular order: `id`, `category`, `turns`, `response`, `finished` (true when the
target ended by itself within the limit). Only the first user message is answered, and `turns` is cut to it, so a line
is always one question and one answer.

Whole batches are appended, so a stopped run loses at most the batch in work; the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.train.progress import Progress

MAX_NEW_TOKENS = 192
BATCH_SIZE = 32


@dataclass(frozen=True)
class Regenerated:
    """What one call did; `seconds` and `tokens` exclude loading and earlier runs."""

    prompts: int  # different ids in the prompt file
    already_done: int
    too_long: int  # prompt and answer do not fit the target's context; skipped
    written: int
    finished: int
    tokens: int
    seconds: float


def regenerate(
    target_dir: Path,
    prompts_file: Path,
    out_file: Path,
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_size: int = BATCH_SIZE,
) -> Regenerated:
    """Append the greedy responses of the target at `target_dir` to `out_file`, skipping the ids it holds.

    Raises:
        UserError: target, prompt file or output unusable, or a line of `out_file` (but the last) is not a response.
    """
    from transformers import AutoTokenizer

    from lilicorr.runtime.prompts import read_prompts
    from lilicorr.train.data import encode_question
    from lilicorr.train.generate import greedy_batch
    from lilicorr.train.target import load_target

    prompts = {prompt.id: prompt for prompt in reversed(read_prompts(prompts_file))}  # the first of equal ids wins
    done = resume(out_file)
    todo = [prompt for id, prompt in reversed(prompts.items()) if id not in done]
    progress = Progress(len(todo))
    already = len(prompts.keys() & done)
    if not todo:
        return Regenerated(len(prompts), already, 0, 0, 0, 0, 0.0)

    model = load_target(target_dir)
    tokenizer = AutoTokenizer.from_pretrained(target_dir)
    stop_ids = stop_token_ids(model, tokenizer)
    room = model.config.max_position_embeddings - max_new_tokens
    encoded = [(prompt, encode_question(tokenizer, prompt.turns[0])) for prompt in todo]
    fitting = sorted((item for item in encoded if len(item[1]) <= room), key=lambda item: len(item[1]))
    batches = [fitting[i : i + batch_size] for i in range(0, len(fitting), batch_size)]
    random.Random(0).shuffle(batches)  # a run that is stopped early has seen prompts of every length

    tokens = finished = 0
    with out_file.open("a", encoding="utf-8") as out:
        for batch in batches:
            answers = greedy_batch(model, [ids for _, ids in batch], max_new_tokens=max_new_tokens, stop_ids=stop_ids)
            lines = []
            for (prompt, _), answer in zip(batch, answers, strict=True):
                ended = answer[-1] in stop_ids
                line = {
                    "id": prompt.id,
                    "category": prompt.category,
                    "turns": [prompt.turns[0]],
                    "response": tokenizer.decode(answer, skip_special_tokens=True),
                    "finished": ended,
                }
                lines.append(json.dumps(line) + "\n")
                tokens += len(answer)
                finished += ended
            out.write("".join(lines))
            out.flush()
            progress.advance(len(batch), tokens)
    return Regenerated(
        prompts=len(prompts),
        already_done=already,
        too_long=len(encoded) - len(fitting),
        written=len(fitting),
        finished=finished,
        tokens=tokens,
        seconds=round(time.monotonic() - progress.began, 1),
    )


def stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer: those of the generation config and the tokenizer's end-of-sequence token."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(id for id in [*ids, tokenizer.eos_token_id] if id is not None)


def resume(out_file: Path) -> set[str]:
    """The ids `out_file` holds (empty when there is no such file); a half-written last line is cut off.

    Raises:
        UserError: a whole line is not JSON with an `id`, or the file or its folder cannot be written.
    """
    try:
        out_file.parent.mkdir(parents=True, exist_ok=True)
        with out_file.open("a+b") as file:
            file.seek(0)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                file.truncate(whole)
    except OSError as error:
        raise UserError(f"`{out_file}` cannot be written: {error.strerror}", hint="choose another --out") from None
    ids = set()
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            ids.add(json.loads(line)["id"])
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"`{out_file}` line {number} is not a response: expected a JSON object with an `id`",
                hint=f"remove line {number}, or choose another --out",
            ) from None
    return ids
