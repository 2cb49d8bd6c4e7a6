"""How many tokens a round verifies, chosen before every round from what rounds cost here and what was accepted lately.

A block of w tokens is expected to emit 1 + a₁ + a₁a₂ + … tokens (w-1 terms; aₛ: draft s is right if those before it were). The
round takes the block with the most expected tokens per second; a block of 1 is a plain step, without the drafter. So text that
cannot be guessed is decoded plainly instead of more slowly, and text that can is drafted in whole blocks.

The constants were chosen by simulation on held-out answers of SmolLM2-135M-Instruct (docs/measurements.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from lilicorr.runtime.steps import Steps

FORGET = 0.98  # weight of a round after each further one: slots not offered for long return to the prior, and are tried again
PRIOR, PRIOR_WEIGHT = 0.45, 3.0  # a slot's acceptance before anything was seen, worth this many rounds

_REPEATS = 3


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


@dataclass
class LaneAcceptance:
    """How often each slot of one lane was right, when those before it were; older rounds count less."""

    slots: int
    _tries: np.ndarray = field(
        init=False
    )  # (slots,) rounds that offered the slot and accepted those before it, weighted
    _hits: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self._tries, self._hits = np.zeros(self.slots), np.zeros(self.slots)

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


def measure_costs(steps: Steps, lanes: int, clock: Callable[[], float] = time.perf_counter) -> RoundCosts:
    """Time rounds on empty caches, which are empty afterwards too; sixteen calls of the target.

    Blocks between those timed (1, 2 and the whole) are interpolated.
    """
    anchors, block = np.zeros(lanes, dtype=np.int32), steps.block_size

    def one_row() -> None:
        steps.reset(lanes, drafting=True)
        steps.verify(anchors[:, None])
        steps.commit(np.ones(lanes, dtype=np.int32))

    def empty() -> None:
        steps.reset(lanes, drafting=False)

    timed = {}
    for width in sorted({1, 2, block}):
        tokens = np.zeros((lanes, width), dtype=np.int32)
        timed[width] = _fastest(clock, empty, partial(steps.verify, tokens))
    drafted = _fastest(clock, one_row, partial(steps.speculate, anchors, block, use_head=steps.has_head))
    empty()
    verify = np.interp(range(1, block + 1), list(timed), list(timed.values())).tolist()
    return RoundCosts(tuple(verify), max(0.0, drafted - timed[block]))


def _fastest(clock: Callable[[], float], prepare: Callable[[], None], call: Callable[[], object]) -> float:
    """Seconds of the fastest of a few calls; the first binds and is not counted."""
    times = []
    for _ in range(1 + _REPEATS):
        prepare()
        start = clock()
        call()
        times.append(clock() - start)
    return min(times[1:])
