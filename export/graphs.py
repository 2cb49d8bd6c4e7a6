"""The three graphs of a bundle: trace each from its torch module, write them with shared weights, describe them.

This is what `bundle` writing calls; everything about one graph's inside lives in its own module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from lilicorr.export.block_weights import BlockWeight
from lilicorr.export.check_graph import component_from_graph
from lilicorr.export.drafter_graph import DrafterGraph
from lilicorr.export.native_attention import add_native_functions
from lilicorr.export.quantise_graph import quantise_weights
from lilicorr.export.scorer_graph import ScorerGraph
from lilicorr.export.simplify import simplify
from lilicorr.export.target_graph import TargetGraph
from lilicorr.export.tracing import OPSET, Port, Ports, trace
from lilicorr.export.walk import add_walk_function
from lilicorr.export.weights import THRESHOLD, move_weights
from lilicorr.runtime.manifest import Component
from lilicorr.train.drafter import Drafter
from lilicorr.train.lilicorr import LiLiCorrHead


def trace_target(
    model: nn.Module,
    target_layer_ids: Sequence[int],
    dtype: torch.dtype,
    integers: Sequence[BlockWeight] = (),
    *,
    native_rows: int | None = None,
) -> ir.Model:
    """Target graph of a transformers causal LM; `model` is converted to `dtype` in place.

    Args:
        integers: What stands behind those weights of `model` that the graph is to hold as integers.
        native_rows: C of native attention, which wants it static; None: two-part attention over any C.

    Raises:
        UserError: an unsupported architecture (see `architectures`).
    """
    graph = TargetGraph(model.to(dtype), target_layer_ids, native=native_rows is not None)
    config = model.config
    layers, width = config.num_hidden_layers, _head_dim(config)
    inputs: Ports = [
        Port("tokens", torch.int32, ("N", "T")),
        Port("lengths", torch.int32, ("N",)),
        *_caches(layers, config.num_key_value_heads, native_rows or "C", width, dtype),
    ]
    names = ["logits", "next_ids", "features", *_returned_rows(layers, native_rows)]
    traced = _finish(trace(graph, inputs, names), native_rows)
    if integers:
        quantise_weights(traced, integers)
    return traced


def trace_drafter(
    drafter: Drafter,
    embedding: Tensor,
    lm_head: Tensor,
    dtype: torch.dtype,
    slots: int,
    topk: int,
    *,
    native_rows: int | None = None,
) -> ir.Model:
    """Drafter graph; `drafter` is converted to `dtype`.

    Args:
        embedding, lm_head: (V, H) the target's, the same tensor when tied (`TargetGraph.lm_head` decides).
        slots: S, 1 to block_size - 1.
        topk: K, candidates per slot.
        native_rows: As in `trace_target`.

    Raises:
        UserError: slots, topk or the sliding window do not fit (see `drafter_graph`).
    """
    table = embedding.to(dtype)
    rows = table if lm_head is embedding else lm_head.to(dtype)
    graph = DrafterGraph(drafter.to(dtype).eval(), table, rows, slots=slots, topk=topk, native=native_rows is not None)
    config = drafter.config
    width = len(config.target_layer_ids) * config.hidden_size
    inputs: Ports = [
        Port("anchor", torch.int32, ("N",)),
        Port("features", dtype, ("N", "M", width)),
        Port("count", torch.int32, ("N",)),
        Port("lengths", torch.int32, ("N",)),
        *_caches(config.num_hidden_layers, config.num_key_value_heads, native_rows or "C", config.head_dim, dtype),
    ]
    rows = _returned_rows(config.num_hidden_layers, native_rows)
    return _finish(trace(graph, inputs, ["candidate_ids", "log_probs", "hidden", "anchor_row", *rows]), native_rows)


def trace_scorer(head: LiLiCorrHead, embedding: Tensor, dtype: torch.dtype, slots: int, topk: int) -> ir.Model:
    """Scorer graph with the greedy walk; `head` is converted to `dtype`, `embedding` is the target's table (V, H)."""
    graph = ScorerGraph(head.to(dtype).eval(), embedding.to(dtype), slots=slots, topk=topk)
    hidden_size = embedding.shape[1]
    inputs = [
        Port("candidate_ids", torch.int32, ("N", slots, topk)),
        Port("log_probs", torch.float32, ("N", slots, topk)),
        Port("hidden", dtype, ("N", slots, hidden_size)),
        Port("anchor_row", dtype, ("N", hidden_size)),
    ]
    model = trace(graph, inputs, ["draft_tokens", "path", "start", "pair"])
    add_walk_function(model, slots, OPSET)
    return _finish(model)


def write_graphs(models: Mapping[str, ir.Model], folder: Path, *, threshold: int = THRESHOLD) -> dict[str, Component]:
    """Write `<name>.onnx` for each model and their weights under `folder`, check each file, and describe it.

    Args:
        threshold: Smallest tensor in bytes that goes to a weight file.
    """
    weights = move_weights(models, folder, threshold=threshold)
    components = {}
    for name, model in models.items():
        path = folder / f"{name}.onnx"
        ir.save(model, path)
        components[name] = component_from_graph(path, weights[name])
    return components


def _finish(model: ir.Model, native_rows: int | None = None) -> ir.Model:
    if native_rows is not None:
        add_native_functions(model, OPSET)
    simplify(model)
    model.producer_name = "lilicorr"
    return model


def _head_dim(config: object) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads  # type: ignore[attr-defined]


def _caches(layers: int, kv_heads: int, rows: int | str, width: int, dtype: torch.dtype) -> list[list[Port]]:
    shape = ("N", kv_heads, rows, width)
    return [[Port(f"{kind}_cache_{i}", dtype, shape) for i in range(layers)] for kind in "kv"]


def _returned_rows(layers: int, native_rows: int | None) -> list[str]:
    pattern = "new_{}_{}" if native_rows is None else "updated_{}_cache_{}"
    return [pattern.format(kind, i) for kind in "kv" for i in range(layers)]
