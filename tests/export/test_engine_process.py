"""How the end of a worker process is told: result, refusal, kill, defect. Fake workers; no TensorRT."""

import json
import subprocess
import sys

import pytest

from lilicorr.export import engine_process
from lilicorr.export.engine_process import Built, run_job
from lilicorr.export.progress import Progress
from lilicorr.runtime.errors import UserError
from tests.export.test_trt_api import job_of

BUILT = {"done": {"layers": 3, "seconds": 1.5, "peak_bytes": 1024}}


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """Replaces the worker by a program; its job file is `sys.argv[1]`."""

    def replace(program):
        path = tmp_path / "worker.py"
        path.write_text("import json, os, signal, sys, time\n" + program)
        interpreter = tmp_path / "python"
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {path} "$3"\n')  # in place of -m MODULE JOB
        interpreter.chmod(0o755)
        monkeypatch.setattr(engine_process.sys, "executable", str(interpreter))

    return replace


def build(tmp_path, stream=None):
    return run_job(job_of(tmp_path), 5 << 30, Progress(stream))


def test_the_result_comes_back_and_what_it_says_is_passed_on(worker, tmp_path, capsys):
    worker(f"""
assert json.load(open(sys.argv[1]))["component"] == "scorer"
print(json.dumps({{"say": "parse"}}))
print(json.dumps({BUILT}))
""")
    assert build(tmp_path, sys.stderr) == Built(3, 1.5, 1024)
    assert "scorer: parse\n" in capsys.readouterr().err


def test_a_refusal_keeps_its_words_and_exit_code(worker, tmp_path):
    error = {"error": {"what": "TensorRT cannot parse it", "hint": "do this", "exit_code": 1}}
    worker(f"print('''{json.dumps(error)}'''); sys.exit(1)")
    with pytest.raises(UserError, match="TensorRT cannot parse it") as caught:
        build(tmp_path)
    assert (caught.value.hint, caught.value.exit_code) == ("do this", 1)


def test_a_killed_worker_is_said_to_lack_memory(worker, tmp_path):
    worker("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(UserError, match=r"the system killed the builder .* about 5 GiB"):
        build(tmp_path)


@pytest.mark.parametrize("end", ["raise ValueError('strange')", "print('strange', file=sys.stderr); os.abort()"])
def test_a_broken_worker_is_a_defect_that_shows_its_own_words(worker, tmp_path, end):
    worker(end)
    with pytest.raises(RuntimeError, match="strange"):
        build(tmp_path)


def test_an_interrupted_worker_is_asked_and_then_ended(worker, tmp_path, monkeypatch):
    worker(
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint(json.dumps({'say': 'deaf'}), flush=True)\ntime.sleep(60)"
    )
    monkeypatch.setattr(engine_process, "GRACE_S", 0.2)

    class Interrupting:
        def write(self, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Interrupting())


def test_building_engines_needs_no_torch():
    """On a device only onnx and TensorRT are installed beside the runtime."""
    modules = "lilicorr.export.engine, lilicorr.export.engine_worker"
    code = f"import sys, {modules}; print(*{{'torch', 'transformers', 'onnxscript'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
