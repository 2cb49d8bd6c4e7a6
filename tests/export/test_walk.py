"""The walk's model-local function in ONNX Runtime equals the torch reference exactly, adversarial input included."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

from lilicorr.export.tracing import OPSET
from lilicorr.export.walk import ATTRIBUTES, DOMAIN, NAME, add_walk_function
from lilicorr.train.walk import greedy_walk

NAN, INF = float("nan"), float("inf")


def _session(slots: int, topk: int) -> ort.InferenceSession:
    node = helper.make_node(NAME, ["start", "pair"], ["path"], domain=DOMAIN, **ATTRIBUTES)
    graph = helper.make_graph(
        [node],
        "walk",
        [
            helper.make_tensor_value_info("start", TensorProto.FLOAT, ["N", topk]),
            helper.make_tensor_value_info("pair", TensorProto.FLOAT, ["N", slots - 1, topk, topk]),
        ],
        [helper.make_tensor_value_info("path", TensorProto.INT32, ["N", slots])],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10))
    add_walk_function(model, slots, OPSET)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("slots", "topk"), [(1, 1), (1, 4), (2, 1), (3, 2), (7, 8), (15, 3)])
def test_equals_the_reference_on_random_and_adversarial_scores(slots, topk):
    session = _session(slots, topk)
    rng = np.random.default_rng(slots * 100 + topk)
    for values in ([-1.0, 0.0, 1.0], [NAN, 0.0, 1.0], [NAN, -INF], [INF, NAN, -INF, 0.0], [NAN], [-INF], None):
        shapes = (64, topk), (64, slots - 1, topk, topk)
        draw = rng.standard_normal if values is None else lambda shape, v=values: rng.choice(v, shape)
        start, pair = (np.asarray(draw(shape), np.float32) for shape in shapes)
        (path,) = session.run(None, {"start": start, "pair": pair})
        expected = greedy_walk(torch.from_numpy(start), torch.from_numpy(pair)).numpy()
        assert path.dtype == np.int32
        np.testing.assert_array_equal(path, expected, err_msg=f"scores drawn from {values}")


def test_hand_computed_walk():
    start = np.array([[NAN, 2.0, 2.0]], np.float32)  # NaN is skipped, the tie goes to index 1
    pair = np.full((1, 2, 3, 3), -9.0, np.float32)
    pair[0, 0, 1] = [0.0, -INF, 5.0]  # row of predecessor 1 → 2
    pair[0, 1, 2] = [NAN, NAN, NAN]  # nothing to select → 0
    (path,) = _session(3, 3).run(None, {"start": start, "pair": pair})
    assert path.tolist() == [[1, 2, 0]]
