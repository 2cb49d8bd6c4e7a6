"""Runs the steps of `device_steps` one after another and records each in OUT/device_check.jsonl; see device_check.sh.

Imports the standard library alone: nothing else need be installed. A step's result is the last line of its standard output, when
that is JSON; `{"skipped": reason}` is a step that found out by itself that it cannot run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

from device_steps import NVCC, PACKAGES, ROOT, Step, steps

TOTAL_S = 870  # under 15 minutes, whatever the steps take
REFERENCE = re.compile(r"\{([\w-]+)\.(\w+)\}")  # "{STEP.KEY}"
COMMANDS = {"lilicorr-train": "train", "lilicorr-export": "export", "lilicorr-run": "runtime"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    record = out / "device_check.jsonl"
    record.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": python_path(out)}
    no_gpu, began = why_no_gpu(), time.monotonic()
    python = sys.executable if no_gpu else own_environment(out, environment)
    lines: dict[str, dict[str, Any]] = {}
    for step in steps(out):
        left = TOTAL_S - (time.monotonic() - began)
        lacking = unmet(step, lines)
        if step.needs_gpu and no_gpu:
            line: dict[str, Any] = {"status": "skipped", "reason": no_gpu}
        elif lacking:
            line = {"status": "skipped", "reason": lacking}
        elif left < 10:
            line = {"status": "skipped", "reason": f"out of time: {TOTAL_S} s are over"}
        else:
            command = arguments(step, python, lines)
            line = (
                run(command, min(step.limit_s, left), environment, out / f"{step.name}.log") if command else nothing()
            )
        if step.name == "install-nvcc":
            link_cuda(out)
        lines[step.name] = line
        with record.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step.name, **line}) + "\n")
        print(f"{step.name}: {line['status']}" + (f": {line['reason']}" if "reason" in line else ""), flush=True)
    print(record)


def nothing() -> dict[str, Any]:
    return {"status": "ok", "seconds": 0.0, "result": {"installed": []}}


def why_no_gpu() -> str:
    """Empty where the CUDA driver has a GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver"
    count = ctypes.c_int()
    if status := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"the NVIDIA driver answers with error {status}"
    return "" if count.value else "no NVIDIA GPU"


def needed(step: Step) -> list[str]:
    """Names of the steps whose success `step` depends on."""
    return [match[1] for match in references(step)]


def references(step: Step) -> list[re.Match[str]]:
    return [match for word in step.command if (match := REFERENCE.fullmatch(word))]


def unmet(step: Step, lines: dict[str, dict[str, Any]]) -> str:
    """Why `step` cannot run after what earlier steps left; empty where it can."""
    for name in needed(step):
        if lines[name]["status"] != "ok":
            return f"the step {name} is {lines[name]['status']}"
    for match in references(step):
        made = lines[match[1]]["result"]
        if match[2] not in made:
            return made.get("failed", {}).get(match[2]) or f"the step {match[1]} made no {match[2]}"
    return ""


def arguments(step: Step, python: str, lines: dict[str, dict[str, Any]]) -> list[str]:
    """The command line of `step`; empty where it has nothing to install."""
    program, *rest = (
        str(lines[match[1]]["result"][match[2]]) if (match := REFERENCE.fullmatch(word)) else word
        for word in step.command
    )
    if program == "pip":
        wanted = missing(step.name, python)
        # an index that cannot be reached shall cost seconds
        return (
            [python, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "15", *wanted] if wanted else []
        )
    if program == "python":
        return [python, *rest]
    if program in COMMANDS:
        return [python, "-c", f"from lilicorr.{COMMANDS[program]}.cli import main; main()", *rest]
    if program == "make":
        return ["make", *rest, f"PYTHON={python}"]
    raise AssertionError(program)


def missing(name: str, python: str) -> list[str]:
    """Requirements of the install step `name` that `python` cannot import."""
    code = (
        "import importlib.util, sys\n"
        "def there(name):\n"
        "    try: return importlib.util.find_spec(name) is not None\n"
        "    except ModuleNotFoundError: return False\n"
        "print(*(name for name in sys.argv[1:] if not there(name)))"
    )
    asked = subprocess.run([python, "-c", code, *PACKAGES[name]], capture_output=True, text=True, check=True)
    wanted = [PACKAGES[name][module] for module in asked.stdout.split()]
    if name == "install-nvcc":
        wanted = [requirement for requirement in wanted if shutil.which("cmake") is None]
        if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
            wanted += NVCC
    return wanted


def run(command: list[str], limit_s: float, environment: dict[str, str], log: Path) -> dict[str, Any]:
    """Run one step to its end or limit; its whole process group ends with it."""
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit_s)
            late = False
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            late = True
        errors.write(output)
    result = last_json(output)
    line: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
    if late:
        line |= {"status": "timeout", "reason": f"stopped after {limit_s:.0f} s"}
    elif isinstance(result, dict) and "skipped" in result:
        return {"status": "skipped", **line, "reason": result["skipped"]}
    elif process.returncode != 0:
        line |= {"status": "failed", "reason": reason(log)}
    else:
        line |= {"status": "ok"}
    return {**line, "result": result} if result is not None else line


def last_json(output: str) -> Any:
    lines = output.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def reason(log: Path) -> str:
    """Our own `error: …` line of a failed step, else its last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    ours = [line for line in lines if re.match(r"(error|ERROR):", line)]
    return (ours or lines or ["no output"])[-1][:500]


def own_environment(out: Path, environment: dict[str, str]) -> str:
    """A virtual environment over the packages that are there; its interpreter, or this one where Python cannot make one."""
    folder = out / "venv"
    try:
        venv.create(folder, system_site_packages=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no virtual environment: {error}", file=sys.stderr)
        return sys.executable
    if sys.prefix != sys.base_prefix:  # itself a virtual environment: the new one would see the system's packages alone
        environment["PYTHONPATH"] += "".join(os.pathsep + path for path in sys.path if "site-packages" in path)
    compilers = ["/usr/local/cuda/bin", *(str(cuda / "bin") for cuda in packaged_cuda(out))]
    environment["PATH"] = os.pathsep.join([str(folder / "bin"), environment["PATH"], *compilers])
    return str(folder / "bin" / "python")


def packaged_cuda(out: Path) -> list[Path]:
    """Where the packages of NVCC put CUDA."""
    return [packages / "nvidia" / "cu13" for packages in (out / "venv" / "lib").glob("python*/site-packages")]


def link_cuda(out: Path) -> None:
    """The two names that linkers and CMake look for and the packages leave out."""
    for cuda in packaged_cuda(out):
        for link, target in ((cuda / "lib64", "lib"), (cuda / "lib" / "libcudart.so", "libcudart.so.13")):
            if link.parent.is_dir() and not link.is_symlink():
                link.symlink_to(target)


def python_path(out: Path) -> str:
    """PYTHONPATH under which the checkout is the package lilicorr, installed or not."""
    folder = out / "path"
    (folder / "lilicorr").mkdir(parents=True, exist_ok=True)
    for name in ("train", "export", "runtime", "plugins_trt"):
        link = folder / "lilicorr" / name
        if not link.is_symlink():
            link.symlink_to(ROOT / name)
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    described = folder / f"lilicorr-{version[1] if version else 0}.dist-info"
    described.mkdir(exist_ok=True)
    (described / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: lilicorr\nVersion: {version[1] if version else 0}\n"
    )
    return f"{folder}{os.pathsep}{ROOT}"


if __name__ == "__main__":
    main()
