"""What happened in a round and in an answer, as plain records. The loop makes rounds, `Stats` adds them up.

Acceptance length of a round = tokens it emitted: accepted drafts plus the target's own token, or fewer when a stop or a
limit cut it. The prefill's token belongs to no round. A plain step among speculative rounds is a round, and says nothing of drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PARTS = ("draft", "score", "verify", "host")  # of the time of a round; attributes of `Round`


@dataclass(frozen=True)
class LaneRound:
    """One lane's share of a round."""

    lane: int
    tokens: tuple[int, ...]  # emitted now
    drafts: int  # how many of them, from the first, are accepted drafts
    finish: str | None = None  # "stop", "length" or "context" when the lane ends here
    retracted: int = 0  # tokens of earlier rounds that belong to the stop string found now


@dataclass(frozen=True)
class Round:
    """One prefill, or one draft → score → verify → commit, of all lanes.

    Seconds are wall time; draft, score and verify are the engine calls inside `total`.
    """

    prefill: bool
    offered: int  # drafts verified per lane
    lanes: tuple[LaneRound, ...]
    draft: float
    score: float
    verify: float
    total: float

    @property
    def host(self) -> float:
        """Everything that is not an engine call."""
        return self.total - self.draft - self.score - self.verify


@dataclass
class Stats:
    """Sums over one answer. In a batch the seconds are the batch's: all lanes waited for them."""

    prompt_tokens: int
    new_tokens: int = 0
    acceptance: list[int] = field(default_factory=list)  # tokens emitted per verify round
    accepted: list[int] = field(default_factory=list)  # accepted drafts per verify round
    offered: list[int] = field(default_factory=list)  # drafts verified per verify round
    prefill_seconds: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))  # of the rounds

    def add(self, turn: Round, lane: LaneRound) -> None:
        self.new_tokens += len(lane.tokens) - lane.retracted
        if turn.prefill:
            self.prefill_seconds += turn.total
            return
        for part in PARTS:
            self.seconds[part] += getattr(turn, part)
        if lane.tokens:
            self.acceptance.append(len(lane.tokens))
            self.accepted.append(lane.drafts)
            self.offered.append(turn.offered)
        self._retract(lane.retracted)

    def _retract(self, tokens: int) -> None:
        """Take back the last `tokens`; a round left with none is no round. The first token of an answer is the prefill's."""
        while tokens > 0 and self.acceptance:
            taken = min(tokens, self.acceptance[-1])
            tokens -= taken
            self.acceptance[-1] -= taken
            self.accepted[-1] = min(self.accepted[-1], self.acceptance[-1])
            if self.acceptance[-1] == 0:
                del self.acceptance[-1], self.accepted[-1], self.offered[-1]

    @property
    def acceptance_length(self) -> float | None:
        """Mean over the rounds that drafted, or over all when none did; None when there was no round."""
        lengths = drafted(self.acceptance, self.offered) or self.acceptance
        return sum(lengths) / len(lengths) if lengths else None

    @property
    def decode_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the prefill's one over the time of the rounds; None when there were none."""
        return sum(self.acceptance) / self.decode_seconds if self.acceptance else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": self.new_tokens,
            "rounds": len(self.acceptance),
            "acceptance_length": self.acceptance_length,
            "tokens_per_second": self.tokens_per_second,
            "ttft_ms": 1e3 * self.prefill_seconds,
            "seconds": self.seconds,
        }


def drafted(emitted: Sequence[int], offered: Sequence[int]) -> list[int]:
    """Tokens emitted per round, of the rounds that verified drafts."""
    return [tokens for tokens, drafts in zip(emitted, offered, strict=True) if drafts]
