"""The dtype pass over graphs: fp32 islands and weights, with every offender named."""

import onnx
import pytest
from onnx import TensorProto, helper

from lilicorr.export.precision import float_tensors, require_precision_of
from lilicorr.runtime.errors import UserError

HALF, FULL, BRAIN = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16


def graph(*nodes, inputs, outputs, weights=()):
    """inputs, outputs: name -> element type, all (N, 4)."""
    values = [[helper.make_tensor_value_info(n, t, ["N", 4]) for n, t in side.items()] for side in (inputs, outputs)]
    made = helper.make_graph(list(nodes), "g", *values, list(weights))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("lilicorr", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def weight(kind, name="layer.weight"):
    return helper.make_tensor(name, kind, [4, 4], [0.5] * 16)


def softmax(kind):
    node = helper.make_node("Softmax", ["x"], ["y"], name="softmax_1")
    return graph(node, inputs={"x": kind}, outputs={"y": kind})


def product(kind):
    node = helper.make_node("MatMul", ["x", "layer.weight"], ["y"], name="product_1")
    return graph(node, inputs={"x": kind}, outputs={"y": kind}, weights=[weight(kind)])


@pytest.mark.parametrize(("kind", "name"), [(FULL, "fp32"), (HALF, "fp16"), (BRAIN, "bf16")])
def test_every_float_tensor_is_listed_with_its_dtype(kind, name):
    (row,) = float_tensors(product(kind))
    assert (row.node, row.operator, row.tensor, row.dtype) == ("product_1", "MatMul", "y", name)


def test_integer_tensors_are_not_listed():
    node = helper.make_node("ArgMax", ["x"], ["i"], keepdims=1)
    assert float_tensors(graph(node, inputs={"x": FULL}, outputs={"i": TensorProto.INT64})) == []


@pytest.mark.parametrize(("kind", "name"), [(HALF, "fp16"), (BRAIN, "bf16")])
def test_a_softmax_below_fp32_is_named(kind, name):
    with pytest.raises(
        UserError, match=f"attention softmax island: Softmax `softmax_1` reads `x` as {name}, expected fp32"
    ):
        require_precision_of(softmax(kind), "target", name)
    require_precision_of(softmax(FULL), "target", name)


@pytest.mark.parametrize(("kind", "asked"), [(FULL, "fp16"), (FULL, "bf16"), (HALF, "bf16"), (HALF, "fp32")])
def test_a_weight_of_another_dtype_is_named(kind, asked):
    with pytest.raises(UserError, match=rf"weight `layer\.weight` of MatMul `product_1` is .*, expected {asked}"):
        require_precision_of(product(kind), "target", asked)


def test_a_norm_that_computes_in_half_precision_is_named():
    def norm(stash):
        node = helper.make_node("LayerNormalization", ["x", "s"], ["y"], name="norm_1", stash_type=stash)
        scale = helper.make_tensor("s", HALF, [4], [1.0] * 4)
        return graph(node, inputs={"x": HALF}, outputs={"y": HALF}, weights=[scale])

    require_precision_of(norm(FULL), "scorer", "fp16")
    with pytest.raises(UserError, match="LayerNormalization `norm_1` computes in type 10"):
        require_precision_of(norm(HALF), "scorer", "fp16")


def test_the_walk_is_an_island():
    node = helper.make_node("GreedyWalk", ["x"], ["path"], name="walk", domain="lilicorr")
    with pytest.raises(UserError, match="choice island: GreedyWalk `walk` reads `x` as fp16"):
        require_precision_of(graph(node, inputs={"x": HALF}, outputs={"path": TensorProto.INT32}), "scorer", "fp16")


def test_everything_wrong_is_listed_at_once():
    both = [
        helper.make_node("MatMul", ["x", "layer.weight"], ["y"], name="product_1"),
        helper.make_node("Softmax", ["y"], ["z"], name="softmax_1"),
    ]
    model = graph(*both, inputs={"x": HALF}, outputs={"z": HALF}, weights=[weight(HALF)])
    with pytest.raises(UserError) as caught:
        require_precision_of(model, "target", "fp32")
    assert len(caught.value.what.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_exported_graphs_pass_and_have_both_dtypes(precision, tiny_target, tiny_drafter, tmp_path):
    from lilicorr.export.bundle import build_bundle
    from lilicorr.export.options import BuildOptions
    from lilicorr.export.progress import Progress

    build_bundle(tiny_target, tiny_drafter, tmp_path / "b", BuildOptions(precision=precision), Progress(None))
    for component in ("target", "drafter", "scorer"):
        model = onnx.load(tmp_path / "b" / f"{component}.onnx", load_external_data=False)
        require_precision_of(model, component, precision)
        assert {row.dtype for row in float_tensors(model)} == {"fp32", precision}
