"""Measure a bundle: every prompt answered plainly and speculatively on the same engines, interleaved, and compared.

Interleaving prompt by prompt lets both modes see the same noise of the machine. Returns numbers; `bench_report` prints them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.lossless import Verdict, compare
from lilicorr.runtime.prompts import Prompt
from lilicorr.runtime.session import Result, Session
from lilicorr.runtime.tokenizer import Message

_WARM_TOKENS = 16
_STEP_REPEATS = 9
PARTS = ("draft", "score", "verify", "host")


@dataclass
class Answered:
    """One prompt, all its turns."""

    prompt: Prompt
    plain: list[Result] = field(default_factory=list)
    speculative: list[Result] = field(default_factory=list)
    argmax: list[Result] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def run_bench(
    session: Session,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    *,
    compare_argmax: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Answer `prompts` and return the report; `summarise` makes most of it, and its keys say what they hold.

    Args:
        session: An open bundle.
        prompts: Conversations; each answer joins the conversation before the next turn.
        max_new_tokens: Per answer.
        compare_argmax: Also draft without the head, to show what the head adds.
        progress: Called with a line after each prompt.

    Raises:
        UserError: no prompt fits the context.
    """
    fitting = [prompt for prompt in prompts if _fits(session, [_user(prompt.turns[0])])]
    if not fitting:
        raise UserError(
            f"no prompt fits the bundle's context of {session.manifest.limits.max_context} tokens",
            hint="lilicorr-export build … --max-context N",
        )
    warm = _query(session, [_user(fitting[0].turns[0])])
    session.generate(warm, max_new_tokens=_WARM_TOKENS)  # untimed: pages in weights, touches buffers
    answered = []
    for number, prompt in enumerate(fitting, start=1):
        answered.append(_answer(session, prompt, max_new_tokens, compare_argmax, plain_first=number % 2 == 0))
        progress(f"{number}/{len(fitting)} {prompt.id}: {_summary(answered[-1])}")
    widths = verify_cost(session)
    report = summarise(answered, precision=session.manifest.precision)
    report["skipped"] = [prompt.id for prompt in prompts if prompt not in fitting]
    report["verify_ms_by_width"] = widths
    report["break_even_acceptance"] = _ratio(report["round_ms"], report["plain_step_ms"])
    return report


def verify_cost(session: Session, context: int = 256) -> dict[str, float]:
    """Median milliseconds of a target step by width (1, 2, 4, … block size) at `context` rows, nothing committed."""
    steps, limits = session.loop.steps, session.manifest.limits
    rows = min(context, limits.max_context - steps.block_size)
    for _ in session.loop.run([[0] * rows], 1, speculative=False):
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


def summarise(answered: Sequence[Answered], *, precision: str) -> dict[str, Any]:
    """The report of these answers: issue fields first, then details."""
    plain = [result for one in answered for result in one.plain]
    speculative = [result for one in answered for result in one.speculative]
    histogram = Counter(length for result in speculative for length in result.stats.acceptance)
    rates = {"speculative": _rate(speculative), "plain": _rate(plain)}
    verdicts = [(one, verdict) for one in answered for verdict in one.verdicts]
    kinds = Counter(verdict.kind for _, verdict in verdicts)
    seconds = {part: sum(getattr(r.stats, f"{part}_seconds") for r in speculative) for part in PARTS}
    whole = sum(seconds.values())
    report = {
        "acceptance_length": _acceptance(one.speculative for one in answered),
        "acceptance_histogram": {str(length): histogram[length] for length in sorted(histogram)},
        "tokens_per_second": rates,
        "speedup": _ratio(rates["speculative"], rates["plain"]),
        "ttft_ms": _ttft(speculative),
        "time_share": {part: _ratio(seconds[part], whole) for part in PARTS},
        "lossless": {"checked": len(verdicts), **{key: kinds[kind] for key, kind in _VERDICTS.items()}},
        "prompts": len(answered),
        "new_tokens": sum(result.stats.new_tokens for result in speculative),
        "rounds": sum(histogram.values()),
        "differences": [
            {"id": one.prompt.id, **verdict._asdict()} for one, verdict in verdicts if verdict.kind != "identical"
        ],
        "ttft_ms_plain": _ttft(plain),
        "round_ms": _ratio(1e3 * whole, sum(histogram.values())),
        "plain_step_ms": _ratio(1e3, rates["plain"]),
        "end_to_end_speedup": _ratio(_wall(plain), _wall(speculative)),
        "slot_acceptance": _slot_acceptance(speculative),
        "context_stops": sum(result.finish_reason == "context" for result in speculative),
        "by_category": _by_category(answered),
        "precision": precision,
    }
    if any(one.argmax for one in answered):
        argmax = [result for one in answered for result in one.argmax]
        report["acceptance_length_argmax"] = _acceptance(one.argmax for one in answered)
        report["tokens_per_second_argmax"] = _rate(argmax)
    return report


