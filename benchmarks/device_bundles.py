"""The bundles that the device check makes engines of, one per form of VARIANTS, built at once: tracing takes one core each.

    python benchmarks/device_bundles.py --target TARGET --drafter DRAFTER --out build/device_check

Last line of stdout: one JSON object, form -> bundle folder. A form that cannot be built is missing from it; `failed` says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from device_steps import LIMITS, VARIANTS

BUILD = [sys.executable, "-c", "from lilicorr.export.cli import main; main()", "build"]
LIMIT_S = 150


@click.command()
@click.option("--target", type=click.Path(path_type=Path), required=True)
@click.option("--drafter", type=click.Path(path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(target: Path, drafter: Path, out: Path) -> None:
    click.echo(json.dumps(build_all(target, drafter, out, VARIANTS)))


def build_all(target: Path, drafter: Path, out: Path, variants: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Build `out/bundle-FORM` for every form, and report as the module says."""
    threads = str(max(1, (os.cpu_count() or 1) // len(variants)))
    processes = {}
    for name, options in variants.items():
        command = [*BUILD, "--target", target, "--drafter", drafter, *LIMITS, *options, "--out", out / f"bundle-{name}"]
        with (out / f"bundle-{name}.log").open("w") as log:
            processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": threads}
            )
    began = time.monotonic()
    report: dict[str, Any] = {"failed": {}}
    for name, process in processes.items():
        try:
            status = process.wait(max(1.0, LIMIT_S - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
            report["failed"][name] = f"stopped after {LIMIT_S} s"
            continue
        if status == 0:
            report[name] = str(out / f"bundle-{name}")
        else:
            lines = (out / f"bundle-{name}.log").read_text(encoding="utf-8").splitlines()
            errors = [line for line in lines if line.startswith("error:")]
            report["failed"][name] = (errors or lines or [f"exit status {status}"])[-1]
    return report | {"seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main()
