"""What the runtime calls of TensorRT, against the signatures of the real bindings; and what is said when a call fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.test_trt_api import VERSIONS, stubs
from tests.plugins_trt.tools import ROOT, wheel

__all__ = ["stubs"]

RTX = "rtx-1.7.1.116"


def run(version: str, scenario: str, stubs: Path, tmp_path: Path) -> tuple[str, set[str]]:
    if (folder := wheel(version)) is None:
        pytest.skip(f"no {version}: run `make tensorrt-wheels`")
    (tmp_path / "target.engine").write_bytes(b"plan")
    module, backend = ("tensorrt_rtx_bindings", "tensorrt-rtx") if version == RTX else ("tensorrt_bindings", "tensorrt")
    environment = os.environ | {"LD_LIBRARY_PATH": str(stubs), "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-m", "tests.runtime.checked_run", module, backend, tmp_path / "target.engine", scenario]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    result, calls = json.loads(done.stdout.splitlines()[-1])
    return result, set(calls)


@pytest.mark.parametrize("version", [*VERSIONS, RTX])
def test_every_call_is_one_that_this_version_declares(version: str, stubs: Path, tmp_path: Path) -> None:
    result, calls = run(version, "runs", stubs, tmp_path)
    assert result == "ran"
    assert {"Runtime.deserialize_cuda_engine", "IExecutionContext.execute_async_v3"} <= calls
    assert ("IRuntimeConfig.cuda_graph_strategy =" in calls) == (version == RTX)


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("unread", "TensorRT cannot read `{path}`:\n  it gave no reason\n\nhint: rebuild --force"),
        ("no context", "TensorRT cannot run the target engine:\n  it gave no reason\n\nhint: rebuild --force"),
        (
            "other dtype",
            "`{path}` is not the engine described:\n  input `x` float16: not in the manifest\n  "
            "input `x` float32: not in the engine\n\nhint: rebuild --force",
        ),
        ("bad shape", "TensorRT refuses Plan(profile=0"),
        ("not enqueued", "TensorRT cannot enqueue target: it gave no reason"),
    ],
)
def test_what_is_said_when_tensorrt_refuses(scenario: str, said: str, stubs: Path, tmp_path: Path) -> None:
    result, _ = run(VERSIONS[-1], scenario, stubs, tmp_path)
    assert result.startswith(said.format(path=tmp_path / "target.engine"))
