"""Rungs 1 and 2 of the parity ladder: every output of every graph against PyTorch, then the decisions they lead to.

Texts run as ragged lanes (`ragged_calls`). Each graph gets the inputs of the reference, so that errors do not add up from graph to
graph; the scorer gets the lattice of the drafter graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lilicorr.export.budgets import Budget
from lilicorr.export.ragged_calls import RunGraph, drafter_lattice, target_rows
from lilicorr.export.reference import Block, Reference, TargetRows, walk
from lilicorr.export.tensor_metrics import Agreement, Difference, agree, compare
from lilicorr.runtime.manifest import Manifest


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
    run: RunGraph,
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
    for row, found in zip(wanted, target_rows(run, manifest, [ids for ids, _ in texts]), strict=True):
        _compare_target(row, found, budget, seen)
    for (ids, prompt), row in zip(texts, wanted, strict=True):
        prompt = max(prompt, 2)  # an anchor needs a context row in each of the two calls
        anchors = sorted({prompt, (prompt + len(ids)) // 2, len(ids) - 1})
        blocks = [reference.block(row.features[:a], ids[a]) for a in anchors]
        lattice = drafter_lattice(run, manifest, row.features, anchors, [ids[a] for a in anchors])
        _compare_drafter(blocks, lattice, budget, seen)
        if manifest.head is not None:
            _compare_scorer(run, reference, lattice, seen)


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


def _compare_scorer(run: RunGraph, reference: Reference, lattice: Mapping[str, np.ndarray], seen: TensorRungs) -> None:
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
