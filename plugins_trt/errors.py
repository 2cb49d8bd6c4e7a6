"""The one exception of this folder, which imports nothing of ours: callers turn it into their own user error."""

from __future__ import annotations


class PluginError(RuntimeError):
    """The plugin or its host build cannot be had.

    Args:
        what: What happened, found against expected. No trailing full stop.
        hint: The command that mends it.
    """

    def __init__(self, what: str, *, hint: str):
        super().__init__(what)
        self.what, self.hint = what, hint

    def __str__(self) -> str:
        return f"{self.what}\n\nhint: {self.hint}"
