"""`lilicorr-export`: build, plan, inspect, check, engine, compare. A thin layer over the modules of the same names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lilicorr.export.architectures import PROVEN
from lilicorr.export.options import BLOCKS, CONTEXT_CAP, ELEMENT_BYTES, INTEGER_WEIGHTS, BuildOptions, EngineOptions
from lilicorr.runtime.commands import Group
from lilicorr.runtime.contract import ATTENTION_FORMS
from lilicorr.runtime.trt_bindings import MODULES

DEFAULTS = BuildOptions()
ENGINE_DEFAULTS = EngineOptions()
FOLDER = click.Path(path_type=Path)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lilicorr")
def main() -> None:
    """Export a target and its drafter to a bundle of ONNX graphs, and prove that it computes the same."""


def _pair_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options of the commands that start from a target and a drafter folder."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of stdout."),
        click.option(
            "--block-size", type=click.IntRange(2), help="Serve smaller blocks than trained.  [default: as trained]"
        ),
        click.option("--max-batch", type=click.IntRange(1), default=DEFAULTS.max_batch, show_default=True),
        click.option(
            "--max-context",
            type=click.IntRange(2),
            help=f"Tokens served, prompt and answer.  [default: {CONTEXT_CAP}, or less where the models allow less]",
        ),
        click.option(
            "--precision", type=click.Choice(list(ELEMENT_BYTES)), default=DEFAULTS.precision, show_default=True
        ),
        click.option(
            "--attention",
            type=click.Choice(ATTENTION_FORMS),
            default=DEFAULTS.attention,
            show_default=True,
            help="native: TensorRT 11.1 or newer, TensorRT-RTX.",
        ),
        click.option(
            "--weights-block",
            type=click.Choice(BLOCKS),
            default=DEFAULTS.weights_block,
            show_default=True,
            help="Inputs of the target's products that share a scale, with --weights.",
        ),
        click.option(
            "--weights",
            type=click.Choice(list(INTEGER_WEIGHTS)),
            help="Integers for the weights of the target's products.  [default: as in the target's folder]",
        ),
        click.option("--drafter", type=FOLDER, required=True, help="Drafter checkpoint folder."),
        click.option("--target", type=FOLDER, required=True, help="Hugging Face folder of the target."),
    ):
        command = option(command)
    return command


@main.command(epilog=f"Targets: {', '.join(PROVEN)}.")
@_pair_options
@click.option("--out", type=FOLDER, required=True, help="Bundle folder to make or replace.")
def build(target: Path, drafter: Path, out: Path, as_json: bool, **choices: Any) -> None:
    """Check the pair, trace the three graphs and write the bundle."""
    from lilicorr.export.bundle import build_bundle
    from lilicorr.export.progress import Progress
    from lilicorr.export.tables import human_bytes

    progress = Progress(sys.stderr)
    manifest = build_bundle(target, drafter, out, BuildOptions(**choices), progress)
    click.echo(
        f"bundle `{out}`: {len(manifest.files)} files, {human_bytes(manifest.total_bytes)}, {manifest.precision}",
        err=as_json,
    )
    if as_json:
        click.echo(json.dumps({"bundle": str(out), "bytes": manifest.total_bytes, "seconds": progress.seconds}))


@main.command()
@_pair_options
def plan(target: Path, drafter: Path, as_json: bool, **choices: Any) -> None:
    """Show what `build` would write, without reading a weight."""
    from lilicorr.export.pair import check_pair
    from lilicorr.export.plan import make_plan, render

    options = BuildOptions(**choices)
    pair = check_pair(target, drafter, block_size=options.block_size, max_context=options.max_context)
    planned = make_plan(pair, options)
    click.echo(json.dumps(planned.to_dict()) if as_json else render(planned))


@main.command()
@click.argument("bundle", type=FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def inspect(bundle: Path, as_json: bool) -> None:
    """Show a bundle's components, tensors, files and parity summary."""
    from lilicorr.export.inspect import inspect_bundle, render

    click.echo(json.dumps(inspect_bundle(bundle)) if as_json else render(bundle))


