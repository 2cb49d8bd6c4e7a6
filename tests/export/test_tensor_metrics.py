"""Distances between arrays, on numbers worked out by hand."""

import numpy as np
import pytest

from lilicorr.export.tensor_metrics import agree, compare, merge, merge_agreement


def test_hand_computed_difference():
    found = compare(np.array([3.0, -4.0, 0.0, 0.0]), np.array([3.0, -4.5, 0.25, 0.0]))
    rms = 2.5
    assert (found.count, found.max_abs, found.mean_abs) == (4, 0.5, 0.1875)
    assert found.max_rel == 0.125  # of -4 only: 0.25 against 0 is no relative error
    assert found.scaled == 0.5 / rms
    assert found.cosine == pytest.approx(27 / (5 * np.sqrt(9 + 20.25 + 0.0625)))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_infinitely_far(bad):
    assert compare(np.ones(2), np.array([1.0, bad])).max_abs == np.inf


def test_zeros_equal_zeros_and_nothing_else():
    assert compare(np.zeros(3), np.zeros(3)).cosine == 1.0
    assert compare(np.zeros(3), np.ones(3)).cosine == 0.0


def test_shapes_must_agree():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        compare(np.zeros(2), np.zeros(3))


def test_merge_keeps_the_worst():
    left, right = compare(np.ones(1), np.ones(1)), compare(np.ones(3), np.full(3, 1.5))
    merged = merge([left, right, compare(np.zeros(0), np.zeros(0))])
    assert (merged.count, merged.max_abs, merged.mean_abs) == (4, 0.5, 0.375)


def test_agreement_of_two_token_distributions():
    reference = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    result = np.log(np.array([[0.25, 0.75], [0.9, 0.1]])) + 7.0  # a shift of all logits changes nothing
    found = agree(reference, result)
    expected = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert found.max_kl == pytest.approx(expected)
    assert found.mean_kl == pytest.approx(expected / 2)
    assert (found.rows, found.argmax) == (2, 0.5)
    assert merge_agreement([found, agree(reference, reference)]).argmax == 0.75
