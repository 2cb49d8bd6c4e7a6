"""Measure a bundle: every prompt answered plainly and speculatively on the same engines, interleaved, and compared.

Interleaving prompt by prompt lets both modes see the same noise of the machine. `bench_summary` makes the
numbers, `bench_report` prints them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from lilicorr.runtime.bench_summary import Answered, progress_line, ratio, summarise
from lilicorr.runtime.block_choice import TIMED
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.lossless import compare
from lilicorr.runtime.prompts import Prompt
from lilicorr.runtime.session import Session
from lilicorr.runtime.tokenizer import Message

_STEP_REPEATS = 9


def run_bench(
    session: Session,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    *,
    block_size: int | None = None,
    compare_argmax: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Answer `prompts` and return the report; `summarise` makes most of it, and its keys say what they hold.

    Args:
        session: An open bundle.
        prompts: Conversations; each answer joins the conversation before the next turn.
        max_new_tokens: Per answer.
        block_size: As in `Options`.
        compare_argmax: Also draft without the head, to show what the head adds.
        progress: Called with a line after each prompt.

    Raises:
        UserError: no prompt fits the context.
    """
    fitting = [prompt for prompt in prompts if _fits(session, prompt.conversation())]
    if not fitting:
        raise UserError(
            f"no prompt fits the bundle's context of {session.manifest.limits.max_context} tokens",
            hint="lilicorr-export build … --max-context N",
        )
    warm = session.tokenizer.as_prompt(fitting[0].conversation())
    # Untimed: pages in weights, touches buffers, makes the rounds by whose times blocks are chosen.
    rounds, block = TIMED + 1, session.manifest.drafter.block_size
    session.generate(warm, max_new_tokens=1 + rounds * (block + 1), block_size=block_size)
    answered = []
    for number, prompt in enumerate(fitting, start=1):
        answered.append(
            _answer(session, prompt, max_new_tokens, block_size, compare_argmax, plain_first=number % 2 == 0)
        )
        progress(f"{number}/{len(fitting)} {prompt.id}: {progress_line(answered[-1])}")
    widths = verify_cost(session)
    report = summarise(answered, precision=session.manifest.precision)
    report["skipped"] = [prompt.id for prompt in prompts if prompt not in fitting]
    report["verify_ms_by_width"] = widths
    report["break_even_tokens"] = ratio(report["round_ms"], report["plain_step_ms"])
    return report


def verify_cost(session: Session, context: int = 256) -> dict[str, float]:
    """Median milliseconds of a target step by width (1, 2, 4, … block size) at `context` rows, nothing committed."""
    steps, limits = session.loop.steps, session.manifest.limits
    rows = max(1, min(context, limits.max_context - steps.block_size))
    for _ in session.loop.run([[0] * rows], 1, block=1):
        pass
    powers = {1 << p for p in range(10) if 1 << p < steps.block_size}
    costs = {}
    for width in sorted({*powers, steps.block_size}):
        tokens = np.zeros((1, width), dtype=np.int32)
        times = []
        for _ in range(_STEP_REPEATS):
            start = time.perf_counter()
            steps.verify(tokens)
            times.append(time.perf_counter() - start)
        costs[str(width)] = 1e3 * median(times)
    return costs


def _answer(
    session: Session, prompt: Prompt, most: int, block_size: int | None, compare_argmax: bool, *, plain_first: bool
) -> Answered:
    """Answer all turns; stops before a turn that no longer fits the context."""
    one = Answered(prompt)
    for _ in prompt.turns:
        conversation = prompt.conversation([answer.text for answer in one.plain])
        if not _fits(session, conversation):
            break
        query = session.tokenizer.as_prompt(conversation)
        modes = ["plain", "speculative"] if plain_first else ["speculative", "plain"]
        for mode in [*modes, "argmax"] if compare_argmax else modes:
            result = session.generate(
                query,
                max_new_tokens=most,
                speculative=mode != "plain",
                block_size=block_size,
                use_head=mode != "argmax",
            )
            getattr(one, mode).append(result)
        plain, speculative = one.plain[-1], one.speculative[-1]
        one.verdicts.append(
            compare(
                plain.token_ids,
                speculative.token_ids,
                session.manifest.precision,
                partial(session.loop.top_two, session.encode(query)),
            )
        )
    return one


def _fits(session: Session, conversation: Sequence[Message]) -> bool:
    return len(session.encode(session.tokenizer.as_prompt(conversation))) < session.manifest.limits.max_context
