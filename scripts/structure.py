"""Write docs/structure.md: the first sentence of every module's docstring. Run by `make docs`; a test keeps it current."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "structure.md"
FOLDERS = {
    "train": "PyTorch: drafter, head, objective, data, loop, checkpoints, the reference of decoding. Uses runtime.",
    "export": "From torch to a verified bundle of ONNX graphs. Uses train and runtime.",
    "runtime": "Reads and runs a bundle. Never imports torch.",
    "plugins_trt": "The walk as a TensorRT plugin. Uses nothing of ours.",
}


def first_sentence(path: Path) -> str:
    """The first sentence of the module's docstring, on one line.

    Raises:
        ValueError: the module has no docstring.
    """
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z`(])", paragraph)[0]


def render() -> str:
    """The page as it should be."""
    parts = ["# Every module in one sentence\n\nWritten by `make docs` from the modules' docstrings.\n"]
    for folder, purpose in FOLDERS.items():
        parts.append(f"\n## {folder}/\n\n{purpose}\n\n")
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts.append(f"- `{path.relative_to(ROOT).as_posix()}`: {first_sentence(path)}\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
