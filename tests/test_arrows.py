"""Import directions between the folders (docs/design.md, "Arrows"), read from the source, so lazy imports count too."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "onnx", "onnxscript", "onnxruntime", "safetensors", "gguf", "tensorrt"}
# folder -> the packages of ours, and the third-party packages, it may import anywhere in its source
OURS = {
    "train": {"train", "runtime"},
    "export": {"export", "train", "runtime", "plugins_trt"},
    "runtime": {"runtime", "plugins_trt"},
    "plugins_trt": {"plugins_trt"},
}
RUNTIME_THIRD_PARTY = {"numpy", "click", "tokenizers", "jinja2"}
# module of the runtime -> the package that only it may import: backends, and the report of what is installed
ONLY_IN = {"ort.py": "onnxruntime", "doctor.py": "onnxruntime", "cuda_device.py": "cuda"}


def modules(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path, *, everywhere=True):
    """Dotted names imported by the file; `everywhere` includes those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else top_level(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "lilicorr":
                yield from (f"lilicorr.{alias.name}" for alias in node.names)
            else:
                yield node.module


def top_level(tree):
    """The nodes that run at import: everything outside functions and `if TYPE_CHECKING`."""
    for node in tree.body if isinstance(tree, ast.Module) else ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from top_level(node)


@pytest.mark.parametrize("folder", OURS)
def test_folders_import_only_downwards(folder):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder)
        for name in imports(path)
        if name.split(".")[0] == "lilicorr" and name.split(".")[1] not in OURS[folder]
    ]
    assert wrong == []


def test_runtime_needs_only_its_own_few_packages():
    allowed = sys.stdlib_module_names | RUNTIME_THIRD_PARTY | {"lilicorr"}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("runtime")
        for name in imports(path)
        if name.split(".")[0] not in {*allowed, ONLY_IN.get(path.name)}
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["train", "export", "runtime"])
def test_command_modules_import_nothing_heavy_at_the_top(folder):
    names = {name.split(".")[0] for name in imports(ROOT / folder / "cli.py", everywhere=False)}
    assert names & HEAVY == set()


@pytest.mark.parametrize(
    "module", ["lilicorr.runtime", "lilicorr.runtime.cli", "lilicorr.train.cli", "lilicorr.export.cli"]
)
def test_importing_it_loads_nothing_heavy(module):
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_the_reader_of_imports_sees_lazy_ones(tmp_path):
    source = "import a.b\nfrom lilicorr import train\nif TYPE_CHECKING:\n    import c\ndef f():\n    from d import e\n"
    path = tmp_path / "m.py"
    path.write_text(source)
    assert sorted(imports(path)) == ["a.b", "c", "d", "lilicorr.train"]
    assert sorted(imports(path, everywhere=False)) == ["a.b", "lilicorr.train"]
