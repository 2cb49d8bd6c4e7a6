"""The one exception class for mistakes the user can mend, and the exit codes of every command.

Anything else that is raised is a defect of ours and shows a traceback.
"""

from __future__ import annotations

EXIT_USER = 1  # the user can mend it: wrong file, wrong pair, no space
EXIT_PARITY = 3  # a parity budget was missed
EXIT_ENGINE = 4  # an engine built for another device or version


class UserError(Exception):
    """A mistake the user can mend.

    Args:
        what: What happened, with what was found and what was expected. No trailing full stop.
        hint: The command (or the one thing to do) that mends it.
        exit_code: Process exit code; one of the EXIT_* constants.
    """

    def __init__(self, what: str, *, hint: str | None = None, exit_code: int = EXIT_USER):
        super().__init__(what)
        self.what, self.hint, self.exit_code = what, hint, exit_code

    def at(self, where: str, hint: str | None = None) -> UserError:
        """The same mistake with its place in front, like `file:line`; `hint` where it has none of its own."""
        return UserError(f"{where}: {self.what}", hint=self.hint or hint, exit_code=self.exit_code)

    def __str__(self) -> str:
        return self.what if self.hint is None else f"{self.what}\n\nhint: {self.hint}"
