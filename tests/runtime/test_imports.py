"""What an import may pull in: a device has no torch, and `--help` has no time."""

from __future__ import annotations

import subprocess
import sys

import pytest

NEVER = {"torch", "transformers", "onnx", "safetensors"}
HEAVY = NEVER | {"onnxruntime", "numpy", "tokenizers", "jinja2"}


def loaded_by(code: str) -> set[str]:
    code += "\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "code",
    [
        "import lilicorr.runtime",
        "import lilicorr.runtime.cli",
        "import lilicorr.runtime.cli as c\nfor n in c.main.commands.values(): n.get_help(__import__('click').Context(n))",
    ],
)
def test_light_imports(code: str) -> None:
    assert not loaded_by(code) & HEAVY


def test_no_module_needs_the_training_stack() -> None:
    code = (
        "import importlib, pkgutil, lilicorr.runtime as r\n"
        "for m in pkgutil.iter_modules(r.__path__): importlib.import_module('lilicorr.runtime.' + m.name)\n"
    )
    loaded = loaded_by(code)
    assert "numpy" in loaded
    assert not loaded & (NEVER | {"onnxruntime"})
