"""How many tokens a round verifies, chosen before every round from what rounds cost here and what was accepted lately.

A block of w tokens is expected to emit 1 + a₁ + a₁a₂ + … tokens (w-1 terms; aₛ: draft s is right if those before it were). The
round takes the block with the most expected tokens per second; a block of 1 is a plain step, without the drafter. So text that
cannot be guessed is decoded plainly instead of more slowly, and text that can is drafted in whole blocks.

The constants were chosen by simulation on held-out answers of SmolLM2-135M-Instruct (docs/measurements.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lilicorr.runtime.stats import Round

FORGET = 0.98  # weight of a round after each further one: slots not offered for long return to the prior, and are tried again
PRIOR, PRIOR_WEIGHT = 0.45, 3.0  # a slot's acceptance before anything was seen, worth this many rounds

# Rounds of either kind whose times count. A drafter call that follows a whole block has a width of its own from the second round
# on, and a GPU binds it there and captures it in the third: with 4, two are left that only run.
TIMED = 4
RETIME = 1000  # rounds after which they are timed again: a device throttles, a context grows, a busy moment passes


@dataclass(frozen=True)
class RoundCosts:
    """Seconds of a round.

    Attributes:
        verify: Of a round that verifies 1, 2, … tokens per lane, without a draft.
        draft: What drafting adds.
    """

    verify: tuple[float, ...]
    draft: float

    def of(self, block: int) -> float:
        return self.verify[block - 1] + (self.draft if block > 1 else 0.0)


class LaneAcceptance:
    """How often each slot of one lane was right, when those before it were; older rounds count less."""

    def __init__(self, slots: int):
        # (slots,) rounds that offered the slot and accepted those before it, and of those the ones that accepted it; weighted
        self._tries, self._hits = np.zeros(slots), np.zeros(slots)

    def see(self, offered: int, accepted: int) -> None:
        """Book a round: `offered` drafts were verified, the first `accepted` were right."""
        self._tries *= FORGET
        self._hits *= FORGET
        self._tries[: min(accepted + 1, offered)] += 1
        self._hits[:accepted] += 1

    def expected(self) -> np.ndarray:
        """(slots + 1,) tokens that a block of 1, 2, … is expected to emit."""
        rates = (self._hits + PRIOR * PRIOR_WEIGHT) / (self._tries + PRIOR_WEIGHT)
        return np.concatenate([[1.0], 1.0 + np.cumprod(rates).cumsum()])


def best_block(costs: RoundCosts, lanes: Sequence[LaneAcceptance], most: int) -> int:
    """The block of 1 to `most` tokens with the most expected tokens per second; the shorter one when two are equal."""
    expected = np.sum([lane.expected()[:most] for lane in lanes], axis=0)
    return int(np.argmax(expected / np.array([costs.of(block) for block in range(1, most + 1)]))) + 1


class BlockChoice:
    """Chooses the block of every round of one number of lanes: what a row more costs depends on how many there are.

    The first rounds verify whole blocks, the next ones are plain steps. Their times are the costs of the next `RETIME`, with the
    blocks between interpolated; so nothing is run only to be timed. Not in turns: after a plain step the drafter is handed rows of
    several calls, by a call that steady rounds do not have.

    Args:
        block: The whole block, at least 2.
        costs: Known already; None: to be timed.
    """

    def __init__(self, block: int, costs: RoundCosts | None = None):
        self._block, self.costs = block, costs
        self._time_again()

    def _time_again(self) -> None:
        self._verify: dict[int, list[float]] = {1: [], self._block: []}  # seconds of rounds without their drafts
        self._draft: list[float] = []
        self._rounds = 0  # by these costs

    def choose(self, lanes: Sequence[LaneAcceptance], most: int) -> int:
        """The block of the next round, 1 to `most`, which is at most the whole block."""
        if self.costs is None:
            return most if len(self._verify[self._block]) <= TIMED else 1
        return best_block(self.costs, lanes, most)

    def see(self, turn: Round) -> None:
        """Book a round."""
        block = turn.offered + 1
        if self.costs is not None:
            self._rounds += 1
            if self._rounds == RETIME:
                self.costs = None
                self._time_again()
            return
        if block not in self._verify:
            return
        self._verify[block].append(turn.total - turn.draft - turn.score)
        if block > 1:
            self._draft.append(turn.draft + turn.score)
        if all(len(times) > TIMED for times in self._verify.values()):
            # The first of each binds calls. The fastest of the rest is the one least disturbed.
            ends = [min(self._verify[width][1:]) for width in (1, self._block)]
            verify = np.interp(range(1, self._block + 1), (1, self._block), ends).tolist()
            self.costs = RoundCosts(tuple(verify), min(self._draft[1:]))
