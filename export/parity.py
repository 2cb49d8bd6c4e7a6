"""`check`: climb the parity ladder of a bundle, rungs 1 to 4, against PyTorch; write parity.json and parity.html into it.

Loads target and drafter in fp32 beside the bundle. Changes no hashed file of the bundle.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilicorr.export.budgets import Budget, budget_of
from lilicorr.export.describe import describe, source_folders
from lilicorr.export.options import BuildOptions
from lilicorr.export.pair import Pair, check_pair
from lilicorr.export.progress import Progress
from lilicorr.export.quantised_config import OURS
from lilicorr.export.quiet import quiet_libraries
from lilicorr.export.report import write_report
from lilicorr.runtime.bundle import Bundle, file_sha256, open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FILE_NAME
from lilicorr.runtime.prompts import Prompt, read_prompts

if TYPE_CHECKING:
    from lilicorr.export.polygraphy_commands import Feeds

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")
TEXTS_PER_BATCH = 2  # ragged lanes of a tensor comparison; logits of a batch are held at once


@dataclass(frozen=True)
class CheckOptions:
    """The choices of `lilicorr-export check`."""

    target: Path | None = None  # folders; None takes those the bundle was built from
    drafter: Path | None = None
    prompts: Path = OWN_PROMPTS
    limit: int | None = None  # prompts; None takes the whole file
    max_new_tokens: int = 32
    threads: int | None = None  # None takes every core


def check_bundle(folder: Path, options: CheckOptions, progress: Progress) -> dict[str, Any]:
    """Compare `folder` with the models it was made from, write the report and return it.

    The report's `passed` is False when a budget is missed; `summary` holds a row per measure.

    Raises:
        UserError: a damaged bundle, other models than the bundle's, a precision that does not run here, or bad prompts.
    """
    with progress.phase("verify the bundle"):
        bundle = open_bundle(folder)
        target, drafter = _sources(bundle, options)
        pair = _require_same_models(bundle, target, drafter)
        prompts = read_prompts(options.prompts, options.limit)
    budget = budget_of(bundle.manifest.precision)
    with progress.phase("load the models"):
        import torch

        from lilicorr.export.graph_runner import GraphRunner
        from lilicorr.export.polygraphy_commands import record_calls
        from lilicorr.export.quantised_target import load_with_integers
        from lilicorr.export.reference import Reference
        from lilicorr.export.rung_loop import LoopComparison
        from lilicorr.export.rung_tensors import TensorRungs, observe
        from lilicorr.export.verdict import details, failing_graphs, measures
        from lilicorr.runtime.contract import FLOATS
        from lilicorr.runtime.ort import OrtBackend
        from lilicorr.train.checkpoint import read_drafter
        from lilicorr.train.generate import greedy_batch

        quiet_libraries()
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        manifest = bundle.manifest
        model, _ = load_with_integers(
            pair.target, manifest.target.quantisation, getattr(torch, FLOATS[manifest.precision])
        )
        reference = Reference(model, read_drafter(drafter).float(), manifest.drafter.block_size)
    with OrtBackend(bundle, options.threads) as backend:
        with progress.phase("answer the prompts in PyTorch"):
            encoded = [(prompt.id, ids) for prompt, ids in zip(prompts, _encode(bundle, prompts), strict=True)]
            stops = frozenset(manifest.target.stop_token_ids)
            answers = greedy_batch(
                reference.model, [ids for _, ids in encoded], max_new_tokens=options.max_new_tokens, stop_ids=stops
            )
        with progress.phase("rungs 1 and 2: tensors and decisions"):
            seen = TensorRungs()
            block = manifest.drafter.block_size
            texts = [
                (ids + _stretched(answer, block), len(ids)) for (_, ids), answer in zip(encoded, answers, strict=True)
            ]
            calls: dict[str, Feeds] = {}
            run = record_calls(GraphRunner(backend, manifest), manifest, calls)
            for begin in range(0, len(texts), TEXTS_PER_BATCH):
                observe(run, manifest, reference, texts[begin : begin + TEXTS_PER_BATCH], budget, seen)
        with progress.phase("rungs 3 and 4: rounds and text"):
            loop = LoopComparison(backend, manifest, reference)
            for (name, ids), answer in zip(encoded, answers, strict=True):
                loop.observe(name, ids, answer, options.max_new_tokens)
    found = measures(seen, loop.seen, budget)
    report = {
        "schema_version": 1,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "passed": all(measure.passed for measure in found),
        "manifest_sha256": file_sha256(folder / FILE_NAME),
        "precision": manifest.precision,
        "backend": f"onnxruntime {importlib.metadata.version('onnxruntime')} CPU",
        "reference": f"torch {torch.__version__} fp32",
        "prompts": [name for name, _ in encoded],
        "max_new_tokens": options.max_new_tokens,
        "seconds": dict(progress.seconds),
        "budgets": dataclasses.asdict(budget),
        "bisect": _bisections(bundle, failing_graphs(found), calls, budget),
        "summary": [measure.row() for measure in found],
        "details": details(seen, loop.seen),
    }
    return write_report(report, folder)


def _bisections(bundle: Bundle, graphs: Sequence[str], calls: Mapping[str, Feeds], budget: Budget) -> list[str]:
    """Write what finds the layer in each of `graphs`; the commands to run."""
    from lilicorr.export.polygraphy_commands import BISECT_NAME, write_bisection

    return [
        write_bisection(
            bundle.path(bundle.manifest.components[graph].file),
            calls[graph],
            bundle.folder / BISECT_NAME,
            backend="onnxruntime",
            tolerance=budget.scores_abs if graph == "scorer" else budget.logits_abs,
        )
        for graph in graphs
    ]


def _sources(bundle: Bundle, options: CheckOptions) -> tuple[Path, Path]:
    if options.target is not None and options.drafter is not None:
        return options.target, options.drafter
    target, drafter = source_folders(bundle.manifest)
    return options.target or target, options.drafter or drafter


def _require_same_models(bundle: Bundle, target: Path, drafter: Path) -> Pair:
    """Read the two folders; refuse models that are not the ones the manifest describes."""
    manifest = bundle.manifest
    pair = check_pair(target, drafter, block_size=manifest.drafter.block_size)
    integers, options = manifest.target.quantisation, BuildOptions(precision=manifest.precision)
    if integers is not None and integers.source == OURS:
        options = dataclasses.replace(options, weights=f"int{integers.bits}", weights_block=integers.block)
    given = describe(pair, options)
    problems = []
    for part in ("target", "drafter", "head"):
        ours, theirs = getattr(manifest, part), getattr(given, part)
        if ours is None or theirs is None:
            problems += [f"{part}: the bundle has {ours}, the folder {theirs}"] if ours != theirs else []
            continue
        fields = [field.name for field in dataclasses.fields(ours) if field.name != "name"]
        problems += [
            f"{part}.{name}: the bundle has {getattr(ours, name)!r}, the folder {getattr(theirs, name)!r}"
            for name in fields
            if getattr(ours, name) != getattr(theirs, name)
        ]
    if problems:
        raise UserError(
            f"`{bundle.folder}` was not made from `{target}` and `{drafter}`:\n  " + "\n  ".join(problems),
            hint="give the folders the bundle was built from, or build it again",
        )
    return pair


def _encode(bundle: Bundle, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of the first turn of every prompt, through the chat template where there is one."""
    from lilicorr.runtime.tokenizer import ChatTokenizer

    target = bundle.manifest.target
    tokenizer = ChatTokenizer(bundle.folder, target.bos_token, target.eos_token)
    return [tokenizer.encode(tokenizer.as_prompt(prompt.conversation())) for prompt in prompts]


def _stretched(answer: list[int], block: int) -> list[int]:
    """`answer` repeated to at least a block, so that every text has a block to verify after its prompt."""
    return answer * -(-block // len(answer)) if len(answer) < block else answer
