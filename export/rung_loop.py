"""Rungs 3 and 4 of the parity ladder: the runtime's own loop against the PyTorch loop, and against plain decoding.

Rung 3 catches a drafter that is right tensor by tensor and served wrongly (a context row late, a wrong position). Rung 4 is the
promise of the product: speculation changes no token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lilicorr.export.reference import Reference
from lilicorr.runtime.engine import Backend
from lilicorr.runtime.loop import GreedyLoop
from lilicorr.runtime.lossless import common_prefix, compare
from lilicorr.runtime.manifest import Manifest
from lilicorr.runtime.steps import Steps
from lilicorr.train.replay import acceptance_on_continuation

Rounds = dict[int, tuple[tuple[int, ...] | None, int]]
"""Tokens of the answer before a round -> (its drafts, tokens it emitted); drafts are None where only one token was left."""


@dataclass
class TextCounts:
    """Answers compared token for token."""

    identical: int = 0
    ties: list[dict[str, Any]] = field(default_factory=list)  # first difference between two near equal logits
    different: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class LoopRungs:
    """What rungs 3 and 4 saw, over all prompts."""

    rounds: int = 0  # rounds that both loops begin after the same tokens
    equal_drafts: int = 0
    equal_accepted: int = 0
    acceptance_torch: list[float] = field(default_factory=list)  # mean per prompt
    acceptance_engine: list[float] = field(default_factory=list)
    lossless: TextCounts = field(default_factory=TextCounts)  # speculative against plain, same engine
    torch_text: TextCounts = field(default_factory=TextCounts)  # plain on the engine against PyTorch

    @property
    def acceptance_rel(self) -> float:
        """Relative difference of the mean acceptance lengths; 0 when no prompt had a round."""
        if not self.acceptance_torch:
            return 0.0
        return abs(float(np.mean(self.acceptance_engine)) / float(np.mean(self.acceptance_torch)) - 1)


class _RecordingSteps(Steps):
    """Keeps the last drafts of lane 0."""

    def __init__(self, backend: Backend, manifest: Manifest):
        super().__init__(backend, manifest)
        self.drafts: tuple[int, ...] = ()

    def speculate(self, anchors: np.ndarray, block: int, *, use_head: bool) -> tuple[np.ndarray, np.ndarray]:
        drafts, choices = super().speculate(anchors, block, use_head=use_head)
        self.drafts = tuple(drafts[0].tolist())
        return drafts, choices


class LoopComparison:
    """The runtime loop of one bundle, ready to be compared prompt by prompt; results gather in `seen`."""

    def __init__(self, backend: Backend, manifest: Manifest, reference: Reference):
        self._steps = _RecordingSteps(backend, manifest)
        self._loop = GreedyLoop(self._steps, manifest)
        self._manifest, self._reference = manifest, reference
        self.seen = LoopRungs()

    def observe(self, name: str, prompt: Sequence[int], answer: Sequence[int], max_new_tokens: int) -> None:
        """Compare on one prompt; `answer` is PyTorch's greedy continuation of at most `max_new_tokens`."""
        speculative, rounds = self._speculate(prompt, max_new_tokens)
        plain = [t for turn in self._loop.run([prompt], max_new_tokens, block=1) for t in turn.lanes[0].tokens]
        self._judge(self.seen.lossless, name, prompt, plain, speculative)
        self._judge(self.seen.torch_text, name, prompt, plain, list(answer))
        self._compare_rounds(prompt, answer, speculative, rounds)

    def _compare_rounds(
        self, prompt: Sequence[int], answer: Sequence[int], speculative: Sequence[int], rounds: Rounds
    ) -> None:
        """Rung 3 on one prompt: rounds that begin after the same tokens, and the mean acceptance lengths."""
        replayed = acceptance_on_continuation(
            self._reference.model, self._reference.drafter, prompt, answer, self._manifest.drafter.block_size
        )
        theirs, begin = {}, 1
        for turn in replayed.rounds:
            theirs[begin] = (turn.draft_tokens, turn.emitted)
            begin += turn.emitted
        shared = common_prefix(speculative, answer)
        for begin, (drafts, emitted) in rounds.items():
            if begin > shared or begin not in theirs or drafts is None:
                continue
            self.seen.rounds += 1
            self.seen.equal_drafts += theirs[begin][0] == drafts
            self.seen.equal_accepted += theirs[begin][1] == emitted
        if theirs and rounds:
            self.seen.acceptance_torch.append(float(np.mean([emitted for _, emitted in theirs.values()])))
            self.seen.acceptance_engine.append(float(np.mean([emitted for _, emitted in rounds.values()])))

    def _speculate(self, prompt: Sequence[int], max_new_tokens: int) -> tuple[list[int], Rounds]:
        """Tokens of the speculative answer, and its rounds."""
        tokens: list[int] = []
        rounds: Rounds = {}
        for turn in self._loop.run([prompt], max_new_tokens, block=self._manifest.drafter.block_size):
            emitted = turn.lanes[0].tokens
            if not turn.prefill:
                rounds[len(tokens)] = (self._steps.drafts if turn.offered else None, len(emitted))
            tokens += emitted
        return tokens, rounds

    def _judge(
        self, counts: TextCounts, name: str, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]
    ) -> None:
        precision = self._manifest.precision
        verdict = compare(plain, other, precision, lambda start: self._loop.top_two(prompt, start))
        if verdict.kind == "identical":
            counts.identical += 1
        else:
            where = {"prompt": name, "token": verdict.position, "gap": verdict.gap}
            (counts.ties if verdict.kind == "tie" else counts.different).append(where)
