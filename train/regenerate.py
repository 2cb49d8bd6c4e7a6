"""The target's own responses to a prompt file, greedy or sampled: what a drafter is trained on.

One JSON line per prompt, in no particular order: `id`, `category`, `turns`, `response`, `finished` (true when the
target ended by itself within the limit). Only the first user message is answered, and `turns` is cut to it, so a line
is always one question and one answer.

Whole batches are appended, so a stopped run loses at most the batch in work; the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.prompts import read_prompts
from lilicorr.train.progress import Progress
from lilicorr.train.responders import Responder

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
    responder: Callable[[], Responder], prompts_file: Path, out_file: Path, *, batch_size: int = BATCH_SIZE
) -> Regenerated:
    """Append the responses of a target to `out_file`, skipping the ids it holds.

    Args:
        responder: Makes who answers; called only when there is something left to answer.

    Raises:
        UserError: target, prompt file or output unusable, or a line of `out_file` (but the last) is not a response.
    """
    prompts = {prompt.id: prompt for prompt in reversed(read_prompts(prompts_file))}  # the first of equal ids wins
    done = resume(out_file)
    todo = [prompt for id, prompt in reversed(prompts.items()) if id not in done]
    already = len(prompts.keys() & done)
    if not todo:
        return Regenerated(len(prompts), already, 0, 0, 0, 0, 0.0)

    answering = responder()
    fitting, too_long = answering.order(todo)
    batches = [fitting[i : i + batch_size] for i in range(0, len(fitting), batch_size)]
    random.Random(0).shuffle(batches)  # a run that is stopped early has seen prompts of every length
    progress = Progress(len(fitting))

    tokens = finished = written = 0
    with out_file.open("a", encoding="utf-8") as out:
        for batch in batches:
            for prompt, response in zip(batch, answering.answer(batch), strict=True):
                if response is None:
                    too_long += 1
                    continue
                line = {
                    "id": prompt.id,
                    "category": prompt.category,
                    "turns": [prompt.turns[0]],
                    "response": response.text,
                    "finished": response.finished,
                }
                out.write(json.dumps(line) + "\n")
                written, tokens, finished = written + 1, tokens + response.tokens, finished + response.finished
            out.flush()
            progress.advance(len(batch), tokens)
    return Regenerated(
        prompts=len(prompts),
        already_done=already,
        too_long=too_long,
        written=written,
        finished=finished,
        tokens=tokens,
        seconds=round(time.monotonic() - progress.began, 1),
    )


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
