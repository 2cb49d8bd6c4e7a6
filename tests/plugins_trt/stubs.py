"""Libraries that stand for TensorRT's, so that its Python bindings import alone; nothing of TensorRT is in them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SYMBOLS = {
    "libnvinfer": (
        "createInferBuilder_INTERNAL",
        "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL",
        "getBuilderPluginRegistry",
    ),
    "libnvonnxparser": ("createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getNvOnnxParserVersion"),
    "libnvinfer_plugin": ("initLibNvInferPlugins",),
}
# The one function that does something: the registry of a real library, if LILICORR_TEST_REGISTRY names one.
REGISTRY = """
#include <dlfcn.h>
#include <stdlib.h>
void *getPluginRegistry(void)
{
    char const *path = getenv("LILICORR_TEST_REGISTRY");
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    return library ? ((void *(*)(void)) dlsym(library, "getPluginRegistry"))() : NULL;
}
"""


def write_stubs(folder: Path) -> Path:
    """Compile the libraries of TensorRT 10 and 11 into `folder`, for LD_LIBRARY_PATH; skips without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stub libraries: install gcc")
    for library, symbols in SYMBOLS.items():
        source = folder / f"{library}.c"
        functions = "".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in symbols)
        source.write_text(functions + (REGISTRY if library == "libnvinfer" else ""))
        for major in (10, 11):
            out = folder / f"{library}.so.{major}"
            subprocess.run([compiler, "-shared", "-fPIC", "-o", out, source, "-ldl"], check=True)
    return folder
