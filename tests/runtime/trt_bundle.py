"""A bundle with engines that the simulated TensorRT runs, opened as on a machine with a GPU."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path
from typing import Any

import pytest

from lilicorr.export.engine_profiles import profiles_for
from lilicorr.runtime import backends, cuda_device, engine_check
from lilicorr.runtime.block_choice import BlockChoice, RoundCosts
from lilicorr.runtime.bundle import file_sha256, open_bundle
from lilicorr.runtime.cuda_device import CudaDevice
from lilicorr.runtime.engine_set import FILE_NAME, Engine, EngineSet
from lilicorr.runtime.session import Session
from lilicorr.runtime.steps import Steps
from tests.runtime.simulated_cuda import SimulatedDriver
from tests.runtime.simulated_tensorrt import SimulatedTensorRT
from tests.runtime.test_engine_set import example


def write_engines(bundle: Path, name: str = "one", **changes: Any) -> EngineSet:
    """Write `bundle/engines/name` for a GPU of compute capability 8.9 on this machine; returns its description."""
    opened, folder = open_bundle(bundle), bundle / "engines" / name
    folder.mkdir(parents=True)
    engines = {}
    for component, described in opened.manifest.components.items():
        path = folder / f"{component}.engine"
        path.write_text(f"graph {opened.path(described.file)}")
        profiles = profiles_for(opened.manifest, component)
        engines[component] = Engine(path.name, file_sha256(path), path.stat().st_size, profiles, {})
    here = {"system": platform.system().lower(), "machine": platform.machine(), "compute_capabilities": ("8.9",)}
    belongs = {"bundle_sha256": file_sha256(bundle / "manifest.json"), "engines": engines, "plugin": None}
    described = example(**{**here, **belongs, **changes})
    (folder / FILE_NAME).write_text(described.to_json())
    return described


@dataclasses.dataclass
class Machine:
    """A machine with a simulated GPU."""

    driver: SimulatedDriver
    tensorrt: SimulatedTensorRT


def machine_with(
    monkeypatch: pytest.MonkeyPatch, described: EngineSet, *, limit: int = 1 << 30, capturable: bool = True
) -> Machine:
    """Let `load` find a GPU of compute capability 8.9 and a TensorRT that runs the engines of `described`."""
    driver = SimulatedDriver(limit)
    tensorrt = SimulatedTensorRT(driver, described, capturable=capturable)
    for module in (backends, engine_check):
        monkeypatch.setattr(module, "compute_capability", lambda: "8.9")
    monkeypatch.setattr(backends, "import_tensorrt", lambda backend: tensorrt)
    monkeypatch.setattr(cuda_device, "open_device", lambda: CudaDevice(driver))
    return Machine(driver, tensorrt)


def run_with_plain_steps(session: Session, prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Answer with blocks chosen by fixed costs, so that plain steps lie between drafts.

    Returns:
        Token ids and offered drafts of every answer, and the drafts of every round.
    """
    block, drafts = session.manifest.drafter.block_size, list[Any]()
    speculate = Steps.speculate

    def recorded(self: Steps, *arguments: Any, **options: Any) -> Any:
        found = speculate(self, *arguments, **options)
        drafts.append(found[0].tolist())
        return found

    with monkeypatch.context() as patch:
        patch.setitem(session.loop.choices, len(prompts), BlockChoice(block, RoundCosts((1.0,) * block, 0.3)))
        patch.setattr(Steps, "speculate", recorded)
        results = session.generate_batch(prompts, max_new_tokens=40)
    return [(result.token_ids, result.stats.offered) for result in results], drafts
