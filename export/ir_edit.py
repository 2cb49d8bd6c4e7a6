"""Small edits of an ONNX IR graph that every rewrite shares; knows nothing of what a rewrite is for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir


def dims(value: ir.Value | None) -> list[int | str] | None:
    """The dimensions of a value, symbolic ones as text; None where the shape is unknown."""
    if value is None or value.shape is None:
        return None
    return [d if isinstance(d, int) else str(d.value) for d in value.shape]


def integers(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant integer tensor; None for anything computed."""
    if value is None or value.const_value is None:
        return None
    return [int(i) for i in value.const_value.numpy().reshape(-1)]


def only_user(value: ir.Value, op_type: str) -> ir.Node | None:
    """The node of that operator which alone reads `value`, as its first input; None otherwise."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].idx != 0 or uses[0].node.op_type != op_type:
        return None
    return uses[0].node


def only_users(values: Sequence[ir.Value], op_type: str) -> list[ir.Node] | None:
    """`only_user` of each value; None unless every one has it."""
    users = [user for value in values if (user := only_user(value, op_type)) is not None]
    return users if len(users) == len(values) else None


def initializer(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """The initializer of that name, made of `tensor` when there is none yet."""
    known = model.graph.initializers.get(name)
    if known is not None:
        return known
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def constant(model: ir.Model, before: ir.Node, array: np.ndarray) -> ir.Value:
    """A Constant node in front of `before`."""
    node = ir.node("Constant", [], {"value": ir.tensor(array)})
    model.graph.insert_before(before, node)
    value = node.outputs[0]
    value.const_value = node.attributes["value"].as_tensor()
    return value


def split(model: ir.Model, before: ir.Node, value: ir.Value, sizes: list[int], axis: int) -> list[ir.Value]:
    """Split `value` along `axis`, in front of `before`; the parts have shapes when `value` has one."""
    lengths = constant(model, before, np.array(sizes, np.int64))
    node = ir.node("Split", [value, lengths], {"axis": axis}, num_outputs=len(sizes))
    model.graph.insert_before(before, node)
    for size, part in zip(sizes, node.outputs, strict=True):
        part.type = value.type
        if value.shape is not None:
            shape = list(value.shape)
            shape[axis] = size
            part.shape = ir.Shape(shape)
    return list(node.outputs)


def substitute(model: ir.Model, old: ir.Value, new: ir.Value) -> None:
    """Let `new` take the place of `old` for every reader and in the outputs of the graph."""
    new.shape, new.type = new.shape or old.shape, new.type or old.type
    for index, output in enumerate(model.graph.outputs):
        if output is old:
            new.name = old.name
            model.graph.outputs[index] = new
    old.replace_all_uses_with(new)


def replace(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Let `value` take the place of the node's only output, and remove the node."""
    substitute(model, node.outputs[0], value)
    model.graph.remove(node, safe=True)