@main.command()
@click.argument("bundle", type=FOLDER)
@click.option("--target", type=FOLDER, help="The target's folder.  [default: where the bundle was built from]")
@click.option("--drafter", type=FOLDER, help="The drafter's folder.  [default: where the bundle was built from]")
@click.option("--prompts", type=FOLDER, help="Prompt file, JSON lines.  [default: eight of our own]")
@click.option("--limit", type=click.IntRange(1), help="Use the first prompts only.")
@click.option("--max-new-tokens", type=click.IntRange(1), help="Tokens per answer.  [default: 32]")
@click.option("--threads", type=click.IntRange(1), help="Threads per library.  [default: every core]")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report on stdout, the tables on stderr.")
def check(bundle: Path, as_json: bool, **choices: Any) -> None:
    """Compare a bundle with PyTorch: tensors, decisions, rounds, text. Exit code 3 when a budget is missed."""
    from lilicorr.export.parity import CheckOptions, check_bundle
    from lilicorr.export.progress import Progress
    from lilicorr.export.report import text_from_report
    from lilicorr.runtime.errors import EXIT_PARITY

    options = CheckOptions(**{name: value for name, value in choices.items() if value is not None})
    report = check_bundle(bundle, options, Progress(sys.stderr))
    click.echo(text_from_report(report), err=as_json)
    if as_json:
        click.echo(json.dumps(report))
    if not report["passed"]:
        sys.exit(EXIT_PARITY)


@main.command()
@click.argument("bundle", type=FOLDER)
@click.option("--engines", type=FOLDER, required=True, help="Engine folder, as `engine` made it.")
@click.option("--prompt", help="Text of the compared calls.  [default: one of our own]")
@click.option("--json", "as_json", is_flag=True, help="Print the whole report on stdout, the table on stderr.")
def compare(bundle: Path, engines: Path, prompt: str | None, as_json: bool) -> None:
    """Compare engines with ONNX Runtime, tensor by tensor; needs no PyTorch. Exit code 3 when a budget is missed."""
    from lilicorr.export.backend_parity import compare_engines
    from lilicorr.export.progress import Progress
    from lilicorr.export.report import text_from_report
    from lilicorr.runtime.errors import EXIT_PARITY

    report = compare_engines(bundle, engines, prompt, Progress(sys.stderr))
    click.echo(text_from_report(report), err=as_json)
    if as_json:
        click.echo(json.dumps(report))
    if not report["passed"]:
        sys.exit(EXIT_PARITY)


@main.command()
@click.argument("bundle", type=FOLDER)
@click.option("--backend", type=click.Choice(list(MODULES)), default=ENGINE_DEFAULTS.backend, show_default=True)
@click.option(
    "--compute-capability", help="Build for these, e.g. 8.9,12.0 (tensorrt-rtx).  [default: that of the GPU here]"
)
@click.option("--out", type=FOLDER, help="Engine folder to make or replace.  [default: BUNDLE/engines/…]")
@click.option("--precision", help="Make sure that it is this one.  [default: the bundle's]")
@click.option("--workspace", "workspace_mib", type=click.IntRange(1), help="Scratch memory in MiB.  [default: all]")
@click.option(
    "--optimization-level",
    type=click.IntRange(0, 5),
    default=ENGINE_DEFAULTS.optimization_level,
    show_default=True,
    help="Lower builds faster and in less memory.",
)
@click.option("--plugin/--no-plugin", default=True, help="--no-plugin: the walk in standard operators.")
@click.option("--force", is_flag=True, help="Build even what is up to date.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line of stdout.")
def engine(bundle: Path, out: Path | None, compute_capability: str | None, as_json: bool, **choices: Any) -> None:
    """Build TensorRT engines from a bundle, on the device or (tensorrt-rtx) ahead of time without a GPU."""
    from lilicorr.export.device_rules import parse_capabilities
    from lilicorr.export.engine import build_engines
    from lilicorr.export.progress import Progress
    from lilicorr.export.tables import human_bytes, table

    capabilities = parse_capabilities(compute_capability) if compute_capability else ()
    options = EngineOptions(compute_capabilities=capabilities, **choices)
    progress = Progress(sys.stderr)
    folder, engines = build_engines(bundle, out, options, progress)
    rows = [(e.file, human_bytes(e.bytes), ", ".join(p.name for p in e.profiles)) for e in engines.engines.values()]
    click.echo(table(("engine", "size", "profiles"), rows), err=as_json)
    click.echo(
        f"engines `{folder}`: {engines.backend} {engines.tensorrt_version}, {', '.join(engines.compute_capabilities)}",
        err=as_json,
    )
    if as_json:
        click.echo(json.dumps({"engines": str(folder), "seconds": progress.seconds}))
