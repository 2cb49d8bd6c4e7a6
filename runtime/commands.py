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
            return super().invoke(ctx)
        except UserError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(130)
