"""The bench report as a table for people. Takes the dict of `bench.run_bench`; measures nothing."""

from __future__ import annotations

from typing import Any

from lilicorr.runtime.stats import PARTS


def table(report: dict[str, Any]) -> str:
    """Lines of label and value, and the acceptance histogram."""
    rates, lossless = report["tokens_per_second"], report["lossless"]
    rows = [
        ("prompts", f"{report['prompts']} ({report['new_tokens']} tokens, {report['rounds']} rounds)"),
        ("acceptance length", _number(report["acceptance_length"])),
    ]
    if "acceptance_length_argmax" in report:
        rows.append(("  without the head", _number(report["acceptance_length_argmax"])))
    rows += [
        ("tokens per round", _number(report["tokens_per_round"])),
        ("  to break even", _number(report["break_even_tokens"])),
        ("tokens/s speculative", _number(rates["speculative"], 1)),
        ("tokens/s plain", _number(rates["plain"], 1)),
        ("speed-up", _number(report["speedup"]) + "×"),
        ("first token", f"{_number(report['ttft_ms'], 0)} ms, plain {_number(report['ttft_ms_plain'], 0)} ms"),
        ("share of time", ", ".join(f"{part} {_percent(report['time_share'][part])}" for part in PARTS)),
        ("ms per target step", ", ".join(f"{w}: {ms:.1f}" for w, ms in report["verify_ms_by_width"].items())),
        ("rounds by block", ", ".join(f"{block}: {count}" for block, count in report["block_histogram"].items())),
        ("accepted by slot", " ".join(_percent(share) for share in report["slot_acceptance"])),
        (
            "same text as plain",
            f"{lossless['identical']} of {lossless['checked']}, {lossless['ties']} ties, {lossless['different']} different",
        ),
    ]
    for category, numbers in report["by_category"].items():
        if len(report["by_category"]) > 1:
            length, speed = _number(numbers["acceptance_length"]), _number(numbers["speedup"])
            rows.append((f"  {category or 'no category'}", f"acceptance {length}, speed-up {speed}×"))
    if report["skipped"]:
        rows.append(("skipped", f"{len(report['skipped'])} longer than the context"))
    width = max(len(label) for label, _ in rows)
    return "\n".join([f"{label:<{width}}  {value}" for label, value in rows] + _histogram(report))


def _histogram(report: dict[str, Any]) -> list[str]:
    counts = report["acceptance_histogram"]
    most = max(counts.values(), default=1)
    return ["rounds by tokens"] + [f"{length:>4} {'█' * round(30 * n / most):<30} {n}" for length, n in counts.items()]


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"
