"""The torch round and the short training run, tiny and on the CPU: that they run, and that shares add up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script, *options, **environment):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, options)]
    settings = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_round_is_timed_stage_by_stage():
    report = run("device_round.py", "--shape", "tiny", "--context", 20, "--repeats", 2, "--device", "cpu")
    times = report["eager"]
    whole = times["draft_ms"] + times["head_ms"] + times["verify_ms"]
    assert times["head_share_of_round"] == pytest.approx(times["head_ms"] / whole)
    assert 0 < times["head_share_of_round"] < times["head_share_of_draft"] < 1


def test_without_a_gpu_the_round_is_skipped():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert "sees no GPU" in run("device_round.py")["skipped"]


def test_the_target_named_in_the_environment_is_taken(tiny_target, tmp_path):
    assert run("device_pair.py", "--out", tmp_path, TARGET=str(tiny_target))["target"] == str(tiny_target)


@pytest.mark.slow
def test_a_training_run_lowers_the_loss(tiny_target, tmp_path):
    sizes = ("--prompts", 12, "--steps", 60, "--sequences", 2, "--anchors", 8)
    report = run("device_train.py", "--target", tiny_target, "--out", tmp_path / "train", *sizes)
    assert report["losses"][-1] < report["losses"][0]
    assert report["tokens_per_step"] == 2 * 8 * 5
