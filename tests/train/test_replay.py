"""Speculative replay against plain greedy decoding, drafts against the reference forward, rounds against a scripted drafter."""

import pytest
import torch

from lilicorr.train import replay as module
from lilicorr.train.checkpoint import read_drafter
from lilicorr.train.replay import acceptance_on_continuation, draft, replay
from lilicorr.train.target import load_target, target_features

PROMPT = [5, 77, 130, 9, 42, 211]


@pytest.fixture(scope="module")
def model(tiny_target):
    return load_target(tiny_target)


@pytest.fixture(scope="module")
def drafter(tiny_drafter):
    return read_drafter(tiny_drafter)


@pytest.fixture(scope="module")
def greedy(model):
    """40 tokens of plain greedy decoding, nothing shared with the code under test."""
    ids = list(PROMPT)
    for _ in range(40):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.fixture
def scripted(monkeypatch, greedy):
    """Drafts are right but for the continuation indices in `wrong`; returns the setter of `wrong`."""
    wrong: set[int] = set()

    def scripted_draft(model, drafter, anchor_id, context, anchor, slots, use_head=True, tables=None):
        first = anchor + 1 - len(PROMPT)
        right = [*greedy, *[0] * slots][first : first + slots]
        return [token if first + i not in wrong else token + 1 for i, token in enumerate(right)]

    monkeypatch.setattr(module, "draft", scripted_draft)
    return wrong.update


@pytest.mark.parametrize("use_head", [True, False])
@pytest.mark.parametrize("block_size", [1, 2, 5])
def test_tokens_are_those_of_plain_greedy_decoding(model, drafter, greedy, block_size, use_head):
    result = replay(model, drafter, PROMPT, 16, (), block_size=block_size, use_head=use_head)
    assert list(result.tokens) == greedy[:16]
    assert all(len(r.draft_tokens) == block_size - 1 for r in result.rounds)
    assert 1 + sum(r.emitted for r in result.rounds) == 16


def test_both_walks_through_the_rounds_agree(model, drafter, greedy):
    for use_head in (True, False):
        decoded = replay(model, drafter, PROMPT, 24, (), use_head=use_head)
        assert acceptance_on_continuation(model, drafter, PROMPT, greedy[:24], use_head=use_head) == decoded


def test_scripted_rounds(model, drafter, greedy, scripted):
    scripted({3, 6, 7, 8})
    result = replay(model, drafter, PROMPT, 14, ())
    assert list(result.tokens) == greedy[:14]
    # Anchors at 0, 3, 6, 7, 8; the last block (9 to 12) is right in full and its bonus is token 13.
    assert [(r.accepted, r.emitted) for r in result.rounds] == [(2, 3), (2, 3), (0, 1), (0, 1), (4, 5)]
    assert result.acceptance_length == pytest.approx(13 / 5)
    assert acceptance_on_continuation(model, drafter, PROMPT, greedy[:14]) == result


def test_a_stop_token_inside_an_accepted_block_ends_there(model, drafter, greedy, scripted):
    at = next(i for i in range(6, 9) if greedy[i] not in greedy[:i])  # in the second block (5 to 9)
    result = replay(model, drafter, PROMPT, 30, {greedy[at]})
    assert list(result.tokens) == greedy[: at + 1]
    assert [(r.accepted, r.emitted) for r in result.rounds] == [(4, 5), (at - 5, at - 5)]
    assert acceptance_on_continuation(model, drafter, PROMPT, greedy[: at + 1]) == result


def test_nothing_to_draft_when_prefill_already_ends(model, drafter, greedy):
    for result in (
        replay(model, drafter, PROMPT, 1, ()),
        replay(model, drafter, PROMPT, 9, {greedy[0]}),
        acceptance_on_continuation(model, drafter, PROMPT, greedy[:1]),
    ):
        assert (result.tokens, result.rounds) == ((greedy[0],), ())
        assert result.acceptance_length != result.acceptance_length  # nan


@torch.inference_mode()
def test_draft_is_the_reference_forward_and_a_walk_by_hand(model, drafter, greedy):
    text = PROMPT + greedy
    anchor, slots = len(PROMPT) + 3, 3
    features, _ = target_features(model, torch.tensor([text]), drafter.config.target_layer_ids)
    table = model.get_input_embeddings()
    block = table(torch.tensor([[text[anchor]] + [drafter.config.mask_token_id] * slots]))
    hidden = drafter.block_hidden(block, features[:, :anchor])[:, 1:]
    logits = hidden @ model.get_output_embeddings().weight.T
    context = drafter.context(features)
    assert draft(model, drafter, text[anchor], context, anchor, slots, False) == logits.argmax(-1)[0].tolist()

    top = logits.log_softmax(-1).topk(drafter.config.candidate_topk)
    row = drafter.context(features[:, anchor - 1])
    start, pair = drafter.head(table(top.indices), top.values, hidden, row)
    choice = int(start[0].argmax())
    by_hand = [int(top.indices[0, 0, choice])]
    for slot in range(slots - 1):
        choice = int(pair[0, slot, choice].argmax())
        by_hand.append(int(top.indices[0, slot + 1, choice]))
    assert draft(model, drafter, text[anchor], context, anchor, slots) == by_hand
    context[:, anchor:] = float("nan")
    assert draft(model, drafter, text[anchor], context, anchor, slots) == by_hand


@pytest.mark.parametrize("block_size", [0, 6])
def test_block_size_outside_the_trained_one_is_refused(model, drafter, block_size):
    with pytest.raises(ValueError, match=f"block_size is {block_size}, expected 1 to 5"):
        replay(model, drafter, PROMPT, 4, (), block_size=block_size)
