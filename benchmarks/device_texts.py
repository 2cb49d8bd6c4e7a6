"""Texts of the engines: the loop's speculative answers against its plain ones, and the plain ones against ONNX Runtime's.

    python benchmarks/device_texts.py BUNDLE --engines BUNDLE/engines/tensorrt-sm90-11.4.0

The first is the product's promise: a difference that is no tie fails the step. The second is all that can be said of native
engines, which `compare` cannot run; two devices round differently, so it is reported and not judged. bf16 bundles have no second:
ONNX Runtime does not run them on a CPU. Last line of stdout: one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from lilicorr.runtime.backends import ORT
from lilicorr.runtime.lossless import compare
from lilicorr.runtime.prompts import read_prompts
from lilicorr.runtime.session import Session, load
from lilicorr.runtime.tokenizer import user_message

PROMPTS = Path(__file__).resolve().parents[1] / "examples/prompts.jsonl"
KINDS = ("identical", "tie", "different")
Answers = list[tuple[int, ...]]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--engines", type=click.Path(path_type=Path), required=True)
@click.option("--limit", default=8, show_default=True, help="prompts of examples/prompts.jsonl")
@click.option("--max-new-tokens", default=48, show_default=True)
def main(bundle: Path, engines: Path, limit: int, max_new_tokens: int) -> None:
    texts = [prompt.turns[0] for prompt in read_prompts(PROMPTS, limit)]
    with load(bundle, engines=engines) as session:
        plain, speculative = (answers(session, texts, max_new_tokens, speculative=mode) for mode in (False, True))
        report = {
            "backend": session.backend,
            "precision": session.manifest.precision,
            "attention": session.manifest.attention,
            "tokens": sum(map(len, plain)),
            "speculative_against_plain": verdicts(session, texts, plain, speculative),
            "notes": session.notes,
        }
    if report["precision"] != "bf16":
        with load(bundle, backend=ORT, verify=False) as session:
            wanted = answers(session, texts, max_new_tokens, speculative=False)
            report["engines_against_onnxruntime"] = verdicts(session, texts, wanted, plain)
    click.echo(json.dumps(report))
    if report["speculative_against_plain"]["different"]:
        sys.exit("error: a speculative answer is not the plain one")


def answers(session: Session, texts: Sequence[str], most: int, *, speculative: bool) -> Answers:
    """Token ids of every answer. Whole blocks: chosen ones may come down to plain steps, which would prove nothing."""
    options = {"max_new_tokens": most, "speculative": speculative, "block_size": session.manifest.drafter.block_size}
    return [session.generate([user_message(text)], **options).token_ids for text in texts]


def verdicts(session: Session, texts: Sequence[str], wanted: Answers, found: Answers) -> dict[str, Any]:
    """How many of `found` are identical to `wanted`, ties or different, and where each of the others parts.

    Args:
        session: Gave `wanted`; says how close its two best tokens were.
    """
    judged = [
        compare(
            ours,
            theirs,
            session.manifest.precision,
            partial(session.loop.top_two, session.encode([user_message(text)])),
        )
        for text, ours, theirs in zip(texts, wanted, found, strict=True)
    ]
    counts = Counter(verdict.kind for verdict in judged)
    parted = [
        {"prompt": number, **verdict._asdict()} for number, verdict in enumerate(judged) if verdict.kind != "identical"
    ]
    return {**{kind: counts[kind] for kind in KINDS}, "parted": parted}


if __name__ == "__main__":
    main()
