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
    """ArgMax takes the first of equal maxima, so only NaN needs care: it becomes -inf before every comparison."""
    nodes = [
        helper.make_node(
            "Constant", [], ["lowest"], value=helper.make_tensor("", TensorProto.FLOAT, [], [-float("inf")])
        )
    ]

    def choose(row: str, slot: int) -> None:
        nodes.append(helper.make_node("IsNaN", [row], [f"nan_{slot}"]))
        nodes.append(helper.make_node("Where", [f"nan_{slot}", "lowest", row], [f"clean_{slot}"]))
        nodes.append(helper.make_node("ArgMax", [f"clean_{slot}"], [f"choice_{slot}"], axis=-1, keepdims=1))

    choose("start", 0)
    for slot in range(1, slots):
        index = helper.make_tensor("", TensorProto.INT64, [], [slot - 1])
        nodes.append(helper.make_node("Constant", [], [f"index_{slot}"], value=index))
        nodes.append(helper.make_node("Gather", ["pair", f"index_{slot}"], [f"pair_{slot}"], axis=1))  # (N, K, K)
        nodes.append(
            helper.make_node("GatherND", [f"pair_{slot}", f"choice_{slot - 1}"], [f"row_{slot}"], batch_dims=1)
        )
        choose(f"row_{slot}", slot)
    nodes.append(helper.make_node("Concat", [f"choice_{slot}" for slot in range(slots)], ["choices"], axis=1))
    nodes.append(helper.make_node("Cast", ["choices"], ["path"], to=TensorProto.INT32))
    return helper.make_function(
        DOMAIN, NAME, ["start", "pair"], ["path"], nodes, [helper.make_opsetid("", opset)], attributes=list(ATTRIBUTES)
    )
