"""Integers in the graph: exactly those that were made, however the products were rewritten before."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper

from lilicorr.export.block_weights import BlockWeight, round_to_nearest
from lilicorr.export.graphs import trace_target, write_graphs
from lilicorr.export.quantise_graph import OPSET, quantise_weights
from lilicorr.export.quantised_config import OURS
from lilicorr.export.quantised_target import load_with_integers
from lilicorr.export.source import read_target
from lilicorr.runtime.manifest import Quantisation
from tests.export.onnx_run import empty_caches, run

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
AS_SERVED = {"session.disable_quant_qdq": "1"}


@pytest.fixture(scope="module", params=[("fp32", 4), ("fp16", 8)], ids=lambda p: f"{p[0]}-int{p[1]}")
def traced(request, tiny_target, tmp_path_factory):
    """(precision, bits, path of the graph, the model behind it)"""
    precision, bits = request.param
    model, integers = load_with_integers(read_target(tiny_target), Quantisation(bits, 32, OURS), DTYPES[precision])
    folder = tmp_path_factory.mktemp("quantised")
    write_graphs({"target": trace_target(model, (1, 2), DTYPES[precision], integers)}, folder)
    return precision, bits, folder / "target.onnx", model


def in_numpy(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """(I, O): every value times the scale of its block in fp32, rounded once to the scales' dtype."""
    wide = np.repeat(scales.astype(np.float32), len(values) // len(scales), axis=0)
    return (values.astype(np.float32) * wide).astype(scales.dtype)


def test_the_file_holds_the_integers_and_they_dequantise_bit_for_bit(traced):
    precision, bits, path, model = traced
    proto = onnx.load(path)
    weights = {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}
    columns = set()
    for node in proto.graph.node:
        if node.op_type == "DequantizeLinear":
            assert len(node.input) == 2  # no zero points: TensorRT reads none
            values, scales = (weights[name] for name in node.input)
            assert values.dtype.name == f"int{bits}"
            assert (scales.astype(np.float32) > 0).all()  # TensorRT refuses others
            columns |= {column.tobytes() for column in in_numpy(values, scales).T}
    layers = [layer for layer in model.model.modules() if isinstance(layer, torch.nn.Linear)]
    rows = [row for layer in layers for row in ir.tensor(layer.weight.detach().to(DTYPES[precision])).numpy()]
    assert columns == {row.tobytes() for row in rows}
    products = {name for node in proto.graph.node if node.op_type == "MatMul" for name in node.input}
    assert not products & weights.keys()  # no product of the layers reads a float weight
    assert next(entry.version for entry in proto.opset_import if entry.domain == "") == OPSET


def test_the_graph_computes_what_pytorch_does_with_the_dequantised_weights(traced):
    precision, _, path, model = traced
    tokens = np.array([[5, 9, 14, 21]], np.int32)
    caches = empty_caches(4, 1, 2, 8, 8, np.float32 if precision == "fp32" else np.float16)
    found = run(path, {"tokens": tokens, "lengths": np.zeros(1, np.int32), **caches}, AS_SERVED)["logits"]
    wanted = model.float()(torch.from_numpy(tokens).long()).logits.detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-3 if precision == "fp32" else 0.2)


def one_product(weight: BlockWeight, *, dequantised_too: bool = False) -> ir.Model:
    """y = x (N, I) @ W in the form of a quantised graph; and W as a second output."""
    array = ir.tensor(weight.dequantised(weight.scales.dtype).T.contiguous())
    graph_weight = ir.Value(name="w", shape=array.shape, type=ir.TensorType(array.dtype), const_value=array)
    x = ir.Value(name="x", shape=ir.Shape(["N", array.shape[0]]), type=ir.TensorType(array.dtype))
    product = ir.node("MatMul", [x, graph_weight])
    y = product.outputs[0]
    y.name, y.shape, y.type = "y", ir.Shape(["N", array.shape[1]]), x.type
    graph = ir.Graph([x], [y], nodes=[product], initializers=[graph_weight], opset_imports={"": 18}, name="g")
    model = ir.Model(graph, ir_version=10)
    quantise_weights(model, [weight])
    if dequantised_too:
        graph.outputs.append(product.inputs[1])
        product.inputs[1].name = "dequantised"
    return model


