"""A sequence with several answers: where blocks start, what a cut leaves, and what two data sets' hashes tell apart."""

from __future__ import annotations

import pytest

from lilicorr.train.conversation import Conversation, sequences_sha256

IDS = tuple(range(100, 120))


def test_blocks_start_inside_answers_only():
    item = Conversation("a", IDS, ((2, 5), (8, 9), (12, 14)))
    assert item.anchors == [2, 3, 12]  # a single token has none after it
    assert item.answer_ids == [102, 103, 104, 108, 112, 113]


@pytest.mark.parametrize(
    ("max_length", "answers"),
    [
        (99, ((2, 6), (8, 11), (14, 20))),
        (20, ((2, 6), (8, 11), (14, 20))),
        (18, ((2, 6), (8, 11), (14, 18))),
        (17, ((2, 6), (8, 11))),
        (12, ((2, 6), (8, 11))),
        (11, ((2, 6),)),
        (6, ((2, 6),)),
        (5, None),
        (1, None),
    ],
)
def test_a_cut_ends_with_the_last_answer_that_holds_a_block(max_length, answers):
    """The answer of two tokens at 11 never holds one of three."""
    whole = Conversation("a", IDS, ((2, 6), (8, 11), (11, 13), (14, 20)))
    cut = whole.cut(max_length, 3)
    assert cut == (answers and Conversation("a", IDS[: answers[-1][1]], answers))


def test_the_hash_of_a_data_set():
    """Runs begun when there was one answer a sequence hashed the ids; where there are several, their ends count."""
    one = [Conversation("a", (1, 2, 3), ((1, 3),)), Conversation("b", (4,), ((0, 1),))]
    assert sequences_sha256(one) == "2bb117ae0fb4e4898b928a92ba322a1ada1ac536619c66e0e387f3660a2eaf07"
    several = [Conversation("a", (1, 2, 3, 4, 5), spans) for spans in (((1, 2), (3, 5)), ((1, 3), (3, 5)))]
    assert sequences_sha256(several[:1]) != sequences_sha256(several[1:])
