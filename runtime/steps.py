"""The three engine steps of a round on any backend: verify (target), draft (drafter) and score (scorer), with their buffers.

Allocates every buffer once, binds a call once per shape and reuses it. Drafts go from the drafter through the scorer into the
target without leaving the device: a round waits once, for what `speculate` returns. Knows shapes and caches; decides nothing:
which rows to commit is the loop's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lilicorr.runtime.contract import FLOATS
from lilicorr.runtime.engine import Backend, Buffer, Call
from lilicorr.runtime.in_place_arena import arena_for
from lilicorr.runtime.manifest import Manifest
from lilicorr.runtime.unfed import Unfed

LATTICE = ("candidate_ids", "log_probs", "hidden", "anchor_row")  # what the drafter gives and the scorer reads

PART_OF = {"drafter": "draft", "scorer": "score", "target": "verify"}  # of a round's time

# Per capacity, steady state needs a target call per block that is chosen, a drafter call per width of rows handed over (powers of
# two after plain steps) and the scorer; prompts add one per distinct chunk remainder. Enough for blocks of 16, bounded.
_MOST_CALLS = 32

Bindings = tuple[dict[str, Buffer], dict[str, Buffer]]  # inputs, outputs


class Steps:
    """Engines, arenas and buffers of one bundle.

    Attributes:
        target: Arena of the target.
        drafter: Arena of the drafter.
    """

    def __init__(self, backend: Backend, manifest: Manifest):
        limits, drafter, target = manifest.limits, manifest.drafter, manifest.target
        real, lanes, self._backend = FLOATS[manifest.precision], limits.max_batch, backend
        self.max_width = max(limits.prefill_chunk, drafter.block_size)
        self.block_size, self.has_head, self._vocab = drafter.block_size, manifest.head is not None, target.vocab_size
        slots, topk, hidden = self.block_size - 1, drafter.candidate_topk, target.hidden_size
        self._row_shapes: dict[str, tuple[int, ...]] = {
            "candidate_ids": (slots, topk),
            "log_probs": (slots, topk),
            "hidden": (slots, hidden),
            "anchor_row": (hidden,),
            "draft_tokens": (slots,),
        }
        dtypes = {"log_probs": "float32", "hidden": real, "anchor_row": real}
        self._buffers: dict[str, Buffer] = {
            name: backend.buffer((lanes, *shape), dtypes.get(name, "int32")) for name, shape in self._row_shapes.items()
        }
        for name in ("tokens", "next_ids"):
            self._buffers[name] = backend.buffer((lanes, self.max_width), "int32")
        for name in ("target_lengths", "drafter_lengths", "anchor", "count"):
            self._buffers[name] = backend.buffer((lanes,), "int32")
        self._buffers["logits"] = backend.buffer((1, 1, self._vocab), "float32")
        self.target = arena_for(backend, manifest, target.cache, width=self.max_width)
        self.drafter = arena_for(backend, manifest, drafter.cache, width=self.max_width)
        self._unfed = Unfed(
            backend, lanes=lanes, rows=self.max_width, size=len(drafter.target_layer_ids) * hidden, dtype=real
        )
        self._drafting, self._width = False, 0  # width: of the last call of the target
        self._calls: dict[tuple[str, tuple[int, ...]], Call] = {}

    @property
    def lanes(self) -> int:
        return len(self.target.lengths)

    def reset(self, lanes: int, *, drafting: bool) -> None:
        """Make `lanes` lanes active, with empty caches; `drafting` says whether the drafter's cache follows the target's."""
        self.target.reset(lanes)
        self.drafter.reset(lanes)
        self._begin(drafting)

    def resume(self, rows: int, *, drafting: bool) -> None:
        """Go on with the first `rows` rows of the one lane's caches."""
        self.target.truncate(0, rows)
        self.drafter.truncate(0, rows)
        self._begin(drafting)

    def _begin(self, drafting: bool) -> None:
        self._drafting = drafting
        self._unfed.clear(self.lanes)

    def commit(self, counts: np.ndarray) -> None:
        """Keep rows 0…counts[n]-1 of the last call of the target; the drafter is given their features by its next call."""
        self.target.commit(self._width, counts)
        if self._drafting:
            self._unfed.add(self._width, counts)

    def keep(self, lanes: Sequence[int]) -> None:
        """Drop every lane but `lanes` (ascending)."""
        self.target.keep(lanes)
        self.drafter.keep(lanes)
        self._unfed.keep(lanes)

    def take_seconds(self) -> dict[str, float]:
        """Part of a round ("draft", "score", "verify") -> seconds in its engine calls since this was last asked."""
        taken = self._backend.take_seconds()
        return {part: taken.get(graph, 0.0) for graph, part in PART_OF.items()}

    def verify(self, tokens: np.ndarray) -> np.ndarray:
        """Target step: `tokens` (N,T) int32 -> next_ids (N,T); features and new rows wait for `commit`."""
        if not self._unfed.fits(tokens.shape[1]):
            self.feed()
        self._unfed.make_room()
        self._backend.upload(self._view("tokens", *tokens.shape), tokens)
        return self._backend.download(self._run_target(*tokens.shape))[0]

    def verify_logits(self, token: int) -> np.ndarray:
        """Target step of one token on one lane -> logits (V,) f32; not for a drafting run."""
        self._backend.upload(self._view("tokens", 1, 1), np.array([[token]], dtype=np.int32))
        self._run_target(1, 1, with_logits=True)
        return self._backend.download(self._buffers["logits"])[0].reshape(-1)

    def feed(self) -> None:
        """Hand the features of everything committed to the drafter's cache, if any wait; drafts nothing."""
        if self._unfed.counts.any():
            self._run_drafter(np.zeros(self.lanes, dtype=np.int32))

    def speculate(self, anchors: np.ndarray, block: int, *, use_head: bool) -> tuple[np.ndarray, np.ndarray]:
        """Draft after `anchors`, having fed as `feed` does, and verify anchor + block-1 drafts.

        Args:
            anchors: (N,) last emitted token per lane.
            block: Tokens to verify per lane, 2 to `block_size`.
            use_head: Take the scorer's walk; otherwise each slot's best candidate, as plain DFlash does.

        Returns:
            Drafts (N,S), of which the first block-1 were verified, and the target's choices (N,block), as `verify` gives them.
        """
        self._run_drafter(anchors)
        n, copy = self.lanes, self._backend.copy
        drafts, tokens = self._row_view("draft_tokens", n), self._view("tokens", n, block)
        if use_head:
            self._bound("scorer", (n,), lambda: (self._rows(n, *LATTICE), self._rows(n, "draft_tokens")))()
        else:
            copy(drafts, self._row_view("candidate_ids", n)[:, :, 0])
        copy(tokens[:, 0], self._view("anchor", n))
        copy(tokens[:, 1:], drafts[:, : block - 1])
        seen, choices = self._backend.download(drafts, self._run_target(n, block))
        return seen, choices

    def _run_target(self, n: int, width: int, *, with_logits: bool = False) -> Buffer:
        """Run on the tokens in their buffer; returns the buffer of next_ids."""
        inputs = {"tokens": self._view("tokens", n, width), "lengths": self._view("target_lengths", n)}
        next_ids = self._view("next_ids", n, width)

        def buffers() -> Bindings:
            outputs = {"next_ids": next_ids, "features": self._unfed.packed(n, width)}
            if with_logits:
                outputs["logits"] = self._buffers["logits"]
            return inputs | self.target.caches(), outputs | self.target.fresh(width)

        self._width = width
        self._backend.upload(inputs["lengths"], self.target.lengths)
        self._bound("target", (n, width, self.target.capacity, with_logits), buffers)()
        return next_ids

    def _run_drafter(self, anchors: np.ndarray) -> None:
        n = self.lanes
        width, counts = self._unfed.take()
        small = {"anchor": self._view("anchor", n), "count": self._view("count", n)}
        small["lengths"] = self._view("drafter_lengths", n)

        def buffers() -> Bindings:
            inputs = small | {"features": self._unfed.packed(n, width)}
            outputs = self._rows(n, *LATTICE)
            return inputs | self.drafter.caches(), outputs | self.drafter.fresh(width)

        for name, values in (("anchor", anchors), ("count", counts), ("lengths", self.drafter.lengths)):
            self._backend.upload(small[name], values)
        self._bound("drafter", (n, width, self.drafter.capacity), buffers)()
        self.drafter.commit(width, counts)

    def _bound(self, graph: str, shape: tuple[int, ...], buffers: Callable[[], Bindings]) -> Call:
        key = (graph, shape)
        call = self._calls.pop(key, None) or self._backend.bind(graph, *buffers())
        self._calls[key] = call  # last: the first is the one used longest ago
        if len(self._calls) > _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        return call

    def _view(self, name: str, *shape: int) -> Buffer:
        return self._backend.view(self._buffers[name], shape)

    def _row_view(self, name: str, lanes: int) -> Buffer:
        return self._view(name, lanes, *self._row_shapes[name])

    def _rows(self, lanes: int, *names: str) -> dict[str, Buffer]:
        return {name: self._row_view(name, lanes) for name in names}