def session(model: ir.Model, optimised=None, entries: dict[str, str] | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for name, value in (entries or {}).items():
        options.add_session_config_entry(name, value)
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("bits", [4, 8])
def test_onnx_runtime_dequantises_bit_for_bit_and_fuses_the_product(tmp_path, bits, block, dtype):
    torch.manual_seed(bits * block)
    weight = round_to_nearest(torch.randn(48, 256), bits, block, dtype)
    wanted = weight.dequantised(dtype).T.contiguous().numpy()
    x = np.zeros((2, 256), wanted.dtype)
    found = session(one_product(weight, dequantised_too=True)).run(["dequantised"], {"x": x})[0]
    assert found.tobytes() == wanted.tobytes()
    session(one_product(weight), tmp_path / "optimised.onnx")
    proto = onnx.load(tmp_path / "optimised.onnx")
    kinds = Counter(node.op_type for node in proto.graph.node)
    assert kinds["MatMulNBits"] == 1
    assert "DequantizeLinear" not in kinds
    assert np.array_equal(fused_weight(proto), weight.dequantised(torch.float32).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_runtime_expands_the_integers_once(tmp_path, bits, dtype):
    weight = round_to_nearest(torch.randn(48, 64), bits, 32, dtype)
    session(one_product(weight), tmp_path / "optimised.onnx", AS_SERVED)
    assert not {n.op_type for n in onnx.load(tmp_path / "optimised.onnx").graph.node} & {
        "DequantizeLinear",
        "MatMulNBits",
    }


def fused_weight(proto: onnx.ModelProto) -> np.ndarray:
    """(O, I) the weight of the only MatMulNBits, from its own packing, whose values are offset by half the range."""
    node = next(node for node in proto.graph.node if node.op_type == "MatMulNBits")
    bits = next(a.i for a in node.attribute if a.name == "bits")
    weights = {w.name: numpy_helper.to_array(w) for w in proto.graph.initializer}
    packed, scales = weights[node.input[1]], weights[node.input[2]]  # (O, blocks, bytes of a block), (O · blocks)
    pairs = packed[..., None] if bits == 8 else np.stack([packed & 15, packed >> 4], axis=-1)
    blocks = pairs.reshape(*packed.shape[:2], -1).astype(np.float32) - 2 ** (bits - 1)
    return (blocks * scales.reshape(*packed.shape[:2], 1).astype(np.float32)).reshape(packed.shape[0], -1)


def float_product(weight: torch.Tensor) -> ir.Model:
    tensor = ir.tensor(weight.T.contiguous())
    value = ir.Value(name="w", shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    x = ir.Value(name="x", shape=ir.Shape(["N", tensor.shape[0]]), type=value.type)
    node = ir.node("MatMul", [x, value])
    graph = ir.Graph([x], node.outputs, nodes=[node], initializers=[value], opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=10)


def test_a_graph_that_is_not_what_was_traced_is_our_defect():
    weight = round_to_nearest(torch.randn(16, 64), 8, 64, torch.float32)
    ours = weight.dequantised(torch.float32)
    with pytest.raises(AssertionError, match="only 16 of 20 columns"):
        quantise_weights(float_product(torch.cat([ours, torch.randn(4, 64)])), [weight])
    stranger = round_to_nearest(torch.randn(3, 64), 8, 64, torch.float32)
    with pytest.raises(AssertionError, match="3 quantised rows are in no product"):
        quantise_weights(float_product(ours), [weight, stranger])


def test_functions_stay_functions_of_the_new_opset():
    weight = round_to_nearest(torch.randn(16, 64), 8, 64, torch.float32)
    model = float_product(weight.dequantised(torch.float32))
    x = ir.Value(name="x")
    negative = ir.node("Neg", [x])
    body = ir.Graph([x], negative.outputs, nodes=[negative], opset_imports={"": 18}, name="body")
    function = ir.Function("trt", "Anything", graph=body, attributes=[])
    model.functions[function.identifier()] = function
    quantise_weights(model, [weight])
    assert list(model.functions) == [function.identifier()]
    assert model.opset_imports[""] == function.opset_imports[""] == OPSET
