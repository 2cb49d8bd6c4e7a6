"""Native attention in ONNX Runtime against two-part attention in PyTorch, call by call: ragged lanes, junk in unused rows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from lilicorr.export.drafter_graph import DrafterGraph
from lilicorr.export.graphs import trace_drafter, trace_target, write_graphs
from lilicorr.export.native_attention import ATTENTION, UPDATE
from lilicorr.export.target_graph import TargetGraph
from lilicorr.runtime.contract import TENSORRT_DOMAIN
from tests.export.onnx_run import commit, run
from tests.export.test_drafter_graph import CASES
from tests.export.test_target_graph import CAPTURED, FAMILIES, LAYERS, VOCAB, _model
from tests.export.tiny import FEATURES, random_drafter, random_table

ROWS, KV_HEADS, WIDTH, JUNK = 24, 2, 8, 3.0
OUTPUTS = {
    "target": ("logits", "next_ids", "features"),
    "drafter": ("candidate_ids", "log_probs", "hidden", "anchor_row"),
}


class Both:
    """The native graph and the two-part module with a cache each; `step` compares every output and every row."""

    def __init__(self, graph, path, module, layers, lanes=2):
        self.graph, self.path, self.module = graph, path, module
        shape = (lanes, KV_HEADS, ROWS, WIDTH)
        names = [f"{kind}_cache_{i}" for kind in "kv" for i in range(layers)]
        self.native = {name: np.full(shape, JUNK, np.float32) for name in names}
        self.two_part = {name: np.full(shape, -JUNK, np.float32) for name in names}
        self.lengths = [0] * lanes

    def step(self, feeds, counts):
        lengths = np.array(self.lengths, np.int32)
        wanted = self._reference(feeds, lengths)
        found = run(self.path, {**feeds, "lengths": lengths, **self.native})
        for lane, count in enumerate(counts):
            # rows of `tokens` past a lane's own are computed and ignored; the drafter has no such rows
            rows = slice(count) if self.graph == "target" else slice(None)
            for name in OUTPUTS[self.graph]:
                close(found[name][lane, rows], wanted[name][lane, rows], name)
        commit(self.two_part, wanted, self.lengths, counts)
        for lane, (start, count) in enumerate(zip(self.lengths, counts, strict=True)):
            for name, before in self.native.items():
                after = found[f"updated_{name}"][lane]
                np.testing.assert_array_equal(after[:, :start], before[lane, :, :start])
                close(after[:, : start + count], self.two_part[name][lane, :, : start + count], name)
        self.native = {name: found[f"updated_{name}"] for name in self.native}
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def _reference(self, feeds, lengths):
        layers = range(len(self.two_part) // 2)
        caches = [[torch.from_numpy(self.two_part[f"{kind}_cache_{i}"]) for i in layers] for kind in "kv"]
        with torch.no_grad():
            *plain, keys, values = self.module(
                *map(torch.from_numpy, feeds.values()), torch.from_numpy(lengths), *caches
            )
        outputs = dict(zip(OUTPUTS[self.graph], plain, strict=True))
        outputs |= {f"new_{kind}_{i}": rows[i] for kind, rows in (("k", keys), ("v", values)) for i in layers}
        return {name: value.numpy() for name, value in outputs.items()}


def close(found, wanted, name):
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target with a full and a sliding layer, and its native graph."""
    model, folder = _model(*FAMILIES[1]), tmp_path_factory.mktemp("native")
    write_graphs({"target": trace_target(model, CAPTURED, torch.float32, native_rows=ROWS)}, folder, threshold=256)
    return model, folder / "target.onnx"


def test_target(target):
    model, path = target
    both = Both("target", path, TargetGraph(model, CAPTURED), LAYERS)
    tokens = np.random.default_rng(1).integers(0, VOCAB, (2, 24)).astype(np.int32)
    # lanes drift apart, a block is rejected but for one token and written over, the cache fills to its last row
    for width, counts in ((8, [8, 5]), (4, [1, 4]), (4, [4, 4]), (5, [1, 5]), (6, [1, 6])):
        both.step({"tokens": np.stack([tokens[i, n : n + width] for i, n in enumerate(both.lengths)])}, counts)
    assert max(both.lengths) == ROWS


def test_a_write_beyond_the_cache_is_an_error(target):
    """In ONNX Runtime; TensorRT leaves it to the caller, which is why the runtime's caches have rows to spare."""
    feeds = {"tokens": np.zeros((1, 5), np.int32), "lengths": np.array([ROWS - 4], np.int32)}
    caches = {
        f"{kind}_cache_{i}": np.zeros((1, KV_HEADS, ROWS, WIDTH), np.float32) for kind in "kv" for i in range(LAYERS)
    }
    with pytest.raises(Exception, match="out of data bounds"):
        run(target[1], feeds | caches)


def test_the_nodes_are_tensorrts_with_every_input_that_it_needs(target):
    """`kv_lengths` is its sixth input, the mask its fourth, and no standard Attention, whose lengths it ignores, is there."""
    model = onnx.load(target[1])
    nodes = {kind: [n for n in model.graph.node if n.op_type == kind] for kind in (ATTENTION, UPDATE, "Attention")}
    assert {kind: len(found) for kind, found in nodes.items()} == {
        ATTENTION: LAYERS,
        UPDATE: 2 * LAYERS,
        "Attention": 0,
    }
    for node in nodes[ATTENTION]:
        assert (node.domain, len(node.input), node.input[4]) == (TENSORRT_DOMAIN, 6, "")
        assert all(node.input[i] for i in (0, 1, 2, 3, 5))
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    assert {types[node.input[3]] for node in nodes[ATTENTION]} == {onnx.TensorProto.FLOAT}  # additive, never boolean
    inputs, outputs = ({v.name for v in values} for values in (model.graph.input, model.graph.output))
    assert {node.input[0] for node in nodes[UPDATE]} == {name for name in inputs if "cache" in name}
    assert {node.output[0] for node in nodes[UPDATE]} == {name for name in outputs if "cache" in name}


@pytest.mark.parametrize("name", ["sliding and full layers", "causal block with convolutions"])
def test_drafter(name, tmp_path):
    drafter, slots = random_drafter(**CASES[name]), 3
    tables = random_table(), random_table(6)
    graph = trace_drafter(drafter, *tables, torch.float32, slots, 4, native_rows=ROWS)
    write_graphs({"drafter": graph}, tmp_path, threshold=256)
    reference = DrafterGraph(drafter, *tables, slots=slots, topk=4)
    both = Both("drafter", tmp_path / "drafter.onnx", reference, drafter.config.num_hidden_layers)
    features = np.random.default_rng(2).standard_normal((2, 12, FEATURES)).astype(np.float32)
    for counts in ([8, 5], [1, 4], [3, 1]):
        piece = np.full((2, max(counts), FEATURES), 9.0, np.float32)
        for lane, (start, count) in enumerate(zip(both.lengths, counts, strict=True)):
            piece[lane, :count] = features[lane, start : start + count]
        anchors = np.array([11, VOCAB - 1], np.int32)
        both.step({"anchor": anchors, "features": piece, "count": np.array(counts, np.int32)}, counts)
