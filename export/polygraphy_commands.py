"""Ready Polygraphy commands that find the layer where two backends part, and the input file they need. Runs nothing.

Polygraphy's own recipe: golden values of every layer from ONNX Runtime, then ever smaller graphs until the smallest that differs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np

RUNNERS = {"onnxruntime": "--onnxrt", "tensorrt": "--trt", "tensorrt-rtx": "--trt"}


def save_inputs(feeds: Mapping[str, np.ndarray], path: Path) -> None:
    """Write one call's inputs as Polygraphy's `--load-inputs` reads them. It knows no bfloat16: fp32 or fp16 graphs only."""
    from polygraphy.json import save_json

    save_json([dict(feeds)], str(path))


def bisect_commands(
    graph: Path,
    inputs: Path,
    folder: Path,
    *,
    backend: str,
    tolerance: float,
    golden: Path | None = None,
    plugin: Path | None = None,
) -> str:
    """A shell script of three commands that leaves the smallest failing graph in `folder/reduced.onnx`.

    Args:
        inputs: A file of `save_inputs`.
        folder: Where the intermediate files go.
        backend: The one under suspicion: "onnxruntime", "tensorrt" or "tensorrt-rtx".
        tolerance: Absolute difference that still counts as equal.
        golden: The graph whose values in ONNX Runtime are right; None: `graph` itself.
        plugin: The plugin library, for TensorRT.
    """
    every_input, layers, both = (str(folder / f"{name}.json") for name in ("inputs", "layers", "layer-inputs"))
    compare = [
        "polygraphy",
        "run",
        "polygraphy_debug.onnx",
        RUNNERS[backend],
        "--load-inputs",
        both,
        "--load-outputs",
        layers,
    ]
    compare += ["--atol", f"{tolerance:g}", "--rtol", "0"]
    if plugin is not None:
        compare += ["--plugins", str(plugin)]
    record = [
        "polygraphy",
        "run",
        str(golden or graph),
        "--onnxrt",
        "--load-inputs",
        str(inputs),
        "--save-inputs",
        every_input,
    ]
    record += ["--onnx-outputs", "mark", "all", "--save-outputs", layers]
    merge = ["polygraphy", "data", "merge", every_input, layers, "-o", both]
    reduce = ["polygraphy", "debug", "reduce", str(graph), "-o", str(folder / "reduced.onnx"), "--mode", "bisect"]
    # a part that does not run for another reason is no finding
    reduce += ["--load-inputs", both, "--fail-regex", "Difference exceeds tolerance", "--check", *compare]
    # debug reduce needs onnx-graphsurgeon, which is no dependency of ours
    settings = ["export POLYGRAPHY_AUTOINSTALL_DEPS=1"]
    if backend == "tensorrt-rtx":
        settings.append("export POLYGRAPHY_USE_TENSORRT_RTX=1")
    return "\n".join([*settings, *map(shlex.join, (record, merge, reduce))])
