"""Two CPU processes against one with the same global step: same losses, same weights up to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from lilicorr.train.fit import fit
from lilicorr.train.processes import Processes
from lilicorr.train.state import FILE
from tests.train.test_fit import _signals_restored, recipe  # noqa: F401 (fixtures)

LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]


@pytest.mark.slow
def test_two_processes_do_what_one_does(recipe, tmp_path):  # noqa: F811
    """Tolerance: the sum of two fp32 gradients in another order, through six AdamW steps: 1e-5 of a weight's scale."""
    options = {"steps": 6, "sequences_per_step": 3, "learning_rate": 1e-3, "warm_start": None}
    fit(recipe("one", **options))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    command = [*LAUNCH, "--main_process_port", "0", "-m", "lilicorr.train.cli", "fit", str(recipe("two", **options))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(tmp_path / run / FILE) for run in ("one", "two"))
    assert one.keys() == two.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    logs = [json.loads((tmp_path / run / "log.jsonl").read_text().splitlines()[-1]) for run in ("one", "two")]
    for name in ("loss", "drafter", "ce", "penalty", "grad_norm", "selected_prefix"):
        assert logs[1][name] == pytest.approx(logs[0][name], abs=2e-5), name
    assert len((tmp_path / "two" / "log.jsonl").read_text().splitlines()) == 1  # one process writes


def test_alone_nothing_is_summed():
    processes = Processes()
    parameter = torch.nn.Parameter(torch.ones(2))
    processes.sum_gradients([parameter])
    assert parameter.grad is None
    assert (processes.rank, processes.is_main) == (0, True)
    assert processes.sum_values({"a": 2.0}) == {"a": 2.0}
    assert processes.any(True)
    assert not processes.any(False)
