"""What TensorRT refuses or ignores is found in the graph, with node, reason and origin."""

import onnx
import pytest
from onnx import TensorProto, helper

from lilicorr.export.engine_scan import require_supported
from lilicorr.runtime.errors import UserError

NAMES = ["q", "k", "v", "mask", "past_k", "past_v", "lengths"]


def attention(name="attention_1", inputs=("q", "k", "v"), outputs=("y",), **attributes):
    return helper.make_node("Attention", list(inputs), list(outputs), name=name, **attributes)


def model(*nodes, mask=TensorProto.BOOL, weights=(), functions=()):
    kinds = {"mask": mask, "lengths": TensorProto.INT64}
    values = [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in NAMES]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for n in nodes for name in n.output]
    return helper.make_model(helper.make_graph(list(nodes), "g", values, outputs, list(weights)), functions=functions)


def scan(graph, plugins=(), supports=lambda operator: True):
    require_supported(graph, "target", supports, plugins)


def test_a_plain_graph_passes():
    scan(model(attention(), attention("attention_2", ("q", "k", "v", "mask"), ("z",))))


def test_an_operator_the_parser_does_not_know_is_named_with_its_origin():
    scale = helper.make_tensor("model.layers.7.mlp.scale", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        helper.make_node("Mul", ["q", "model.layers.7.mlp.scale"], ["a"], name="mul_1"),
        helper.make_node("Det", ["a"], ["b"], name="det_1"),
    ]
    with pytest.raises(UserError) as caught:
        scan(model(*nodes, weights=[scale]), supports=lambda operator: operator != "Det")
    (line,) = caught.value.what.splitlines()[1:]
    assert line.strip() == (
        "Det `det_1`: the parser does not know this operator "
        "(made by the trace of the target's own model code, near weight `model.layers.7.mlp.scale`)"
    )


def test_a_custom_operator_needs_a_plugin_or_a_function():
    node = helper.make_node("GreedyWalk", ["q", "k"], ["path"], name="walk", domain="lilicorr")
    with pytest.raises(UserError, match="no plugin `GreedyWalk` in namespace `lilicorr` is loaded") as caught:
        scan(model(node))
    assert caught.value.hint == "make plugin"
    scan(model(node), plugins=[("lilicorr", "GreedyWalk")])
    body = helper.make_node("Add", ["a", "b"], ["c"])
    function = helper.make_function("lilicorr", "GreedyWalk", ["a", "b"], ["c"], [body], [helper.make_opsetid("", 18)])
    scan(model(node, functions=[function]))


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (attention(inputs=("q", "k", "v", "", "past_k", "past_v")), "past and present K/V are not supported"),
        (attention(outputs=("y", "present_k", "present_v")), "past and present K/V are not supported"),
        (attention(inputs=("q", "k", "v", "", "", "", "lengths")), "nonpad_kv_seqlen would be ignored in silence"),
        (attention(softcap=30.0), "softcap is not supported"),
    ],
)
def test_forms_of_attention_that_tensorrt_drops_or_refuses(node, reason):
    with pytest.raises(UserError, match=f"Attention `attention_1`: {reason}"):
        scan(model(node))


def test_a_shared_boolean_mask_is_refused_and_a_float_one_is_not():
    nodes = [attention(f"attention_{i}", ("q", "k", "v", "mask"), (f"y{i}",)) for i in (1, 2)]
    with pytest.raises(UserError, match="Attention `attention_2`: the boolean mask input `mask` is shared"):
        scan(model(*nodes))
    scan(model(*nodes, mask=TensorProto.FLOAT16))


def test_the_exported_graphs_have_none_of_it(tiny_bundle):
    for name in ("target", "drafter", "scorer"):
        scan(onnx.load(tiny_bundle / f"{name}.onnx", load_external_data=False))
