"""How to generate: the one home of these defaults, read by the Python interface and the command line. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Attributes:
    max_new_tokens: Most tokens per answer.
    stop: Strings that end an answer just before them.
    speculative: False decodes token by token on the same target engine.
    block_size: Tokens verified per round, at most as many as the bundle serves. None: as many as pay, chosen every round.
    use_head: False drafts each slot's best candidate, as plain DFlash does.
    reuse_prefix: Keep the cache rows of a prefix shared with the previous answer (a conversation that grows).
    """

    max_new_tokens: int = 256
    stop: str | Sequence[str] = ()
    speculative: bool = True
    block_size: int | None = None
    use_head: bool = True
    reuse_prefix: bool = False
