"""Ready Polygraphy commands that find the layer where two backends part, and the input file they need. Runs nothing.

Polygraphy's own recipe: golden values of every layer from ONNX Runtime, which then keeps every layer and fuses none, and ever
smaller graphs until the smallest that differs. `record_calls` keeps the call to look into.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lilicorr.export.ragged_calls import RunGraph
from lilicorr.runtime.contract import PLUGIN, expected_interfaces
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
    """Write what `bisect_commands` needs, and its script, into `folder/NAME/`, NAME being the graph's; return the command to run.

    Args:
        feeds: One call of the graph, in its dtypes.
        backend, tolerance, plugin: As in `bisect_commands`.
        golden: The graph whose values in ONNX Runtime are right; None: `graph` itself.
    """
    folder = folder.resolve() / graph.stem
    folder.mkdir(parents=True, exist_ok=True)
    inputs, script = folder / "call.json", folder / "bisect.sh"
    save_inputs(feeds, inputs)
    shapes = {name: value.shape for name, value in feeds.items()}
    suspect = freeze(graph, shapes, folder / "suspect.onnx")
    right = freeze(golden, shapes, folder / "golden" / golden.name) if golden else suspect
    commands = bisect_commands(suspect, right, inputs, folder, backend=backend, tolerance=tolerance, plugin=plugin)
    # `debug reduce` leaves its intermediate graphs in the working directory
    script.write_text(f"set -e\ncd {shlex.quote(str(folder))}\n{commands}\n", encoding="utf-8")
    return shlex.join(["sh", str(script)])


def freeze(graph: Path, shapes: Mapping[str, tuple[int, ...]], out: Path) -> Path:
    """Write `graph` as Polygraphy can take it apart: one size per dimension, constants as initialisers (it has no golden values of
    nodes without inputs), and no functions but the walk's, which TensorRT's plugin replaces. Copies the weight files it needs.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data
    from onnx.inliner import inline_selected_functions

    out.parent.mkdir(parents=True, exist_ok=True)
    model = onnx.load(graph, load_external_data=False)
    walk = [(PLUGIN.namespace, PLUGIN.name)]
    model = inline_selected_functions(model, walk, exclude=True)
    for value in model.graph.input:
        for dimension, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            dimension.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")  # symbolic sizes that no input has any more
    del model.graph.value_info[:]
    constants = [node for node in model.graph.node if node.op_type == "Constant" and not node.domain]
    for node in constants:
        array = onnx.numpy_helper.from_array(_constant(node), node.output[0])
        model.graph.initializer.append(array)
        model.graph.node.remove(node)
    for location in {ExternalDataInfo(t).location for t in model.graph.initializer if uses_external_data(t)}:
        (out.parent / location).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(graph.parent / location, out.parent / location)  # onnx refuses a file with more than one link
    onnx.save(model, out)
    return out


def _constant(node: Any) -> np.ndarray:
    """The value of a Constant node, in whichever attribute it is."""
    import onnx

    (attribute,) = node.attribute
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return onnx.numpy_helper.to_array(value)
    return np.array(value, np.float32 if attribute.name.startswith("value_float") else np.int64)


def bisect_commands(
    suspect: Path,
    golden: Path,
    inputs: Path,
    folder: Path,
    *,
    backend: str,
    tolerance: float,
    plugin: Path | None = None,
) -> str:
    """Shell commands that leave the smallest failing part of `suspect` in `folder/reduced.onnx`. They need onnx-graphsurgeon.

    Args:
        suspect, golden: Files of `freeze`; ONNX Runtime's values of `golden` are right.
        inputs: A file of `save_inputs`.
        folder: Where the intermediate files go.
        backend: The one under suspicion: "onnxruntime", "tensorrt" or "tensorrt-rtx".
        tolerance: Absolute difference that still counts as equal.
        plugin: The plugin library, for TensorRT.
    """
    every_input, layers, both = (str(folder / f"{name}.json") for name in ("inputs", "layers", "layer-inputs"))
    record = ["polygraphy", "run", str(golden), "--onnxrt", "--load-inputs", str(inputs)]
    record += ["--save-inputs", every_input, "--onnx-outputs", "mark", "all", "--save-outputs", layers]
    merge = ["polygraphy", "data", "merge", every_input, layers, "-o", both]
    compare = [RUNNERS[backend], "--load-inputs", both]
    compare += ["--load-outputs", layers, "--atol", f"{tolerance:g}", "--rtol", "0"]
    compare += ["--infinities-compare-equal"]  # masks are -inf, and inf - inf is no number within a tolerance
    if plugin is not None:
        compare += ["--plugins", str(plugin)]
    whole = shlex.join(["polygraphy", "run", str(suspect), *compare])
    reduce = ["polygraphy", "debug", "reduce", str(suspect), "-o", str(folder / "reduced.onnx"), "--mode", "bisect"]
    reduce += ["--load-inputs", both, "--force-fallback-shape-inference"]
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
