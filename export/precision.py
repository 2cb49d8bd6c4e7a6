"""Read the dtypes of a graph, layer by layer, before an engine is built from it: fp32 islands are fp32, weights are as asked.

TensorRT takes precision from the graph alone, so a wrong dtype here is a wrong engine that nothing else reports. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from lilicorr.runtime.errors import UserError

# operator -> the island it belongs to; all its float inputs must be fp32
ISLANDS = {
    "Pow": "norm",
    "ReduceMean": "norm",
    "ReduceL2": "norm",
    "Sqrt": "norm",
    "RMSNormalization": "norm",
    "Softmax": "attention softmax",
    "LogSoftmax": "log-probabilities",
    "Exp": "log-probabilities",
    "Log": "log-probabilities",
    "ReduceSum": "log-probabilities",
    "ReduceMax": "log-probabilities",
    "Sin": "rotary angles",
    "Cos": "rotary angles",
    "TopK": "choice",
    "ArgMax": "choice",
    "GreedyWalk": "choice",
}
WEIGHT_OPERATORS = frozenset({"MatMul", "Gemm", "Gather", "Conv", "DequantizeLinear"})
TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
NAMES = {value: name for name, value in TYPES.items()} | {TensorProto.DOUBLE: "fp64"}


@dataclass(frozen=True)
class LayerTensor:
    """One float tensor written by one node."""

    node: str
    operator: str
    tensor: str
    dtype: str


def float_tensors(model: ModelProto) -> list[LayerTensor]:
    """Every float tensor that a node of `model` writes, in graph order."""
    types = _types(model)
    return [
        LayerTensor(node.name, node.op_type, name, NAMES[types[name]])
        for node in model.graph.node
        for name in node.output
        if types.get(name) in NAMES
    ]


def require_precision_of(model: ModelProto, component: str, precision: str) -> None:
    """Check islands and weights of one graph; weight data is not needed.

    Raises:
        UserError: lists every layer of an island that is not fp32 and every weight that is not `precision`.
    """
    problems = [*_island_problems(model), *_weight_problems(model, precision)]
    if problems:
        raise UserError(
            f"{component}.onnx does not have the precision of a {precision} bundle:\n  " + "\n  ".join(problems),
            hint="lilicorr-export build, and report it: the graph is ours",
        )


def _island_problems(model: ModelProto) -> Iterator[str]:
    types = _types(model)
    for node in model.graph.node:
        island = ISLANDS.get(node.op_type)
        for name in node.input if island else ():
            found = types.get(name)
            if found in NAMES and found != TensorProto.FLOAT:
                yield f"{island} island: {node.op_type} `{node.name}` reads `{name}` as {NAMES[found]}, expected fp32"
        if node.op_type == "LayerNormalization" and (stash := _attribute(node, "stash_type")) != TensorProto.FLOAT:
            yield f"norm island: LayerNormalization `{node.name}` computes in type {stash}, expected fp32 (stash_type 1)"


def _weight_problems(model: ModelProto, precision: str) -> Iterator[str]:
    weights = {weight.name: weight for weight in model.graph.initializer if len(weight.dims) > 1}
    for node in model.graph.node:
        for name in node.input if node.op_type in WEIGHT_OPERATORS else ():
            weight = weights.get(name)
            if weight is not None and weight.data_type in NAMES and weight.data_type != TYPES[precision]:
                found = NAMES[weight.data_type]
                yield f"weight `{name}` of {node.op_type} `{node.name}` is {found}, expected {precision}"


def _attribute(node: NodeProto, name: str) -> int:
    """Integer attribute; ONNX's default of `stash_type` is fp32."""
    return next((a.i for a in node.attribute if a.name == name), TensorProto.FLOAT)


def _types(model: ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    return types | {weight.name: weight.data_type for weight in graph.initializer}
