"""The numbers of a bench report, from the answers that `bench` gathered. Runs nothing and prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lilicorr.runtime.lossless import Verdict
from lilicorr.runtime.prompts import Prompt
from lilicorr.runtime.session import Result
from lilicorr.runtime.stats import PARTS, drafted

_VERDICTS = {"identical": "identical", "ties": "tie", "different": "different"}


@dataclass
class Answered:
    """One prompt, all its turns."""

    prompt: Prompt
    plain: list[Result] = field(default_factory=list)
    speculative: list[Result] = field(default_factory=list)
    argmax: list[Result] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def summarise(answered: Sequence[Answered], *, precision: str) -> dict[str, Any]:
    """The report of these answers: issue fields first, then details."""
    plain = [result for one in answered for result in one.plain]
    speculative = [result for one in answered for result in one.speculative]
    histogram = Counter(length for result in speculative for length in result.stats.acceptance)
    blocks = Counter(1 + offered for result in speculative for offered in result.stats.offered)
    rates = {"speculative": _rate(speculative), "plain": _rate(plain)}
    verdicts = [(one, verdict) for one in answered for verdict in one.verdicts]
    kinds = Counter(verdict.kind for _, verdict in verdicts)
    seconds = {part: sum(result.stats.seconds[part] for result in speculative) for part in PARTS}
    whole = sum(seconds.values())
    report = {
        "acceptance_length": _acceptance(one.speculative for one in answered),
        "acceptance_histogram": {str(length): histogram[length] for length in sorted(histogram)},
        "block_histogram": {str(block): blocks[block] for block in sorted(blocks)},
        "tokens_per_second": rates,
        "speedup": ratio(rates["speculative"], rates["plain"]),
        "ttft_ms": _ttft(speculative),
        "time_share": {part: ratio(seconds[part], whole) for part in PARTS},
        "lossless": {"checked": len(verdicts), **{key: kinds[kind] for key, kind in _VERDICTS.items()}},
        "prompts": len(answered),
        "new_tokens": sum(result.stats.new_tokens for result in speculative),
        "rounds": sum(histogram.values()),
        "tokens_per_round": ratio(sum(length * count for length, count in histogram.items()), sum(histogram.values())),
        "differences": [
            {"id": one.prompt.id, **verdict._asdict()} for one, verdict in verdicts if verdict.kind != "identical"
        ],
        "ttft_ms_plain": _ttft(plain),
        "round_ms": ratio(1e3 * whole, sum(histogram.values())),
        "plain_step_ms": ratio(1e3, rates["plain"]),
        "end_to_end_speedup": ratio(_wall(plain), _wall(speculative)),
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


def progress_line(one: Answered) -> str:
    """One answered prompt in a few words."""
    length, rates = _acceptance([one.speculative]), (_rate(one.speculative), _rate(one.plain))
    if length is None or None in rates:
        return "answered by its first token"
    return f"acceptance {length:.2f}, {rates[0]:.1f} tokens/s, plain {rates[1]:.1f}, {one.verdicts[-1].kind}"


def _acceptance(answers: Iterable[Sequence[Result]]) -> float | None:
    """Mean over the rounds of each prompt that drafted, then over prompts that had one."""
    rounds = [
        [n for result in results for n in drafted(result.stats.acceptance, result.stats.offered)] for results in answers
    ]
    return _mean([sum(lengths) / len(lengths) for lengths in rounds if lengths])


def _slot_acceptance(results: Sequence[Result]) -> list[float | None]:
    """Share of rounds that accepted slot j, of those that offered it."""
    pairs = [pair for r in results for pair in zip(r.stats.accepted, r.stats.offered, strict=True)]
    slots = max((offered for _, offered in pairs), default=0)
    return [
        ratio(sum(accepted >= slot for accepted, _ in pairs), sum(offered >= slot for _, offered in pairs))
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
            "speedup": ratio(_rate(speculative), _rate([result for one in ones for result in one.plain])),
        }
    return report


def _rate(results: Sequence[Result]) -> float | None:
    """Tokens after the prefill's over the time of all rounds."""
    tokens = sum(sum(result.stats.acceptance) for result in results)
    return ratio(tokens, sum(result.stats.decode_seconds for result in results)) if tokens else None


def _ttft(results: Sequence[Result]) -> float | None:
    return _mean([1e3 * result.stats.prefill_seconds for result in results])


def _wall(results: Sequence[Result]) -> float:
    return sum(result.stats.prefill_seconds + result.stats.decode_seconds for result in results)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where either is missing or the whole is 0."""
    return None if part is None or not whole else part / whole
