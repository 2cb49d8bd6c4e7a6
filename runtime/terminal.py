"""A person at a terminal: streams an answer with accepted drafts coloured, sums it up, asks for the next message.

The answer goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lilicorr.runtime.session import Chunk, Result


def wants_color() -> bool:
    """Colour unless stdout is no terminal or NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def show(chunks: Iterator[Chunk], color: bool) -> Result:
    """Print the pieces of an answer as they come; returns the whole answer."""
    for chunk in chunks:
        for text, drafted in chunk.pieces:
            click.echo(click.style(text, fg="green") if color and drafted else text, nl=False, color=color)
        sys.stdout.flush()
    click.echo()
    assert chunk.result is not None
    return chunk.result


def sum_up(result: Result) -> None:
    """One line on speed and how the answer ended."""
    stats = result.stats
    line = f"[{stats.new_tokens} tokens, first after {1e3 * stats.prefill_seconds:.0f} ms"
    if stats.tokens_per_second is not None:
        line += f", {stats.tokens_per_second:.1f} tokens/s, acceptance length {stats.acceptance_length:.2f}"
    click.echo(f"{line}, finish: {result.finish_reason}]", err=True)


def ask() -> str:
    """The user's next message; "" for an empty line or the end of the input."""
    try:
        return str(click.prompt(">", prompt_suffix=" ", default="", show_default=False, err=True)).strip()
    except click.Abort:
        return ""
