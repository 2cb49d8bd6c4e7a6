"""One answer in the making, as the loop counts it: its anchor, its budget of tokens, and why it ends. Calls no engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from lilicorr.runtime.stats import LaneRound

# Given a lane and its newly emitted tokens, how many tokens of the whole answer stay when a stop string ends it; None: go on.
Cut = Callable[[int, Sequence[int]], int | None]


@dataclass
class Lane:
    index: int  # of its prompt in the request
    prompt: int  # tokens
    budget: int  # tokens it may still emit
    reason: str  # why the budget ends
    emitted: int = 0
    anchor: int = 0  # last token emitted

    @property
    def rows(self) -> int:
        """Cache rows of the prompt and of everything emitted but the anchor."""
        return self.prompt + max(self.emitted - 1, 0)

    def emit(self, tokens: list[int], stops: Collection[int], cut: Cut | None, drafts: int = 0) -> LaneRound:
        """Book verified tokens: end at a stop token, at a stop string or with the budget.

        Args:
            tokens: What the target chose, at most `budget`.
            stops: Stop token ids.
            cut: Stop-string test.
            drafts: Accepted drafts among `tokens`, from the first.
        """
        finish = None
        stop = next((i for i, token in enumerate(tokens) if token in stops), None)
        if stop is not None:
            tokens, finish = tokens[: stop + 1], "stop"
        total = self.emitted + len(tokens)
        if cut is not None:
            kept = cut(self.index, tokens if stop is None else tokens[:-1])
            if kept is not None:
                total, finish = kept, "stop"
        retracted = max(0, self.emitted - total)
        tokens = tokens[: max(0, total - self.emitted)]
        self.budget -= len(tokens)
        self.emitted = total
        if tokens:
            self.anchor = tokens[-1]
        if finish is None and self.budget == 0:
            finish = self.reason
        return LaneRound(self.index, tuple(tokens), min(drafts, len(tokens)), finish, retracted)