_VERDICTS = {"identical": "identical", "ties": "tie", "different": "different"}


def _answer(session: Session, prompt: Prompt, most: int, compare_argmax: bool, *, plain_first: bool) -> Answered:
    """Answer all turns; stops before a turn that no longer fits the context."""
    one, conversation = Answered(prompt), list[Message]()
    for turn in prompt.turns:
        conversation.append(_user(turn))
        if not _fits(session, conversation):
            break
        query = _query(session, conversation)
        ids = session.encode(query)
        modes = ["plain", "speculative"] if plain_first else ["speculative", "plain"]
        for mode in [*modes, "argmax"] if compare_argmax else modes:
            result = session.generate(
                query, max_new_tokens=most, speculative=mode != "plain", use_head=mode != "argmax"
            )
            getattr(one, mode).append(result)
        plain, speculative = one.plain[-1], one.speculative[-1]
        one.verdicts.append(
            compare(
                plain.token_ids,
                speculative.token_ids,
                session.manifest.precision,
                lambda start, ids=ids: session.loop.top_two(ids, start),  # type: ignore[misc]
            )
        )
        conversation.append({"role": "assistant", "content": plain.text})
    return one


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _query(session: Session, conversation: Sequence[Message]) -> str | Sequence[Message]:
    """A bundle without chat template continues the last message as plain text."""
    return conversation if session.tokenizer.has_template else conversation[-1]["content"]


def _fits(session: Session, conversation: Sequence[Message]) -> bool:
    return len(session.encode(_query(session, conversation))) < session.manifest.limits.max_context


def _acceptance(answers: Iterable[Sequence[Result]]) -> float | None:
    """Mean over the rounds of each prompt, then over prompts. A prompt answered by its prefill alone has no rounds."""
    rounds = [[length for result in results for length in result.stats.acceptance] for results in answers]
    return _mean([sum(lengths) / len(lengths) for lengths in rounds if lengths])


def _slot_acceptance(results: Sequence[Result]) -> list[float | None]:
    """Share of rounds that accepted slot j, of those that offered it."""
    pairs = [pair for r in results for pair in zip(r.stats.accepted, r.stats.offered, strict=True)]
    slots = max((offered for _, offered in pairs), default=0)
    return [
        _ratio(sum(accepted >= slot for accepted, _ in pairs), sum(offered >= slot for _, offered in pairs))
        for slot in range(1, slots + 1)
    ]


def _by_category(answered: Sequence[Answered]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Answered]] = {}
    for one in answered:
        groups.setdefault(one.prompt.category, []).append(one)
    report = {}
    for category, ones in groups.items():
        speculative = [result for one in ones for result in one.speculative]
        report[category] = {
            "prompts": len(ones),
            "acceptance_length": _acceptance(one.speculative for one in ones),
            "speedup": _ratio(_rate(speculative), _rate([result for one in ones for result in one.plain])),
        }
    return report


def _summary(one: Answered) -> str:
    length, rates = _acceptance([one.speculative]), (_rate(one.speculative), _rate(one.plain))
    if length is None or None in rates:
        return "answered by its first token"
    return f"acceptance {length:.2f}, {rates[0]:.1f} tokens/s, plain {rates[1]:.1f}, {one.verdicts[-1].kind}"


def _rate(results: Sequence[Result]) -> float | None:
    """Tokens after the prefill's over the time of all rounds."""
    tokens = sum(sum(result.stats.acceptance) for result in results)
    return _ratio(tokens, sum(result.stats.decode_seconds for result in results)) if tokens else None


def _ttft(results: Sequence[Result]) -> float | None:
    return _mean([1e3 * result.stats.prefill_seconds for result in results])


def _wall(results: Sequence[Result]) -> float:
    return sum(result.stats.prefill_seconds + result.stats.decode_seconds for result in results)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
