"""Graph rewrites after tracing: exact ones only, each removing nodes that every runtime would otherwise execute per call.

Weight transposes become lazy tensors (computed when written), so a large target is never held twice.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer

FOLD_LIMIT = 2**26  # elements; folds what depends on weights alone, e.g. the split of the scorer's factor projection


def simplify(model: ir.Model) -> None:
    """Simplify `model` in place; inputs, outputs and their names stay."""
    _transpose_weights(model)
    _merge_projections(model)
    optimizer.fold_constants(
        model, onnx_shape_inference=False, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT
    )
    _replace_sequences(model)
    _divide_by_root(model)
    _constant_reshapes(model)
    for step in (
        common.IdentityEliminationPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.ClearMetadataAndDocStringPass(),
    ):
        step(model)


def _transpose_weights(model: ir.Model) -> None:
    """Transpose(W) of a weight → the transposed weight."""
    for node in list(model.graph):
        source = node.inputs[0] if node.op_type == "Transpose" else None
        if source is None or not source.is_initializer() or source.const_value is None:
            continue
        tensor, perm = source.const_value, tuple(node.attributes["perm"].as_ints())
        shape = ir.Shape([tensor.shape[i] for i in perm])

        def transposed(tensor: ir.TensorProtocol = tensor, perm: tuple[int, ...] = perm) -> ir.TensorProtocol:
            return ir.tensor(np.ascontiguousarray(tensor.numpy().transpose(perm)), dtype=tensor.dtype)

        name = f"{source.name}.transposed"
        lazy = ir.LazyTensor(transposed, dtype=tensor.dtype, shape=shape, name=name)
        _replace(model, node, _initializer(model, name, lazy))


def _merge_projections(model: ir.Model) -> None:
    """Three or more products of one input (q, k, v) → one product and a Split: 2 ms of a 31 ms step of a 30-layer target.

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
        tensors = [node.inputs[1].const_value for node in nodes]
        widths = [tensor.shape[1] for tensor in tensors]

        def merged(tensors: list[ir.TensorProtocol] = tensors) -> ir.TensorProtocol:
            return ir.tensor(np.concatenate([t.numpy() for t in tensors], axis=1), dtype=tensors[0].dtype)

        name = f"{nodes[0].inputs[1].name}.merged"
        shape = ir.Shape([tensors[0].shape[0], sum(widths)])
        lazy = ir.LazyTensor(merged, dtype=tensors[0].dtype, shape=shape, name=name)
        product = ir.node("MatMul", [source, _initializer(model, name, lazy)])
        sizes = ir.node("Constant", [], {"value": ir.tensor(np.array(widths, np.int64))})
        split = ir.node("Split", [product.outputs[0], sizes.outputs[0]], {"axis": -1}, num_outputs=len(nodes))
        for node in (product, sizes, split):
            model.graph.insert_before(nodes[0], node)
        for node, output in zip(nodes, split.outputs, strict=True):
            _replace(model, node, output)


def _replace_sequences(model: ir.Model) -> None:
    """SplitToSequence + SequenceAt → Split (a sequence cannot enter TensorRT and costs a copy elsewhere)."""
    for node in list(model.graph):
        if node.op_type != "SplitToSequence":
            continue
        users = [use.node for use in node.outputs[0].uses()]
        picks = sorted(users, key=lambda user: int(user.inputs[1].const_value.numpy()))
        split = ir.node("Split", node.inputs, {"axis": node.attributes["axis"].as_int()}, num_outputs=len(picks))
        model.graph.insert_before(node, split)
        for pick, output in zip(picks, split.outputs, strict=True):
            _replace(model, pick, output)
        model.graph.remove(node, safe=True)


def _divide_by_root(model: ir.Model) -> None:
    """x * Reciprocal(Sqrt(v)) → x / Sqrt(v): the form that runtimes recognise as RMSNorm."""
    for node in list(model.graph):
        if node.op_type != "Reciprocal" or node.inputs[0].producer().op_type != "Sqrt":
            continue
        for user in [use.node for use in node.outputs[0].uses() if use.node.op_type == "Mul"]:
            other = user.inputs[0] if user.inputs[1] is node.outputs[0] else user.inputs[1]
            division = ir.node("Div", [other, node.inputs[0]])
            model.graph.insert_before(user, division)
            _replace(model, user, division.outputs[0])


def _constant_reshapes(model: ir.Model) -> None:
    """Reshape to a computed shape → to a constant one (0 copies the input's dimension, one -1 is inferred)."""
    for node in model.graph:
        if node.op_type != "Reshape" or node.inputs[1].const_value is not None:
            continue
        before, after = _dims(node.inputs[0]), _dims(node.outputs[0])
        if before is None or after is None or 0 in after:
            continue
        target = [
            d if isinstance(d, int) else 0 if i < len(before) and before[i] == d else -1 for i, d in enumerate(after)
        ]
        if target.count(-1) > 1:
            continue
        constant = ir.node("Constant", [], {"value": ir.tensor(np.array(target, np.int64))})
        model.graph.insert_before(node, constant)
        node.replace_input_with(1, constant.outputs[0])
        node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)


def _dims(value: ir.Value | None) -> list[int | str] | None:
    if value is None or value.shape is None:
        return None
    return [d if isinstance(d, int) else str(d.value) for d in value.shape]


def _initializer(model: ir.Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    known = model.graph.initializers.get(name)
    if known is not None:
        return known
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _replace(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Let `value` take the place of the node's only output."""
    old = node.outputs[0]
    value.shape, value.type = value.shape or old.shape, value.type or old.type
    for index, output in enumerate(model.graph.outputs):
        if output is old:
            value.name = old.name
            model.graph.outputs[index] = value
    old.replace_all_uses_with(value)
    model.graph.remove(node, safe=True)
