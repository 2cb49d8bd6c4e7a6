"""An engine for no named chip: NVIDIA's builder makes it without a GPU; that it does not load here is an answer, no failure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins_trt.tools import wheel

ROOT = Path(__file__).parents[2]
RTX = wheel("rtx-1.7.1.116")
CODE = """
import json, os, sys
from pathlib import Path
import numpy as np
import device_portable
from lilicorr.runtime.bundle import open_bundle
feeds = {
    "candidate_ids": np.zeros((1, 4, 4), np.int32),
    "log_probs": np.zeros((1, 4, 4), np.float32),
    "hidden": np.zeros((1, 4, 32), np.float32),
    "anchor_row": np.zeros((1, 32), np.float32),
}
print(json.dumps(device_portable.try_one(open_bundle(sys.argv[1]), Path(sys.argv[2]), "scorer", feeds)), flush=True)
os._exit(0)  # TensorRT's runtime may fault at exit where there is no driver
"""


@pytest.mark.skipif(RTX is None, reason="no TensorRT-RTX: make tensorrt-wheels")
def test_it_builds_without_a_gpu_and_reports_that_it_does_not_run(tiny_bundle, tmp_path):
    path = os.pathsep.join(map(str, (ROOT / "benchmarks", ROOT, RTX)))
    environment = os.environ | {"PYTHONPATH": path, "POLYGRAPHY_USE_TENSORRT_RTX": "1"}
    command = [sys.executable, "-c", CODE, str(tiny_bundle), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert (tmp_path / "scorer.engine").stat().st_size > 10_000
    if shutil.which("nvidia-smi") is None:
        assert not report["runs"]
    assert report["runs"] or not report["error"].startswith(("TypeError", "AttributeError", "NameError", "ImportError"))
