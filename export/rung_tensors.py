"""Rungs 1 and 2 of the parity ladder: every output of every graph against PyTorch, then the decisions they lead to.

Texts run as ragged lanes in several calls (prefill, prefill, block, single token), over caches whose unused rows hold junk, so that
masks, positions and chunking are part of what is compared. Each graph gets the reference's inputs, so that errors do not add up
from graph to graph; the scorer gets the drafter graph's own lattice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lilicorr.export.budgets import Budget
from lilicorr.export.graph_runner import GraphRunner
from lilicorr.export.reference import Block, Reference, TargetRows, walk
from lilicorr.export.tensor_metrics import Agreement, Difference, agree, compare
from lilicorr.runtime.manifest import Cache, Manifest
from lilicorr.runtime.steps import LATTICE

JUNK = 3.0  # fills cache rows that no call may see
SPARE_ROWS = 5  # capacity beyond the longest text


@dataclass
class Decisions:
    """Counts of one kind of decision."""

    total: int = 0
    ties: int = 0  # different, but the reference scores lie within the tie gap
    different: int = 0
    largest_tie: float = 0.0


@dataclass
class TensorRungs:
    """What rungs 1 and 2 saw, over all texts."""

    differences: dict[str, list[Difference]] = field(default_factory=dict)  # "graph.output" -> per text
    agreement: list[Agreement] = field(default_factory=list)
    next_ids: Decisions = field(default_factory=Decisions)  # against PyTorch's best token
    candidates: Decisions = field(default_factory=Decisions)
    own_argmax: Decisions = field(default_factory=Decisions)  # next_ids against the graph's own logits: exact
    walks: Decisions = field(default_factory=Decisions)  # path and draft_tokens against the reference walk: exact

    def add(self, name: str, reference: np.ndarray, result: np.ndarray) -> None:
        self.differences.setdefault(name, []).append(compare(reference, result))


def observe(
    run: GraphRunner,
    manifest: Manifest,
    reference: Reference,
    texts: Sequence[tuple[Sequence[int], int]],
    budget: Budget,
    seen: TensorRungs,
) -> None:
    """Run the graphs on `texts` as lanes of one batch and add what is found to `seen`.

    Args:
        texts: (token ids, prompt length) each; the ids go on after the prompt with an answer of a block or more.
    """
    wanted = [reference.target(ids) for ids, _ in texts]
    for row, found in zip(wanted, _target_rows(run, manifest, [ids for ids, _ in texts]), strict=True):
        _compare_target(row, found, budget, seen)
    for (ids, prompt), row in zip(texts, wanted, strict=True):
        prompt = max(prompt, 2)  # an anchor needs a context row in each of the two calls
        anchors = sorted({prompt, (prompt + len(ids)) // 2, len(ids) - 1})
        blocks = [reference.block(row.features[:a], ids[a]) for a in anchors]
        lattice = _drafter_lattice(run, manifest, row.features, anchors, [ids[a] for a in anchors])
        _compare_drafter(blocks, lattice, budget, seen)
        if manifest.head is not None:
            _compare_scorer(run, reference, lattice, seen)


def _target_rows(run: GraphRunner, manifest: Manifest, texts: Sequence[Sequence[int]]) -> list[dict[str, np.ndarray]]:
    """All outputs of the target graph, per text, rows of the calls joined: logits (L,V), features (L,F·H), k_{i} (Hkv,L,D) …"""
    cache, lengths = manifest.target.cache, np.zeros(len(texts), np.int32)
    caches = _empty_caches(cache, len(texts), max(map(len, texts)))
    pieces: list[dict[str, list[np.ndarray]]] = [{} for _ in texts]
    for counts in zip(*(_calls(len(ids), manifest.drafter.block_size) for ids in texts), strict=True):
        if max(counts) == 0:
            continue
        tokens = np.zeros((len(texts), max(counts)), np.int32)
        for lane, ids in enumerate(texts):
            tokens[lane, : counts[lane]] = ids[lengths[lane] : lengths[lane] + counts[lane]]
        out = run("target", {"tokens": tokens, "lengths": lengths, **caches})
        for lane, count in enumerate(counts):
            for name in ("logits", "next_ids", "features"):
                pieces[lane].setdefault(name, []).append(out[name][lane, :count])
            for name in _kv(cache):
                pieces[lane].setdefault(name, []).append(out[f"new_{name}"][lane, :, :count])
        _commit(caches, out, cache, lengths, counts)
    return [
        {name: np.concatenate(parts, axis=1 if name[1] == "_" else 0) for name, parts in lane.items()}
        for lane in pieces
    ]


def _calls(length: int, block: int) -> tuple[int, int, int, int]:
    """Tokens per call for one text: two prefill chunks, one block, one plain step."""
    half = (length - block - 1) // 2
    return half, length - block - 1 - half, block, 1


def _drafter_lattice(
    run: GraphRunner, manifest: Manifest, features: np.ndarray, anchors: Sequence[int], tokens: Sequence[int]
) -> dict[str, np.ndarray]:
    """The drafter's lattice for several anchors of one text as lanes, the context handed over in two calls."""
    cache, lengths = manifest.drafter.cache, np.zeros(len(anchors), np.int32)
    caches, out = _empty_caches(cache, len(anchors), max(anchors)), {}
    halves = [max(1, anchor // 2) for anchor in anchors]
    for counts in (halves, [anchor - half for anchor, half in zip(anchors, halves, strict=True)]):
        rows = np.full((len(anchors), max(counts), features.shape[1]), JUNK, np.float32)
        for lane, count in enumerate(counts):
            rows[lane, :count] = features[lengths[lane] : lengths[lane] + count]
        given = {"anchor": np.array(tokens, np.int32), "features": rows, "count": np.array(counts, np.int32)}
        out = run("drafter", {**given, "lengths": lengths, **caches})
        _commit(caches, out, cache, lengths, counts)
    return {name: out[name] for name in LATTICE}


def _compare_target(wanted: TargetRows, found: Mapping[str, np.ndarray], budget: Budget, seen: TensorRungs) -> None:
    seen.add("target.logits", wanted.logits, found["logits"])
    seen.add("target.features", wanted.features, found["features"])
    for kind in "kv":
        layers = [name for name in wanted.keys_values if name.startswith(kind)]
        stacked = (np.stack([rows[name] for name in layers]) for rows in (wanted.keys_values, found))
        seen.add(f"target.new_{kind}", *stacked)
    seen.agreement.append(agree(wanted.logits, found["logits"]))
    _exact(seen.own_argmax, found["logits"].argmax(axis=-1), found["next_ids"])
    best = wanted.logits.argmax(axis=-1)
    _decide(seen.next_ids, wanted.logits, best[:, None], found["next_ids"][:, None], budget.tie_gap)


def _compare_drafter(
    blocks: Sequence[Block], lattice: Mapping[str, np.ndarray], budget: Budget, seen: TensorRungs
) -> None:
    seen.add("drafter.hidden", np.stack([block.hidden for block in blocks]), lattice["hidden"])
    seen.add("drafter.anchor_row", np.stack([block.anchor_row for block in blocks]), lattice["anchor_row"])
    for block, ids, log_probs in zip(blocks, lattice["candidate_ids"], lattice["log_probs"], strict=True):
        seen.add("drafter.log_probs", np.take_along_axis(block.vocabulary_log_probs, ids, axis=1), log_probs)
        _decide(seen.candidates, block.vocabulary_log_probs, block.candidate_ids, ids, budget.tie_gap)


def _compare_scorer(
    run: GraphRunner, reference: Reference, lattice: Mapping[str, np.ndarray], seen: TensorRungs
) -> None:
    out = run("scorer", lattice)
    start, pair = reference.scores(**lattice)
    seen.add("scorer.start", start, out["start"])
    seen.add("scorer.pair", pair, out["pair"])
    path = walk(out["start"], out["pair"])
    _exact(seen.walks, path, out["path"])
    chosen = np.take_along_axis(lattice["candidate_ids"], path[..., None].astype(np.int64), axis=2)[..., 0]
    _exact(seen.walks, chosen, out["draft_tokens"])


def _decide(counts: Decisions, scores: np.ndarray, wanted: np.ndarray, found: np.ndarray, gap: float) -> None:
    """Count ids (rows, K) that differ, as ties where the reference `scores` (rows, V) of both ids are within `gap`."""
    counts.total += wanted.size
    for row, rank in np.argwhere(wanted != found):
        distance = float(abs(scores[row, wanted[row, rank]] - scores[row, found[row, rank]]))
        if distance <= gap:
            counts.ties += 1
            counts.largest_tie = max(counts.largest_tie, distance)
        else:
            counts.different += 1


def _exact(counts: Decisions, wanted: np.ndarray, found: np.ndarray) -> None:
    counts.total += wanted.size
    counts.different += int((wanted != found).sum())


def _kv(cache: Cache) -> list[str]:
    return [f"{kind}_{i}" for i in range(cache.layers) for kind in "kv"]


def _empty_caches(cache: Cache, lanes: int, rows: int) -> dict[str, np.ndarray]:
    shape = (lanes, cache.kv_heads, rows + SPARE_ROWS, cache.head_dim)
    return {f"{name[0]}_cache{name[1:]}": np.full(shape, JUNK, np.float32) for name in _kv(cache)}


def _commit(
    caches: dict[str, np.ndarray],
    out: Mapping[str, np.ndarray],
    cache: Cache,
    lengths: np.ndarray,
    counts: Sequence[int],
) -> None:
    """Append the valid new rows of every lane and advance `lengths` in place."""
    for name in _kv(cache):
        rows = caches[f"{name[0]}_cache{name[1:]}"]
        for lane, count in enumerate(counts):
            rows[lane, :, lengths[lane] : lengths[lane] + count] = out[f"new_{name}"][lane, :, :count]
    lengths += np.array(counts, np.int32)
