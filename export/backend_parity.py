"""`compare`: rung 1 between backends: the engines of a bundle against ONNX Runtime on the same graphs and the same real calls.

Runs and compares with Polygraphy's runners and comparator. Needs no PyTorch, so it runs on the device that built the engines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lilicorr.export.budgets import Budget, budget_of
from lilicorr.export.graph_runner import GraphRunner
from lilicorr.export.polygraphy_commands import BISECT_NAME, Feeds, record_calls, write_bisection
from lilicorr.export.progress import Progress
from lilicorr.export.ragged_calls import drafter_lattice, target_rows
from lilicorr.export.verdict import Measure, tensor_limit
from lilicorr.plugins_trt import PluginError, find
from lilicorr.runtime.bundle import Bundle, file_sha256, open_bundle
from lilicorr.runtime.contract import NATIVE
from lilicorr.runtime.engine_check import here, open_engines
from lilicorr.runtime.engine_set import Engine, EngineSet, read_engine_set, rebuild_command
from lilicorr.runtime.engine_shapes import profile_for
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.ort import OrtBackend
from lilicorr.runtime.trt_bindings import import_tensorrt

OWN_TEXT = (
    "A ship leaves the harbour at dawn and sails north for three hours at eight knots. How far has it come by then, and how"
    " long does it need for the way back if a current of two knots runs against it? Answer in two sentences."
)
TEXT_IDS = 48  # tokens of the compared call: longer than a block, and small enough to keep every layer of it


def compare_engines(folder: Path, engines_folder: Path, prompt: str | None, progress: Progress) -> dict[str, Any]:
    """Run every engine and its graph on the calls of one round over `prompt` (None: OWN_TEXT); return a report like `parity`'s.

    Raises:
        UserError: a damaged bundle, native attention, engines of another machine (exit code 4), no TensorRT, or a prompt that
            is too short.
    """
    prompt = prompt or OWN_TEXT
    with progress.phase("verify bundle and engines"):
        bundle = open_bundle(folder)
        if bundle.manifest.attention == NATIVE:
            raise UserError(
                "native engines write their caches in place, and Polygraphy's runner gives every output memory of its own",
                hint="compare the answers: lilicorr-run generate, on the engines and on ONNX Runtime",
            )
        described = read_engine_set(engines_folder)
        if described.backend == "tensorrt-rtx":
            os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"  # read when polygraphy is first imported
        version = import_tensorrt(described.backend).__version__
        plugin = _plugin(described)
        loaded = (described.plugin.version, file_sha256(plugin)) if described.plugin and plugin else (None, None)
        engines = open_engines(engines_folder, folder, here(described.backend, version, *loaded))
        budget = budget_of(bundle.manifest.precision)
    with progress.phase("run the graphs in ONNX Runtime"):
        calls = round_calls(bundle, prompt)
    found, bisect = [], []
    for graph in engines.engines:
        with progress.phase(f"run the {graph} engine"):
            path = bundle.path(bundle.manifest.components[graph].file)
            suspect = engine_runner(
                engines_folder, engines.engines[graph], graph, engines.backend, calls[graph], plugin
            )
            measures = compare_graph(graph, golden_runner(path), suspect, calls[graph], budget)
        if not all(measure.passed for measure in measures):
            bisect.append(
                write_bisection(
                    path,
                    calls[graph],
                    folder / BISECT_NAME,
                    backend=engines.backend,
                    tolerance=max(measure.budget or 0.0 for measure in measures),
                    plugin=plugin,
                )
            )
        found += measures
    return {
        "passed": all(measure.passed for measure in found),
        "precision": bundle.manifest.precision,
        "backend": f"{engines.backend} {engines.tensorrt_version}",
        "reference": "ONNX Runtime CPU",
        "prompts": [prompt],
        "bisect": bisect,
        "summary": [measure.row() for measure in found],
    }


def _plugin(described: EngineSet) -> Path | None:
    """The library with the plugin of the engines."""
    if described.plugin is None:
        return None
    try:
        return find(version=described.plugin.version)
    except PluginError as error:
        raise UserError(error.what, hint=error.hint, exit_code=EXIT_ENGINE) from None


def round_calls(bundle: Bundle, prompt: str) -> dict[str, Feeds]:
    """The inputs of one round's calls over the first TEXT_IDS tokens of `prompt`: a block of the target, and what follows."""
    from lilicorr.runtime.tokenizer import ChatTokenizer

    manifest = bundle.manifest
    tokenizer = ChatTokenizer(bundle.folder, manifest.target.bos_token, manifest.target.eos_token)
    ids = tokenizer.encode(prompt)[:TEXT_IDS]
    if len(ids) < manifest.drafter.block_size + 3:  # two prefill calls, a block, a single token
        raise UserError(
            f"the prompt has {len(ids)} tokens, expected at least {manifest.drafter.block_size + 3}",
            hint="give a longer --prompt",
        )
    calls: dict[str, Feeds] = {}
    with OrtBackend(bundle) as backend:
        run = record_calls(GraphRunner(backend, manifest), manifest, calls)
        (rows,) = target_rows(run, manifest, [ids])
        anchor = len(ids) - 1
        lattice = drafter_lattice(run, manifest, rows["features"][:anchor], [anchor], [ids[anchor]])
        if manifest.head is not None:
            run("scorer", lattice)
    return calls


def compare_graph(graph: str, golden: Any, suspect: Any, feeds: Feeds, budget: Budget) -> list[Measure]:
    """Both Polygraphy runners on `feeds`: a measure per float output, judged, and per integer output, counted.

    Integers are decisions between values that may lie arbitrarily close; rungs 2 to 4 judge them.
    """
    from polygraphy.comparator import Comparator, SimpleCompareFunc
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):  # it talks on stdout
        results = Comparator.run([golden, suspect], data_loader=[feeds])
        (wanted,), (given,) = (iterations for _, iterations in results.items())
        limits = {
            name: tensor_limit(f"{graph}.{name}", float(np.sqrt(np.mean(np.square(array, dtype=np.float64)))), budget)
            for name, array in wanted.items()
            if array.dtype.kind == "f"
        }
        compared = Comparator.compare_accuracy(
            results, compare_func=SimpleCompareFunc(atol=limits, rtol=0, check_error_stat="max")
        )
    ((_, (differences,)),) = compared[0].items()
    return [
        Measure(1, f"{graph}.{name} max abs", float(differences[name].max_absdiff), limits[name])
        if name in limits
        else Measure(2, f"{graph}.{name}: unlike", int(np.sum(wanted[name] != given[name])))
        for name in wanted
    ]


def golden_runner(graph: Path) -> Any:
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    return OnnxrtRunner(SessionFromOnnx(str(graph), providers=["cpu"]), name="ONNX Runtime")


def engine_runner(
    folder: Path, engine: Engine, graph: str, backend: str, feeds: Mapping[str, np.ndarray], plugin: Path | None
) -> Any:
    """Polygraphy's runner of one engine in `folder`, under the profile of this call; raises UserError when none allows it."""
    from polygraphy.backend.common import BytesFromPath
    from polygraphy.backend.trt import EngineFromBytes, LoadPlugins, TrtRunner

    dynamic = {name: feeds[name].shape for name in engine.profiles[0].shapes}
    profile = profile_for(graph, engine, dynamic, rebuild_command(backend))
    plan = LoadPlugins([str(plugin)] if plugin else [], obj=BytesFromPath(str(folder / engine.file)))
    return TrtRunner(EngineFromBytes(plan), name=backend, optimization_profile=profile)
