"""The dry run: what `build` would write, how large, with which shapes and how much memory. Reads no weight."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lilicorr.export.describe import describe
from lilicorr.export.options import ELEMENT_BYTES, BuildOptions
from lilicorr.export.pair import Pair
from lilicorr.export.quantised_config import count_values
from lilicorr.export.tables import human_bytes, table
from lilicorr.runtime.contract import NATIVE, expected_interfaces, native_rows
from lilicorr.runtime.manifest import Cache, Limits, Tensor

GRAPH_BYTES, LAYER_BYTES = 30_000, 15_000  # nodes and names of a graph and of each layer; SmolLM2-135M: 473, 40, 61 kB
TENSOR_ENTRY_BYTES = 150  # one tensor in manifest.json
PEAK_FACTOR = 2.5  # resident peak of a build over the fp32 weights of target and drafter; 2.2 measured on SmolLM2-135M


@dataclass(frozen=True)
class Plan:
    """Estimates for one build; bytes everywhere."""

    precision: dict[str, str]  # component -> dtype of weights and activations
    files: dict[str, int]  # path -> bytes
    graphs: dict[str, dict[str, tuple[Tensor, ...]]]  # component -> {"inputs": …, "outputs": …}
    block_size: int
    limits: Limits
    cache_bytes: dict[str, int]  # component -> bytes at max_context and max_batch
    peak_memory_bytes: int
    warnings: tuple[str, ...]

    @property
    def disk_bytes(self) -> int:
        return sum(self.files.values())

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "disk_bytes": self.disk_bytes}


def make_plan(pair: Pair, options: BuildOptions) -> Plan:
    """Work out the plan of exporting `pair` with `options`."""
    element = ELEMENT_BYTES[options.precision]
    manifest = describe(pair, options)
    graphs = expected_interfaces(manifest)
    counts = _weight_counts(pair)
    quantisation = manifest.target.quantisation
    integers = {} if quantisation is None else count_values(pair.target.stored, pair.target.headers)
    values = sum(integers.values())
    counts["target"] -= sum(pair.target.headers[name].numel for name in integers)
    head = pair.drafter.config.lilicorr
    layers = {"target": pair.target.layers, "drafter": pair.drafter.config.num_hidden_layers}
    layers["scorer"] = head.num_layers if head else 0
    files = {f"{name}.onnx": GRAPH_BYTES + LAYER_BYTES * layers[name] for name in graphs}
    files |= {f"weights/{name}.bin": count * element for name, count in counts.items() if count}
    if quantisation is not None:
        files["weights/target.bin"] += values * quantisation.bits // 8 + values // quantisation.block * element
    files["tokenizer.json"] = pair.target.tokenizer.stat().st_size
    if pair.target.chat_template is not None:
        files["chat_template.jinja"] = len(pair.target.chat_template.encode())
    files["manifest.json"] = TENSOR_ENTRY_BYTES * sum(len(side) for graph in graphs.values() for side in graph)
    caches = {"target": manifest.target.cache, "drafter": manifest.drafter.cache}
    rows = native_rows(manifest) if manifest.attention == NATIVE else manifest.limits.max_context
    return Plan(
        precision=dict.fromkeys(graphs, manifest.target.cache.dtype),
        files=files,
        graphs={name: {"inputs": inputs, "outputs": outputs} for name, (inputs, outputs) in graphs.items()},
        block_size=pair.block_size,
        limits=manifest.limits,
        cache_bytes={
            name: _cache_bytes(cache, rows * manifest.limits.max_batch, element) for name, cache in caches.items()
        },
        peak_memory_bytes=int(PEAK_FACTOR * 4 * (sum(counts.values()) + values)),
        warnings=pair.warnings,
    )


def render(plan: Plan) -> str:
    """Return the plan as tables for people."""
    limits = plan.limits
    parts = [
        f"block {plan.block_size} (anchor + {plan.block_size - 1} slots), context {limits.max_context}, "
        f"batch {limits.max_batch}, prefill chunk {limits.prefill_chunk}",
        table(("file", "about"), [(path, human_bytes(size)) for path, size in plan.files.items()]),
        f"on disk about {human_bytes(plan.disk_bytes)}, peak memory of the build about "
        f"{human_bytes(plan.peak_memory_bytes)}",
        table(
            ("component", "precision", "cache at full context and batch"),
            [(name, dtype, human_bytes(plan.cache_bytes.get(name, 0))) for name, dtype in plan.precision.items()],
        ),
        *(f"{name}\n{render_tensors(sides['inputs'], sides['outputs'])}" for name, sides in plan.graphs.items()),
        *(f"warning: {warning}" for warning in plan.warnings),
    ]
    return "\n\n".join(parts)


def render_tensors(inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> str:
    """Return a table of a graph's tensors; the K/V tensors of all layers share one line."""
    rows = []
    for side, tensors in (("in", inputs), ("out", outputs)):
        groups: dict[str, list[Tensor]] = {}
        for tensor in tensors:
            stem = tensor.name.rstrip("0123456789")
            groups.setdefault(stem + "{i}" if stem.endswith("_") else tensor.name, []).append(tensor)
        rows += [(side, name, g[0].dtype, "(" + ", ".join(map(str, g[0].shape)) + ")") for name, g in groups.items()]
    return table(("", "tensor", "dtype", "shape"), rows)


def _weight_counts(pair: Pair) -> dict[str, int]:
    """Weights per file of `weights/`: the embedding (and a tied lm_head) once, the rest with its own graph."""
    total = {name: header.numel for name, header in pair.target.headers.items()}
    shared = [name for name in total if name.endswith("embed_tokens.weight")]
    shared += [name for name in total if name.endswith("lm_head.weight") and pair.target.tied]
    drafter = {name: header.numel for name, header in pair.drafter.headers.items()}
    scorer = sum(count for name, count in drafter.items() if name.startswith("lilicorr."))
    config = pair.drafter.config
    copied_rows = 0 if config.draft_vocab_size is None or config.has_own_lm_head else config.draft_vocab_size
    return {
        "embedding": pair.target.vocab_size * pair.target.hidden_size,
        "target": sum(count for name, count in total.items() if name not in shared),
        "drafter": sum(drafter.values()) - scorer + copied_rows * config.hidden_size,
        "scorer": scorer,
    }


def _cache_bytes(cache: Cache, rows: int, element: int) -> int:
    return 2 * cache.layers * cache.kv_heads * cache.head_dim * element * rows
