"""Compare greedy speculative answers with plain ones: identical, a tie, or different.

A block of several tokens and a single token take different kernels, so logits differ in the last bits. Where the two best tokens
are closer than that noise either is right; anything else that differs is a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

# Largest gap of the two best logits that arithmetic noise may turn over. fp32: block and single-token logits of a 135M model
# differ by 1e-4; 2e-3 leaves room for larger ones. fp16 and bf16: the same noise grows with the rounding step (2^-11, 2^-8).
TIE_GAP = {"fp32": 2e-3, "fp16": 5e-2, "bf16": 4e-1}


class Verdict(NamedTuple):
    """`kind` is "identical", "tie" or "different"; `position` and `gap` say where and how close otherwise."""

    kind: str
    position: int | None = None
    gap: float | None = None


def compare(
    plain: Sequence[int],
    speculative: Sequence[int],
    precision: str,
    top_two: Callable[[Sequence[int]], tuple[int, int, float]],
) -> Verdict:
    """Judge one pair of answers.

    Args:
        plain: Tokens of plain greedy decoding.
        speculative: Tokens of the speculative run.
        precision: Of the bundle; picks the tie gap.
        top_two: Given the common start of both, the plain run's two best next tokens and their logit gap.
    """
    if list(plain) == list(speculative):
        return Verdict("identical")
    position = common_prefix(plain, speculative)
    # Token 0 is the prefill's, the same computation in both; and answers with an equal start end at the same place.
    if position in (0, len(plain), len(speculative)):
        return Verdict("different", position)
    first, second, gap = top_two(plain[:position])
    close = {plain[position], speculative[position]} == {first, second} and gap <= TIE_GAP[precision]
    return Verdict("tie" if close else "different", position, gap)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two answers share from the start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
