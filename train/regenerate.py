"""The target's own responses to a prompt file, greedy or sampled: what a drafter is trained on.

One JSON line per prompt, in no particular order. One question: `id`, `category`, `turns`, `response`, `finished` (true when
the target ended by itself within the limit). A chat of several turns or with a system message: `id`, `category`, `messages`,
each turn answered by the target after its own answers, which have `finished` of their own.

Whole batches are appended, so a stopped run loses at most the batch in work; the same command goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.prompts import Prompt, read_prompts
from lilicorr.train.progress import Progress
from lilicorr.train.responders import Responder, Response

MAX_NEW_TOKENS = 192
BATCH_SIZE = 32


@dataclass(frozen=True)
class Regenerated:
    """What one call did; `seconds` and `tokens` exclude loading and earlier runs."""

    prompts: int  # different ids in the prompt file
    repeated: int  # lines of it with the id of an earlier one; skipped
    already_done: int
    too_long: int  # the first turn and its answer do not fit the target's context; skipped
    cut_short: int  # a later turn does not fit or is refused; written up to there
    written: int
    answers: int
    finished: int  # of the answers
    tokens: int
    seconds: float


def regenerate(
    responder: Callable[[], Responder], prompts_file: Path, out_file: Path, *, batch_size: int = BATCH_SIZE
) -> Regenerated:
    """Append the responses of a target to `out_file`, skipping the ids it holds.

    Args:
        responder: Makes who answers; called only when there is something left to answer.

    Raises:
        UserError: target, prompt file or output unusable, the template refuses a prompt, or a line of `out_file` is not a
            response.
    """
    read = read_prompts(prompts_file)
    prompts = {prompt.id: prompt for prompt in reversed(read)}  # the first of equal ids wins
    repeated = len(read) - len(prompts)
    done = resume(out_file)
    todo = [prompt for id, prompt in reversed(prompts.items()) if id not in done]
    already = len(prompts.keys() & done)
    if not todo:
        return Regenerated(len(prompts), repeated, already, 0, 0, 0, 0, 0, 0, 0.0)

    answering = responder()
    for prompt in todo:
        try:
            answering.check(prompt.conversation(["…"] * (len(prompt.turns) - 1)))
        except UserError as error:
            raise error.at(prompt.where) from None
    fitting = [todo[i] for i in answering.order([prompt.conversation() for prompt in todo])]
    batches = [fitting[i : i + batch_size] for i in range(0, len(fitting), batch_size)]
    random.Random(0).shuffle(batches)  # a run that is stopped early has seen prompts of every length
    progress = Progress(len(fitting))

    tokens = answers = finished = written = cut_short = 0
    with out_file.open("a", encoding="utf-8") as out:
        for batch in batches:
            for prompt, responses in zip(batch, _answers(answering, batch), strict=True):
                if not responses:
                    continue
                out.write(json.dumps(_line(prompt, responses)) + "\n")
                written, cut_short = written + 1, cut_short + (len(responses) < len(prompt.turns))
                answers, finished = answers + len(responses), finished + sum(r.finished for r in responses)
                tokens += sum(r.tokens for r in responses)
            out.flush()
            progress.advance(len(batch), tokens)
    return Regenerated(
        prompts=len(prompts),
        repeated=repeated,
        already_done=already,
        too_long=len(todo) - written,
        cut_short=cut_short,
        written=written,
        answers=answers,
        finished=finished,
        tokens=tokens,
        seconds=round(time.monotonic() - progress.began, 1),
    )


def _answers(answering: Responder, prompts: Sequence[Prompt]) -> list[list[Response]]:
    """The responses to the turns of each prompt, up to the first turn that does not fit the context."""
    answers: list[list[Response]] = [[] for _ in prompts]
    running = [*range(len(prompts))]
    while running:
        chats = [prompts[i].conversation([response.text for response in answers[i]]) for i in running]
        responses = answering.answer(chats)
        for i, response in zip(running, responses, strict=True):
            if response is not None:
                answers[i].append(response)
        answered = [i for i, response in zip(running, responses, strict=True) if response is not None]
        running = [i for i in answered if len(answers[i]) < len(prompts[i].turns)]
    return answers


def _line(prompt: Prompt, responses: Sequence[Response]) -> dict[str, Any]:
    named = {"id": prompt.id, "category": prompt.category}
    if len(prompt.turns) == 1 and prompt.system is None:
        return named | {"turns": [*prompt.turns], "response": responses[0].text, "finished": responses[0].finished}
    answered = dataclasses.replace(prompt, turns=prompt.turns[: len(responses)])
    finished = iter(response.finished for response in responses)
    messages = [
        {**message, "finished": next(finished)} if message["role"] == "assistant" else message
        for message in answered.conversation([response.text for response in responses])
    ]
    return named | {"messages": messages}


def resume(out_file: Path) -> set[str]:
    """The ids `out_file` holds (empty when there is no such file); a last line of ours that is half written is cut off.

    A last line that only lacks its end is kept. Nothing is changed in a file that holds anything else.

    Raises:
        UserError: a line is not JSON with an `id`, or the file or its folder cannot be written.
    """
    try:
        out_file.parent.mkdir(parents=True, exist_ok=True)
        with out_file.open("a+b") as file:
            file.seek(0)
            data = file.read()
            whole = data.rfind(b"\n") + 1
            lines, tail = data[:whole].splitlines(), data[whole:]
            ids = {_id(out_file, number, line) for number, line in enumerate(lines, 1)}
            if tail and _is_half(tail):
                file.truncate(whole)
            elif tail:
                ids.add(_id(out_file, len(lines) + 1, tail))
                file.write(b"\n")
    except OSError as error:
        raise UserError(f"`{out_file}` cannot be written: {error.strerror}", hint="choose another --out") from None
    return ids


def _is_half(tail: bytes) -> bool:
    """Whether it is the beginning of a line as `_line` makes them, and no whole one."""
    begin = b'{"id": '
    if tail[: len(begin)] != begin[: len(tail)]:
        return False
    try:
        json.loads(tail)
    except ValueError:
        return True
    return False


def _id(out_file: Path, number: int, line: bytes) -> str:
    try:
        value = json.loads(line)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        value = None
    if not isinstance(value, str | int):
        raise UserError(
            f"`{out_file}` line {number} is not a response: expected a JSON object with an `id`, "
            f"found {line[:40].decode(errors='replace')!r}",
            hint=f"remove line {number}, or choose another --out",
        )
    return str(value)
