"""The drafter graph in ONNX Runtime, fed context in ragged pieces, against the plain forward that has no cache."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lilicorr.export.drafter_graph import DrafterGraph
from lilicorr.export.graphs import trace_drafter, write_graphs
from lilicorr.runtime.errors import UserError
from tests.export.onnx_run import commit, empty_caches, run
from tests.export.tiny import FEATURES, VOCAB, random_drafter, random_table

CASES = {
    "published, tied": {},
    "sliding and full layers": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 7},
    "causal block with convolutions": {"causal": True, "conv_kernel_size": 2, "conv_group_size": 8},
    "own head over a reduced vocabulary": {"draft_vocab_size": 40, "has_own_lm_head": True, "num_hidden_layers": 1},
    "kept rows of an untied lm_head": {"draft_vocab_size": 40, "num_hidden_layers": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_graph_equals_the_plain_forward_over_ragged_pieces(name, tmp_path):
    drafter, slots = random_drafter(**CASES[name]), 5 if name == "published, tied" else 3
    embedding = random_table()
    lm_head = embedding if "tied" in name.split() else random_table(6)
    model = trace_drafter(drafter, embedding, lm_head, torch.float32, slots, 4)
    write_graphs({"drafter": model}, tmp_path, threshold=256)

    features = torch.randn(2, 12, FEATURES)
    caches, lengths = empty_caches(drafter.config.num_hidden_layers, 2, 2, 12, 8), [0, 0]
    for counts in ([8, 5], [1, 4], [3, 1]):
        piece = np.full((2, max(counts), FEATURES), 9.0, np.float32)  # rows past `count` must not matter
        for lane in range(2):
            piece[lane, : counts[lane]] = features[lane, lengths[lane] : lengths[lane] + counts[lane]]
        anchors = np.array([11, VOCAB - 1], np.int32)
        feeds = {"anchor": anchors, "features": piece, "count": np.array(counts, np.int32)}
        out = run(tmp_path / "drafter.onnx", {**feeds, "lengths": np.array(lengths, np.int32), **caches})
        commit(caches, out, lengths, counts)
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]
        for lane in range(2):
            _compare(drafter, embedding, lm_head, features[lane, : lengths[lane]], int(anchors[lane]), slots, out, lane)


def _compare(drafter, embedding, lm_head, context, anchor, slots, out, lane):
    ids = torch.tensor([anchor] + [drafter.config.mask_token_id] * slots)
    with torch.no_grad():
        hidden = drafter.block_hidden(embedding[ids][None], context[None])[0, 1:]
        rows = drafter.lm_head.weight if drafter.lm_head is not None else lm_head
        if drafter.d2t is not None:
            targets = torch.arange(len(drafter.d2t)) + drafter.d2t
            rows = rows if drafter.lm_head is not None else lm_head[targets]
        log_probs = F.log_softmax(hidden @ rows.T, dim=-1)
        best = log_probs.topk(4)
        expected_ids = best.indices if drafter.d2t is None else targets[best.indices]
    np.testing.assert_allclose(out["hidden"][lane], hidden, atol=1e-4, rtol=1e-4)
    np.testing.assert_array_equal(out["candidate_ids"][lane], expected_ids)
    np.testing.assert_allclose(out["log_probs"][lane], best.values, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(out["anchor_row"][lane], drafter.context(context)[-1].detach(), atol=1e-5, rtol=1e-4)


def test_equal_scores_give_the_lower_id_first(tmp_path):
    drafter, embedding = random_drafter(num_hidden_layers=1), random_table()
    lm_head = torch.zeros_like(random_table())
    write_graphs({"drafter": trace_drafter(drafter, embedding, lm_head, torch.float32, 2, 4)}, tmp_path)
    feeds = {"anchor": np.array([1], np.int32), "features": np.ones((1, 2, FEATURES), np.float32)}
    ones = {"count": np.array([2], np.int32), "lengths": np.array([0], np.int32)}
    out = run(tmp_path / "drafter.onnx", {**feeds, **ones, **empty_caches(1, 1, 2, 4, 8)})
    assert out["candidate_ids"].tolist() == [[[0, 1, 2, 3]] * 2]
    np.testing.assert_allclose(out["log_probs"], -np.log(VOCAB), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sizes", "message"),
    [
        ({}, {"slots": 6, "topk": 4}, "6 slots asked, the drafter was trained for 1 to 5"),
        ({}, {"slots": 0, "topk": 4}, "0 slots asked"),
        ({}, {"slots": 5, "topk": VOCAB + 1}, f"expected 1 to {VOCAB}"),
        (
            {"layer_types": ("sliding_attention",) * 2, "sliding_window": 4},
            {"slots": 5, "topk": 4},
            "narrower than a block",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, sizes, message):
    with pytest.raises(UserError, match=message):
        DrafterGraph(random_drafter(**changes), random_table(), random_table(), **sizes)
