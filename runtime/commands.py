"""Shared behaviour of the three commands: a UserError becomes `error: …` on stderr and its exit code, without traceback."""

from __future__ import annotations

import sys
from typing import Any

import click

from lilicorr.runtime.errors import UserError


class Group(click.Group):
    """A click group that turns UserError into one message and the right exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            if sys.stdout is None:  # `>&-`
                raise UserError("standard output is closed", hint="send it to a file or to /dev/null")
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
