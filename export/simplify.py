"""Graph rewrites after tracing: exact ones only, each removing nodes that every runtime would otherwise execute per call.

Weight transposes become lazy tensors (computed when written), so a large target is never held twice.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer

from lilicorr.export.ir_edit import constant, dims, initializer, replace
from lilicorr.export.merge_heads import merge_heads, merge_projections
from lilicorr.export.rotary import merge_rotations

FOLD_LIMIT = 2**26  # elements; folds what depends on weights alone, e.g. the split of the scorer's factor projection


def simplify(model: ir.Model) -> None:
    """Simplify `model` in place; inputs, outputs and their names stay."""
    _transpose_weights(model)
    merge_projections(model)
    optimizer.fold_constants(
        model, onnx_shape_inference=False, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT
    )
    _replace_sequences(model)
    _divide_by_root(model)
    _constant_reshapes(model)
    common.CommonSubexpressionEliminationPass()(model)  # every layer reshapes its own copy of the rotation's tables
    merge_heads(model)
    merge_rotations(model)
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
        replace(model, node, initializer(model, name, lazy))


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
            replace(model, pick, output)
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
            replace(model, user, division.outputs[0])


def _constant_reshapes(model: ir.Model) -> None:
    """Reshape to a computed shape → to a constant one (0 copies the input's dimension, one -1 is inferred)."""
    for node in list(model.graph):
        if node.op_type != "Reshape" or node.inputs[1].const_value is not None:
            continue
        before, after = dims(node.inputs[0]), dims(node.outputs[0])
        if before is None or after is None or 0 in after:
            continue
        target = [
            d if isinstance(d, int) else 0 if i < len(before) and before[i] == d else -1 for i, d in enumerate(after)
        ]
        if target.count(-1) > 1:
            continue
        node.replace_input_with(1, constant(model, node, np.array(target, np.int64)))
        node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)
