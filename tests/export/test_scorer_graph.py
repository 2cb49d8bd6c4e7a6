"""The scorer graph in ONNX Runtime against the head in PyTorch; the walk over its own scores must be exact."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lilicorr.export.graphs import trace_scorer, write_graphs
from lilicorr.export.scorer_graph import ScorerGraph
from lilicorr.export.walk import NAME
from lilicorr.train.walk import greedy_walk
from tests.export.onnx_run import run
from tests.export.tiny import HEAD, HIDDEN, VOCAB, random_drafter, random_table


@pytest.mark.parametrize(("slots", "topk"), [(5, 4), (1, 2)])
def test_graph_equals_the_head(slots, topk, tmp_path):
    head, table = random_drafter().head, random_table()
    model = trace_scorer(head, table, torch.float32, slots, topk)
    assert [node.op_type for node in model.graph if node.domain == "lilicorr"] == [NAME]
    operators = [node for node in model.graph if node.op_type != "Constant"]
    assert (
        len(operators) <= 150
    )  # each costs microseconds per round; 177 with a product, a bias and a sum for every layer
    write_graphs({"scorer": model}, tmp_path, threshold=256)

    rng = torch.Generator().manual_seed(3)
    lanes = 3
    ids = torch.randint(0, VOCAB, (lanes, slots, topk), generator=rng, dtype=torch.int32)
    log_probs = -torch.rand(lanes, slots, topk, generator=rng).cumsum(-1)
    hidden, anchor = torch.randn(lanes, slots, HIDDEN, generator=rng), torch.randn(lanes, HIDDEN, generator=rng)
    feeds = {"candidate_ids": ids, "log_probs": log_probs, "hidden": hidden, "anchor_row": anchor}
    out = run(tmp_path / "scorer.onnx", {name: value.numpy() for name, value in feeds.items()})

    with torch.no_grad():
        start, pair = head(table[ids.long()], log_probs, hidden, anchor)
        eager = ScorerGraph(head, table, slots=slots, topk=topk)(ids, log_probs, hidden, anchor)
    np.testing.assert_allclose(out["start"], start, atol=2e-5, rtol=1e-4)
    np.testing.assert_allclose(out["pair"], pair, atol=2e-5, rtol=1e-4)
    path = greedy_walk(torch.from_numpy(out["start"]), torch.from_numpy(out["pair"])).numpy()
    np.testing.assert_array_equal(out["path"], path)
    np.testing.assert_array_equal(out["draft_tokens"], np.take_along_axis(ids.numpy(), path[..., None], 2)[..., 0])
    np.testing.assert_array_equal(out["draft_tokens"], eager[0])
    assert out["draft_tokens"].dtype == out["path"].dtype == np.int32


def test_a_head_as_wide_as_the_target_takes_its_rows_unprojected():
    head, table = random_drafter(head=replace(HEAD, hidden_size=HIDDEN)).head, random_table()
    rng = torch.Generator().manual_seed(4)
    ids = torch.randint(0, VOCAB, (2, 5, 4), generator=rng, dtype=torch.int32)
    log_probs = -torch.rand(2, 5, 4, generator=rng).cumsum(-1)
    hidden, anchor = torch.randn(2, 5, HIDDEN, generator=rng), torch.randn(2, HIDDEN, generator=rng)
    with torch.no_grad():
        expected = head(table[ids.long()], log_probs, hidden, anchor)
        found = ScorerGraph(head, table, slots=5, topk=4)(ids, log_probs, hidden, anchor)[2:]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
