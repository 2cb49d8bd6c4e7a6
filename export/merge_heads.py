"""Projections of one input become one product, one reshape and one transpose: q, k and v of an attention layer.

A step of few tokens costs as much in small operators as in arithmetic beside the weights, and these are three of each per layer.
Exact: every column of the merged product is the same sum as before.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lilicorr.export.ir_edit import constant, dims, initializer, integers, only_user, only_users, replace, split


def merge_projections(model: ir.Model) -> None:
    """Three or more products of one input (q, k, v), with or without bias → one and a Split: 2 ms of a 31 ms step of 30 layers.

    Pairs stay (merging gate and up was slower: the Split copies more than the product saves), and so do weights with another use.
    """
    products: dict[ir.Value, list[ir.Node]] = {}
    for node in model.graph:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        if weight is not None and weight.is_initializer() and len(weight.uses()) == 1:
            products.setdefault(node.inputs[0], []).append(node)
    for source, nodes in products.items():
        if len(nodes) < 3:
            continue
        weights = [node.inputs[1] for node in nodes]
        widths = [weight.const_value.shape[1] for weight in weights]
        biases = [_bias(node) for node in nodes]
        ends = nodes
        product = ir.node("MatMul", [source, _joined(model, weights)])
        model.graph.insert_before(nodes[0], product)
        if all(bias is not None for bias in biases):
            ends = [only_user(node.outputs[0], "Add") for node in nodes]
            product = ir.node("Add", [product.outputs[0], _joined(model, biases)])
            model.graph.insert_before(nodes[0], product)
        merged = product.outputs[0]
        merged.type = ends[0].outputs[0].type
        if ends[0].outputs[0].shape is not None:
            merged.shape = ir.Shape([*list(ends[0].outputs[0].shape)[:-1], sum(widths)])
        for end, part in zip(ends, split(model, nodes[0], merged, widths, axis=-1), strict=True):
            replace(model, end, part)
        if ends is not nodes:
            model.graph.remove(nodes, safe=True)


def merge_heads(model: ir.Model) -> None:
    """Split of (N,T,h·D) → Reshape (N,T,h,D) → Transpose (N,h,T,D) per part, to one Reshape, one Transpose and a Split of heads."""
    for node in list(model.graph):
        if node.op_type != "Split" or node.attributes["axis"].as_int() != -1:
            continue
        reshapes = only_users(node.outputs, "Reshape")
        view = None if reshapes is None else integers(reshapes[0].inputs[1])
        if reshapes is None or view is None:
            continue
        if any(integers(r.inputs[1]) is None or len(dims(r.outputs[0]) or ()) != 4 for r in reshapes):
            continue
        transposes = only_users([r.outputs[0] for r in reshapes], "Transpose")
        if transposes is None or any(tuple(t.attributes["perm"].as_ints()) != (0, 2, 1, 3) for t in transposes):
            continue
        shapes = [list(r.outputs[0].shape) for r in reshapes]
        if any(shape[:2] != shapes[0][:2] or shape[3] != shapes[0][3] for shape in shapes):
            continue
        heads = [shape[2] for shape in shapes]
        rows, length, _, width = shapes[0]
        target = [*view[:2], sum(heads), width]
        viewed = ir.node(
            "Reshape", [node.inputs[0], constant(model, node, np.array(target, np.int64))], {"allowzero": 0}
        )
        turned = ir.node("Transpose", [viewed.outputs[0]], {"perm": [0, 2, 1, 3]})
        model.graph.insert_before(node, [viewed, turned])
        for value, shape in (
            (viewed.outputs[0], [rows, length, sum(heads), width]),
            (turned.outputs[0], [rows, sum(heads), length, width]),
        ):
            value.shape, value.type = ir.Shape(shape), transposes[0].outputs[0].type
        for transpose, part in zip(transposes, split(model, node, turned.outputs[0], heads, axis=1), strict=True):
            replace(model, transpose, part)
        model.graph.remove([*reshapes, node], safe=True)


def _bias(product: ir.Node) -> ir.Value | None:
    """The vector that alone is added to a product."""
    add = only_user(product.outputs[0], "Add")
    bias = None if add is None else add.inputs[1]
    if bias is None or not bias.is_initializer() or len(bias.uses()) != 1 or len(bias.const_value.shape) != 1:
        return None
    return bias


def _joined(model: ir.Model, values: list[ir.Value]) -> ir.Value:
    """Initializers side by side along the last axis, computed when written."""
    tensors = [value.const_value for value in values]
    shape = ir.Shape([*tensors[0].shape[:-1], sum(tensor.shape[-1] for tensor in tensors)])

    def join() -> ir.TensorProtocol:
        return ir.tensor(np.concatenate([t.numpy() for t in tensors], axis=-1), dtype=tensors[0].dtype)

    name = f"{values[0].name}.merged"
    return initializer(model, name, ir.LazyTensor(join, dtype=tensors[0].dtype, shape=shape, name=name))
