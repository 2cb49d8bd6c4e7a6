"""TensorRT-RTX engines built without naming a compute capability: does this chip load and run them, and are they right?

    python benchmarks/device_portable.py build/device_check/bundle --out build/device_check

Chips that TensorRT-RTX cannot be told to build for (8.7, 9.0, 11.0) depend on the answer; both answers are a result, so only a
build that fails is a failure. Last line of stdout: one JSON object.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(bundle: Path, out: Path) -> None:
    os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"  # read when polygraphy is first imported
    from lilicorr.export.backend_parity import OWN_TEXT, round_calls
    from lilicorr.runtime.bundle import open_bundle
    from lilicorr.runtime.engine_check import compute_capability
    from lilicorr.runtime.trt_bindings import RTX, import_tensorrt

    opened, folder = open_bundle(bundle), out / "engines-unnamed"
    folder.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "compute_capability": compute_capability(),
        "tensorrt_rtx": import_tensorrt(RTX).__version__,
    }
    calls = round_calls(opened, OWN_TEXT)
    for graph in sorted(opened.manifest.components):
        report[graph] = try_one(opened, folder, graph, calls[graph])
    click.echo(json.dumps(report))


def try_one(bundle: Any, folder: Path, graph: str, feeds: dict[str, Any]) -> dict[str, Any]:
    """Build the engine of `graph` for no named chip, load and run it; what it said when it did not."""
    from lilicorr.export.backend_parity import compare_graph, engine_runner, golden_runner
    from lilicorr.export.budgets import budget_of
    from lilicorr.export.engine_builder import Job, build_engine
    from lilicorr.export.engine_profiles import profiles_for
    from lilicorr.runtime.engine_set import Engine
    from lilicorr.runtime.trt_bindings import RTX

    path = bundle.path(bundle.manifest.components[graph].file).resolve()
    profiles = profiles_for(bundle.manifest, graph)
    job = Job(
        component=graph,
        graph=str(path),
        engine=str((folder / f"{graph}.engine").resolve()),
        layers=str((folder / f"{graph}.layers.tsv").resolve()),
        precision=bundle.manifest.precision,
        profiles=profiles,
        backend=RTX,
        compute_capabilities=(),
        workspace_mib=None,
        optimization_level=3,
        plugin_library=None,
        plugin_name=None,
        plugin_namespace=None,
        timing_cache=None,
    )
    build_engine(job, lambda line: click.echo(f"{graph}: {line}", err=True), lambda: False)
    engine = Engine(f"{graph}.engine", sha256="", bytes=0, profiles=profiles, built_from={})
    try:
        suspect = engine_runner(folder, engine, graph, RTX, feeds, None)
        found = compare_graph(graph, golden_runner(path), suspect, feeds, budget_of(bundle.manifest.precision))
    except Exception as error:  # of TensorRT, CUDA or Polygraphy: what it says is the answer
        return {"runs": False, "error": f"{type(error).__name__}: {error}"[:500]}
    return {
        "runs": True,
        "right": all(measure.passed for measure in found),
        "measures": {measure.name: measure.value for measure in found},
    }


if __name__ == "__main__":
    main()
