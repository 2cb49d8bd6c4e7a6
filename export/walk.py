"""`lilicorr::GreedyWalk` in a graph: one node when traced, and the model-local function of standard operators behind it.

The reference is `lilicorr.train.walk.greedy_walk`; a TensorRT plugin of the same name takes the node's place on a device.
"""

from __future__ import annotations

import onnx_ir as ir
import torch
from onnx import FunctionProto, TensorProto, helper
from torch import Tensor

from lilicorr.runtime.contract import PLUGIN

DOMAIN, NAME = PLUGIN.namespace, PLUGIN.name
ATTRIBUTES = {"plugin_version": PLUGIN.version, "plugin_namespace": PLUGIN.namespace}


def walk_node(start: Tensor, pair: Tensor) -> Tensor:
    """Trace the walk as one node: start (N,K) f32, pair (N,S-1,K,K) f32 → path (N,S) int32. Computes nothing in eager mode."""
    shape = (start.shape[0], pair.shape[1] + 1)
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{NAME}", (start, pair), attrs=ATTRIBUTES, dtype=torch.int32, shape=shape, version=1
    )


def add_walk_function(model: ir.Model, slots: int, opset: int) -> None:
    """Give `model` the body of its GreedyWalk node, unrolled for `slots` (S ≥ 1) slots."""
    function = ir.serde.deserialize_function(_function(slots, opset))
    model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = 1


def _function(slots: int, opset: int) -> FunctionProto:
    """The best successor of every candidate first, all at once; then one lookup per slot follows the chosen ones.

    ArgMax takes the first of equal maxima, so only NaN needs care: it becomes -inf before every comparison.
    """
    lowest = helper.make_tensor("", TensorProto.FLOAT, [], [-float("inf")])
    nodes = [helper.make_node("Constant", [], ["lowest"], value=lowest)]

    def choose(scores: str, best: str, keepdims: int) -> None:
        nodes.append(helper.make_node("IsNaN", [scores], [f"{scores}_nan"]))
        nodes.append(helper.make_node("Where", [f"{scores}_nan", "lowest", scores], [f"{scores}_clean"]))
        nodes.append(helper.make_node("ArgMax", [f"{scores}_clean"], [best], axis=-1, keepdims=keepdims))

    choose("start", "first", 1)
    last = helper.make_tensor("", TensorProto.INT64, [1], [2])
    nodes.append(helper.make_node("Constant", [], ["last"], value=last))
    nodes.append(helper.make_node("Unsqueeze", ["first", "last"], ["choice_0"]))  # (N, 1, 1)
    choices = [f"choice_{slot}" for slot in range(slots)]
    if slots > 1:
        successors = [f"successors_{slot}" for slot in range(1, slots)]  # (N, 1, K) each
        choose("pair", "successors", 0)
        nodes.append(helper.make_node("Split", ["successors"], successors, axis=1, num_outputs=slots - 1))
        for table, before, after in zip(successors, choices[:-1], choices[1:], strict=True):
            nodes.append(helper.make_node("GatherElements", [table, before], [after], axis=2))
    nodes.append(helper.make_node("Concat", choices, ["columns"], axis=1))
    nodes.append(helper.make_node("Squeeze", ["columns", "last"], ["choices"]))
    nodes.append(helper.make_node("Cast", ["choices"], ["path"], to=TensorProto.INT32))
    return helper.make_function(
        DOMAIN, NAME, ["start", "pair"], ["path"], nodes, [helper.make_opsetid("", opset)], attributes=list(ATTRIBUTES)
    )
