"""The three engine steps of a round on any backend: verify (target), draft (drafter) and score (scorer), with their buffers.

Allocates every buffer once, binds a call once per shape and reuses it, times the engine calls. Knows shapes and caches;
decides nothing: which rows to commit is the loop's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from lilicorr.runtime.contract import FLOATS
from lilicorr.runtime.engine import Backend, Buffer, Call
from lilicorr.runtime.manifest import Manifest

LATTICE = ("candidate_ids", "log_probs", "hidden", "anchor_row")  # what the drafter gives and the scorer reads

# Steady state needs one call per graph; prompts add one per distinct chunk remainder. Enough for both, bounded.
_MOST_CALLS = 24

Bindings = tuple[dict[str, Buffer], dict[str, Buffer]]  # inputs, outputs


class Steps:
    """Engines, arenas and buffers of one bundle.

    Attributes:
        target: Arena of the target.
        drafter: Arena of the drafter.
        seconds: Time inside engine calls since it was last cleared: "draft", "score", "verify".
    """

    def __init__(self, backend: Backend, manifest: Manifest):
        limits, drafter, target = manifest.limits, manifest.drafter, manifest.target
        real, lanes, self._backend = FLOATS[manifest.precision], limits.max_batch, backend
        self.max_width = max(limits.prefill_chunk, drafter.block_size)
        self.block_size, self.has_head, self._vocab = drafter.block_size, manifest.head is not None, target.vocab_size
        slots, topk, hidden = self.block_size - 1, drafter.candidate_topk, target.hidden_size
        self._feature_size = len(drafter.target_layer_ids) * hidden
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
        self._buffers["features"] = backend.buffer((lanes, self.max_width, self._feature_size), real)
        self._buffers["logits"] = backend.buffer((1, 1, self._vocab), "float32")
        self.target = backend.arena(target.cache, lanes=lanes, rows=limits.max_context, width=self.max_width)
        self.drafter = backend.arena(drafter.cache, lanes=lanes, rows=limits.max_context, width=self.max_width)
        self._calls: dict[tuple[str, tuple[int, ...]], Call] = {}
        self.seconds = dict.fromkeys(("draft", "score", "verify"), 0.0)

    @property
    def lanes(self) -> int:
        return len(self.target.lengths)

    def reset(self, lanes: int) -> None:
        """Make `lanes` lanes active, with empty caches."""
        self.target.reset(lanes)
        self.drafter.reset(lanes)

    def keep(self, lanes: Sequence[int], width: int) -> None:
        """Drop every lane but `lanes` (ascending) from the arenas and from the features of the last verify of `width`."""
        self._backend.take_lanes(self._view("features", self.lanes, width, self._feature_size), lanes)
        self.target.keep(lanes)
        self.drafter.keep(lanes)

    def verify(self, tokens: np.ndarray) -> np.ndarray:
        """Target step: `tokens` (N,T) int32 -> next_ids (N,T); features and new rows stay in their buffers."""
        return self._run_target(tokens, with_logits=False)

    def verify_logits(self, token: int) -> np.ndarray:
        """Target step of one token on one lane -> logits (V,) f32."""
        self._run_target(np.array([[token]], dtype=np.int32), with_logits=True)
        return self._backend.download(self._buffers["logits"]).reshape(-1)

    def feed(self, width: int, counts: np.ndarray) -> None:
        """Hand the features of the last verify (of `width` rows, `counts` valid) to the drafter's cache; drafts nothing."""
        self._run_drafter(np.zeros(self.lanes, dtype=np.int32), width, counts)

    def draft(self, anchors: np.ndarray, width: int, counts: np.ndarray, *, use_head: bool) -> np.ndarray:
        """Drafter (and scorer) step: draft tokens (N,S) after `anchors` (N,), having fed the rows as `feed` does.

        Args:
            anchors: Last emitted token per lane.
            width: Rows of the last verify.
            counts: (N,) valid rows of those, at least 1.
            use_head: Take the scorer's walk; otherwise each slot's best candidate, as plain DFlash does.
        """
        self._run_drafter(anchors, width, counts)
        n = self.lanes
        if not use_head:
            return self._backend.download(self._row_view("candidate_ids", n))[:, :, 0]
        call = self._bound("scorer", (n,), lambda: (self._rows(n, *LATTICE), self._rows(n, "draft_tokens")))
        self._timed("score", call)
        return self._backend.download(self._row_view("draft_tokens", n))

    def _run_target(self, tokens: np.ndarray, *, with_logits: bool) -> np.ndarray:
        n, width = tokens.shape
        inputs = {"tokens": self._view("tokens", n, width), "lengths": self._view("target_lengths", n)}
        next_ids = self._view("next_ids", n, width)

        def buffers() -> Bindings:
            outputs = {"next_ids": next_ids, "features": self._view("features", n, width, self._feature_size)}
            if with_logits:
                outputs["logits"] = self._buffers["logits"]
            return inputs | self.target.caches(), outputs | self.target.fresh(width)

        call = self._bound("target", (n, width, self.target.capacity, with_logits), buffers)
        self._backend.upload(inputs["tokens"], tokens)
        self._backend.upload(inputs["lengths"], self.target.lengths)
        self._timed("verify", call)
        return self._backend.download(next_ids)

    def _run_drafter(self, anchors: np.ndarray, width: int, counts: np.ndarray) -> None:
        n = self.lanes
        small = {"anchor": self._view("anchor", n), "count": self._view("count", n)}
        small["lengths"] = self._view("drafter_lengths", n)

        def buffers() -> Bindings:
            inputs = small | {"features": self._view("features", n, width, self._feature_size)}
            outputs = self._rows(n, *LATTICE)
            return inputs | self.drafter.caches(), outputs | self.drafter.fresh(width)

        call = self._bound("drafter", (n, width, self.drafter.capacity), buffers)
        for name, values in (("anchor", anchors), ("count", counts), ("lengths", self.drafter.lengths)):
            self._backend.upload(small[name], values)
        self._timed("draft", call)
        self.drafter.commit(width, counts)

    def _bound(self, graph: str, shape: tuple[int, ...], buffers: Callable[[], Bindings]) -> Call:
        key = (graph, shape)
        if key not in self._calls:
            if len(self._calls) >= _MOST_CALLS:
                self._calls.clear()
            self._calls[key] = self._backend.bind(graph, *buffers())
        return self._calls[key]

    def _timed(self, part: str, call: Call) -> None:
        start = time.perf_counter()
        call()
        self.seconds[part] += time.perf_counter() - start

    def _view(self, name: str, *shape: int) -> Buffer:
        return self._backend.view(self._buffers[name], shape)

    def _row_view(self, name: str, lanes: int) -> Buffer:
        return self._view(name, lanes, *self._row_shapes[name])

    def _rows(self, lanes: int, *names: str) -> dict[str, Buffer]:
        return {name: self._row_view(name, lanes) for name in names}
