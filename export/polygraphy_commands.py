"""Ready Polygraphy commands that find the layer where two backends part, and the input file they need. Runs nothing.

Polygraphy's own recipe: golden values of every layer from ONNX Runtime, which then keeps every layer and fuses none, and ever
smaller graphs until the smallest that differs. `record_calls` keeps the call to look into.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lilicorr.export.ragged_calls import RunGraph
from lilicorr.runtime.contract import expected_interfaces
from lilicorr.runtime.manifest import Manifest

RUNNERS = {"onnxruntime": "--onnxrt", "tensorrt": "--trt", "tensorrt-rtx": "--trt"}
BISECT_NAME = "bisect"  # folder of a bundle: a script per graph that missed a budget by itself
NOTHING = "no layer differs: the graph as written computes this; if PyTorch does not, weights or tracing differ"

Feeds = dict[str, np.ndarray]


def record_calls(run: RunGraph, manifest: Manifest, calls: dict[str, Feeds]) -> RunGraph:
    """`run`, which also keeps the latest call of every graph in `calls`, in the graph's dtypes.

    Single-token calls of the target are passed over: a block also shows what goes wrong between its own rows.
    """
    dtypes = {
        graph: {tensor.name: tensor.dtype for tensor in wanted}
        for graph, (wanted, _) in expected_interfaces(manifest).items()
    }

    def recorded(graph: str, inputs: Mapping[str, np.ndarray]) -> Feeds:
        if graph != "target" or inputs["tokens"].shape[1] > 1:
            calls[graph] = {name: np.array(value, dtypes[graph][name]) for name, value in inputs.items()}
        return run(graph, inputs)

    return recorded


def save_inputs(feeds: Mapping[str, np.ndarray], path: Path) -> None:
    """Write one call's inputs as Polygraphy's `--load-inputs` reads them. It knows no bfloat16: fp32 or fp16 graphs only."""
    from polygraphy.json import save_json

    save_json([dict(feeds)], str(path))


def write_bisection(
    graph: Path,
    feeds: Mapping[str, np.ndarray],
    folder: Path,
    *,
    backend: str,
    tolerance: float,
    golden: Path | None = None,
    plugin: Path | None = None,
) -> str:
    """Write inputs and script of `bisect_commands` into `folder/NAME/`, NAME being the graph's; return the command to run."""
    folder = folder.resolve() / graph.stem
    folder.mkdir(parents=True, exist_ok=True)
    inputs, script = folder / "call.json", folder / "bisect.sh"
    save_inputs(feeds, inputs)
    commands = bisect_commands(
        graph.resolve(),
        inputs,
        folder,
        shapes={name: value.shape for name, value in feeds.items()},
        backend=backend,
        tolerance=tolerance,
        golden=golden and golden.resolve(),
        plugin=plugin,
    )
    # `debug reduce` leaves its intermediate graphs in the working directory
    script.write_text(f"set -e\ncd {shlex.quote(str(folder))}\n{commands}\n", encoding="utf-8")
    return shlex.join(["sh", str(script)])


def bisect_commands(
    graph: Path,
    inputs: Path,
    folder: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    backend: str,
    tolerance: float,
    golden: Path | None = None,
    plugin: Path | None = None,
) -> str:
    """Shell commands that leave the smallest failing graph in `folder/reduced.onnx`. Needs polygraphy and onnx-graphsurgeon.

    Args:
        inputs: A file of `save_inputs`.
        folder: Where the intermediate files go.
        shapes: Shape of every input in that file. The parts are tried with these sizes alone: TensorRT needs no profile for them.
        backend: The one under suspicion: "onnxruntime", "tensorrt" or "tensorrt-rtx".
        tolerance: Absolute difference that still counts as equal.
        golden: The graph whose values in ONNX Runtime are right; None: `graph` itself.
        plugin: The plugin library, for TensorRT.
    """
    every_input, layers, both = (str(folder / f"{name}.json") for name in ("inputs", "layers", "layer-inputs"))
    record = ["polygraphy", "run", str(golden or graph), "--onnxrt", "--load-inputs", str(inputs)]
    record += ["--save-inputs", every_input, "--onnx-outputs", "mark", "all", "--save-outputs", layers]
    merge = ["polygraphy", "data", "merge", every_input, layers, "-o", both]
    compare = [RUNNERS[backend], "--load-inputs", both]
    compare += ["--load-outputs", layers, "--atol", f"{tolerance:g}", "--rtol", "0"]
    if plugin is not None:
        compare += ["--plugins", str(plugin)]
    whole = shlex.join(["polygraphy", "run", str(graph), *compare])
    reduce = ["polygraphy", "debug", "reduce", str(graph), "-o", str(folder / "reduced.onnx"), "--mode", "bisect"]
    reduce += ["--load-inputs", both, "--force-fallback-shape-inference"]
    reduce += ["--model-input-shapes", *(f"{name}:{list(shape)}".replace(" ", "") for name, shape in shapes.items())]
    # a part that does not run for another reason is no finding
    reduce += ["--fail-regex", "Difference exceeds tolerance", "--check"]
    reduce += ["polygraphy", "run", "polygraphy_debug.onnx", *compare]
    nothing = shlex.join(["echo", NOTHING])
    return "\n".join(
        [
            *(["export POLYGRAPHY_USE_TENSORRT_RTX=1"] if backend == "tensorrt-rtx" else []),
            shlex.join(record),
            shlex.join(merge),
            f"if {whole}; then {nothing} >&2; exit 1; fi",
            shlex.join(reduce),
        ]
    )
