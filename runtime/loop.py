"""The lossless greedy speculative loop over three engines, one or many ragged lanes. Knows token ids, nothing of text.

A lane's caches hold every token but its last (the anchor). A round drafts after the anchor, verifies anchor + drafts in one target
step, keeps the longest prefix of drafts equal to the target's own choices plus one token of the target, and commits exactly the
rows of the tokens it keeps. A block of 1 is a plain step on the same target engine, without a drafter call.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np

from lilicorr.runtime.block_choice import BlockChoice, LaneAcceptance
from lilicorr.runtime.lane import Cut, Lane
from lilicorr.runtime.manifest import Manifest
from lilicorr.runtime.request import check_block, check_request
from lilicorr.runtime.stats import LaneRound, Round
from lilicorr.runtime.steps import Steps


class GreedyLoop:
    """Greedy generation on `steps`. One run at a time: starting a run ends the one before it.

    Attributes:
        choices: Number of lanes -> what chooses the blocks of rounds of so many, having timed the first of them.
    """

    def __init__(self, steps: Steps, manifest: Manifest):
        self.steps, self._stops = steps, frozenset(manifest.target.stop_token_ids)
        self._limits, self._vocab = manifest.limits, manifest.target.vocab_size
        self._history: list[int] = []  # tokens whose rows lane 0 holds, after a run of one lane
        self._run = 0
        self.choices: dict[int, BlockChoice] = {}

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        block: int | None = None,
        use_head: bool = True,
        reuse_prefix: bool = False,
        cut: Cut | None = None,
    ) -> Iterator[Round]:
        """Yield the prefill and then every round, until all lanes have finished.

        Args:
            prompts: Token ids per lane, none empty.
            max_new_tokens: Most tokens per answer, at least 1.
            block: Tokens a round verifies, 1 (plain decoding) to the bundle's block size; fewer where the answer ends.
                None: as many as pay, chosen before every round (`block_choice`).
            use_head: Draft by the head's walk; False, or a bundle without head: each slot's best candidate.
            reuse_prefix: Keep the rows of a prefix shared with the previous single-lane run.
            cut: Stop-string test.

        Raises:
            UserError: too many prompts, an empty one, or one that leaves no room for an answer; a block longer than served.
        """
        check_request(prompts, max_new_tokens, self._limits, self._vocab)
        most = self.steps.block_size if block is None else check_block(block, self.steps.block_size)
        self._run += 1
        return self._rounds(self._run, prompts, max_new_tokens, most, block is None, use_head, reuse_prefix, cut)

    def top_two(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, int, float]:
        """The two best next tokens after `prompt` + `answer` and their logit gap, decoding plainly as `run` does.

        Args:
            prompt: Token ids.
            answer: Tokens emitted so far, at least the prefill's one.
        """
        for _ in self.run([prompt], 1, block=1):
            pass
        self._history = []
        for token in answer:
            logits = self.steps.verify_logits(token)
            self.steps.commit(np.ones(1, dtype=np.int32))
        second, first = np.argsort(logits, kind="stable")[-2:].tolist()
        return first, second, float(logits[first] - logits[second])

    def _rounds(
        self,
        run: int,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        most: int,
        chosen: bool,
        use_head: bool,
        reuse_prefix: bool,
        cut: Cut | None,
    ) -> Iterator[Round]:
        self._require_latest(run)
        steps, use_head = self.steps, use_head and self.steps.has_head
        clock = _Clock(steps)
        room = [self._limits.max_context - len(p) for p in prompts]
        lanes = [
            Lane(i, len(p), min(max_new_tokens, r), "length" if max_new_tokens <= r else "context")
            for i, (p, r) in enumerate(zip(prompts, room, strict=True))
        ]
        acceptance = [LaneAcceptance(most - 1) for _ in lanes]
        self._begin(prompts, most > 1, reuse_prefix)
        firsts = self._prefill(prompts, most > 1)
        if len(lanes) == 1:
            self._history = list(prompts[0])
        records = [lane.emit([int(first)], self._stops, cut) for lane, first in zip(lanes, firsts, strict=True)]
        lanes = self._drop_finished(lanes, records)
        done = clock.round(prefill=True, offered=0, records=records)
        while True:
            yield done
            if not lanes:
                return
            self._require_latest(run)
            clock.start()
            block = min(most, max(lane.budget for lane in lanes))
            choice = self.choices.setdefault(len(lanes), BlockChoice(steps.block_size)) if chosen else None
            if choice:
                block = choice.choose([acceptance[lane.index] for lane in lanes], block)
            anchor = lanes[0].anchor
            drafts, choices, accepted = self._decode(lanes, block, use_head)
            records = [
                lane.emit(row[: 1 + min(n, lane.budget - 1)], self._stops, cut, drafts=n)
                for lane, row, n in zip(lanes, choices.tolist(), accepted, strict=True)
            ]
            for lane, n in zip(lanes, accepted, strict=True):
                acceptance[lane.index].see(block - 1, n)
            counts = np.array([len(record.tokens) for record in records], dtype=np.int32)
            if self._history:
                self._history += [anchor, *drafts[0].tolist()][: counts[0]]
            steps.commit(counts)
            for position, (lane, record) in enumerate(zip(lanes, records, strict=True)):
                if record.retracted:
                    steps.target.truncate(position, lane.rows)
            lanes = self._drop_finished(lanes, records)
            done = clock.round(prefill=False, offered=block - 1, records=records)
            if choice:
                choice.see(done)

    def _decode(self, lanes: Sequence[Lane], block: int, use_head: bool) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Run a round's engines: drafts (N, at least block-1), the target's choices (N,block), accepted drafts of each lane."""
        anchors = np.array([lane.anchor for lane in lanes], dtype=np.int32)
        if block > 1:
            drafts, choices = self.steps.speculate(anchors, block, use_head=use_head)
        else:
            drafts, choices = np.empty((len(lanes), 0), dtype=np.int32), self.steps.verify(anchors[:, None])
        return drafts, choices, np.cumprod(drafts[:, : block - 1] == choices[:, :-1], axis=1).sum(axis=1).tolist()

    def _require_latest(self, run: int) -> None:
        """An older run, begun or not, would write into the caches of the latest."""
        if run != self._run:
            raise RuntimeError("this generation ended when another one was started on the same session")

    def _begin(self, prompts: Sequence[Sequence[int]], drafting: bool, reuse_prefix: bool) -> None:
        """Set the caches to what the prompts share with the last run, which is nothing unless it is asked for."""
        steps, shared = self.steps, 0
        if reuse_prefix and len(prompts) == 1 and self._history:
            most = min(len(prompts[0]) - 1, int(steps.target.lengths[0]))
            if drafting:
                steps.feed()  # rows of the last run that the drafter lacks (a chunk of plain steps) would be prefilled again
                most = min(most, int(steps.drafter.lengths[0]))
            while shared < most and self._history[shared] == prompts[0][shared]:
                shared += 1
        self._history = []
        if shared:
            steps.resume(shared, drafting=drafting)
        else:
            steps.reset(len(prompts), drafting=drafting)

    def _prefill(self, prompts: Sequence[Sequence[int]], drafting: bool) -> np.ndarray:
        """Forward the prompts in chunks, aligned at their ends so that every lane has rows in the last chunk.

        Returns:
            First tokens (N,); the drafter has not been given the features of the last chunk yet.
        """
        steps, chunk = self.steps, self._limits.prefill_chunk
        rest = [list(p[done:]) for p, done in zip(prompts, steps.target.lengths.tolist(), strict=True)]
        longest = max(map(len, rest))
        for begin in range(0, longest, chunk):
            end = min(begin + chunk, longest)
            tokens = np.zeros((len(rest), end - begin), dtype=np.int32)
            counts = np.zeros(len(rest), dtype=np.int32)
            for lane, ids in enumerate(rest):
                late = longest - len(ids)
                part = ids[max(0, begin - late) : max(0, end - late)]
                tokens[lane, : len(part)] = part
                counts[lane] = len(part)
            choices = steps.verify(tokens)
            steps.commit(counts)
            if drafting and end < longest:
                steps.feed()
        return choices[np.arange(len(rest)), counts - 1]

    def _drop_finished(self, lanes: list[Lane], records: Sequence[LaneRound]) -> list[Lane]:
        going = [i for i, record in enumerate(records) if record.finish is None]
        if going and len(going) < len(lanes):
            self.steps.keep(going)
        return [lanes[i] for i in going]


class _Clock:
    """Wall time of a round, split by the engine seconds that `steps` gathers."""

    def __init__(self, steps: Steps):
        self.steps = steps
        self.start()

    def start(self) -> None:
        self._began = time.perf_counter()
        self.steps.take_seconds()

    def round(self, *, prefill: bool, offered: int, records: Sequence[LaneRound]) -> Round:
        total = time.perf_counter() - self._began
        return Round(prefill=prefill, offered=offered, lanes=tuple(records), total=total, **self.steps.take_seconds())
