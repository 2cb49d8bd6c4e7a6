"""How far apart two arrays are, as numbers that can be merged over many prompts. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_TINY = 1e-12
_ROWS = 64  # rows of float64 logits held at once: 75 MB per array at a vocabulary of 150,000


@dataclass(frozen=True)
class Difference:
    """Reference against result. `scaled` is max_abs over the reference's root mean square: comparable between tensors."""

    count: int
    max_abs: float
    mean_abs: float
    max_rel: float  # over elements at least as large as the reference's root mean square, where relative error means something
    scaled: float
    cosine: float


@dataclass(frozen=True)
class Agreement:
    """Two sets of logits, row by row. KL is KL(reference ‖ result) in nats."""

    rows: int
    argmax: float  # share of rows with the same best id
    mean_kl: float
    max_kl: float


def compare(reference: np.ndarray, result: np.ndarray) -> Difference:
    """Compare two arrays of one shape, in float64. A NaN or infinity in `result` makes every distance infinite."""
    if reference.shape != result.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {result.shape}")
    wanted, found = reference.astype(np.float64).ravel(), result.astype(np.float64).ravel()
    if not np.isfinite(found).all():
        return Difference(wanted.size, np.inf, np.inf, np.inf, np.inf, 0.0)
    if wanted.size == 0:
        return Difference(0, 0.0, 0.0, 0.0, 0.0, 1.0)
    error = np.abs(wanted - found)
    rms = float(np.sqrt(np.mean(wanted**2)))
    large = np.abs(wanted) >= max(rms, _TINY)
    norms = float(np.linalg.norm(wanted) * np.linalg.norm(found))
    return Difference(
        count=wanted.size,
        max_abs=float(error.max()),
        mean_abs=float(error.mean()),
        max_rel=float((error[large] / np.abs(wanted[large])).max(initial=0.0)),
        scaled=float(error.max()) / max(rms, _TINY),
        cosine=float(wanted @ found) / norms if norms > _TINY else float(not error.any()),
    )


def agree(reference: np.ndarray, result: np.ndarray) -> Agreement:
    """Compare logits (rows, V)."""
    blocks = range(0, len(reference), _ROWS)
    kl = np.concatenate([_kl(reference[i : i + _ROWS], result[i : i + _ROWS]) for i in blocks])
    same = reference.argmax(axis=-1) == result.argmax(axis=-1)
    return Agreement(len(kl), float(same.mean()), float(kl.mean()), float(kl.max()))


def merge(parts: Sequence[Difference]) -> Difference:
    """The worst of every number, and the mean of the means; parts without elements say nothing."""
    parts = [part for part in parts if part.count] or list(parts[:1])
    count = sum(part.count for part in parts)
    return Difference(
        count=count,
        max_abs=max(part.max_abs for part in parts),
        mean_abs=sum(part.mean_abs * part.count for part in parts) / max(count, 1),
        max_rel=max(part.max_rel for part in parts),
        scaled=max(part.scaled for part in parts),
        cosine=min(part.cosine for part in parts),
    )


def merge_agreement(parts: Sequence[Agreement]) -> Agreement:
    """Means weighted by rows; the largest KL."""
    rows = sum(part.rows for part in parts)
    return Agreement(
        rows=rows,
        argmax=sum(part.argmax * part.rows for part in parts) / rows,
        mean_kl=sum(part.mean_kl * part.rows for part in parts) / rows,
        max_kl=max(part.max_kl for part in parts),
    )


def _kl(reference: np.ndarray, result: np.ndarray) -> np.ndarray:
    wanted, found = _log_softmax(reference), _log_softmax(result)
    return (np.exp(wanted) * (wanted - found)).sum(axis=-1)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
