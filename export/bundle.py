"""Build a bundle: pair check, three traced graphs, tokenizer, manifest, then one rename.

Everything that can be refused is refused before the weights are loaded. The manifest is written last, so that no unfinished
folder is ever taken for a bundle.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from lilicorr.export.describe import describe
from lilicorr.export.options import BuildOptions
from lilicorr.export.pair import Pair, check_pair
from lilicorr.export.plan import make_plan
from lilicorr.export.progress import Progress
from lilicorr.export.quantised_config import chosen_quantisation
from lilicorr.export.quiet import quiet_libraries
from lilicorr.export.staging import Staging
from lilicorr.export.tables import human_bytes
from lilicorr.runtime.bundle import file_sha256
from lilicorr.runtime.contract import expected_interfaces, interface_problems
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FILE_NAME, Component, FileRecord, Manifest

DISK_MARGIN = 1.05  # over the plan's estimate, for graph files and file system blocks


def build_bundle(target: Path, drafter: Path, out: Path, options: BuildOptions, progress: Progress) -> Manifest:
    """Export `target` and `drafter` to the bundle `out`, replacing an older bundle there.

    Args:
        target, drafter: Hugging Face folders.

    Raises:
        UserError: the pair does not fit, `out` cannot be written or is no bundle, or the disk is too small.
    """
    with progress.phase("check the pair"):
        pair = check_pair(target, drafter, block_size=options.block_size, max_context=options.max_context)
        manifest = describe(pair, options)
    for warning in pair.warnings:
        progress.say(f"warning: {warning}")
    with Staging(out, FILE_NAME) as staging:
        _require_space(staging.folder, out, int(make_plan(pair, options).disk_bytes * DISK_MARGIN))
        components = _write_graphs(pair, options, staging.folder, progress)
        _require_contract(manifest, components)
        with progress.phase("write the manifest"):
            shutil.copyfile(pair.target.tokenizer, staging.folder / "tokenizer.json")
            if pair.target.chat_template is not None:
                (staging.folder / "chat_template.jinja").write_text(pair.target.chat_template, encoding="utf-8")
            manifest = dataclasses.replace(manifest, components=components, files=_records(staging.folder))
            (staging.folder / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
        with progress.phase("publish"):
            staging.publish()
    return manifest


def _write_graphs(pair: Pair, options: BuildOptions, folder: Path, progress: Progress) -> dict[str, Component]:
    """Load the weights, trace the graphs of `pair` and write them to `folder`."""
    with progress.phase("load the weights"):
        import torch

        from lilicorr.export.graphs import trace_drafter, trace_scorer, trace_target, write_graphs
        from lilicorr.export.quantised_target import load_with_integers
        from lilicorr.runtime.contract import FLOATS, NATIVE, native_rows
        from lilicorr.train.checkpoint import read_drafter
        from lilicorr.train.target import embedding_table, lm_head_table

        quiet_libraries()
        dtype = getattr(torch, FLOATS[options.precision])
        drafter = read_drafter(pair.drafter.path)
        quantisation = chosen_quantisation(pair.target.stored, pair.target.headers, options)
        model, integers = load_with_integers(pair.target, quantisation, dtype)
    config, slots = pair.drafter.config, pair.block_size - 1
    rows = native_rows(describe(pair, options)) if options.attention == NATIVE else None
    with progress.phase("trace the target"):
        graphs = {"target": trace_target(model, config.target_layer_ids, dtype, integers, native_rows=rows)}
    with progress.phase("trace the drafter"):
        tables = embedding_table(model), lm_head_table(model)
        graphs["drafter"] = trace_drafter(drafter, *tables, dtype, slots, config.candidate_topk, native_rows=rows)
    if drafter.head is not None:
        with progress.phase("trace the scorer"):
            graphs["scorer"] = trace_scorer(drafter.head, embedding_table(model), dtype, slots, config.candidate_topk)
    with progress.phase("write the graphs"):
        return write_graphs(graphs, folder)


def _require_contract(manifest: Manifest, components: dict[str, Component]) -> None:
    """A traced graph that breaks the contract is a defect of ours, never the user's."""
    problems = [
        problem
        for name, expected in expected_interfaces(manifest).items()
        for problem in interface_problems(name, components[name], expected)
    ]
    if problems:
        raise AssertionError("traced graphs break the contract:\n" + "\n".join(problems))


def _require_space(folder: Path, out: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"not enough space for `{out}`: the bundle needs about {human_bytes(needed)}, {human_bytes(free)} are free",
            hint="free some space or choose another disk with --out",
        )


def _records(folder: Path) -> tuple[FileRecord, ...]:
    """Path, hash and size of every file under `folder`, in path order."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple(
        FileRecord(path.relative_to(folder).as_posix(), file_sha256(path), path.stat().st_size) for path in paths
    )
