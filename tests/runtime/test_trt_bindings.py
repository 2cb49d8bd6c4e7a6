"""Which TensorRT serves, and what is said when there is none."""

import re
import sys
from types import SimpleNamespace

import pytest

from lilicorr.runtime import trt_bindings
from lilicorr.runtime.errors import UserError


def test_a_missing_tensorrt_is_one_line_and_the_install_command(monkeypatch):
    monkeypatch.setitem(trt_bindings.MODULES, "tensorrt", ("no_such_module",))
    with pytest.raises(UserError, match="`tensorrt` cannot be imported here: it is not installed") as caught:
        trt_bindings.import_tensorrt("tensorrt")
    assert "\n" not in caught.value.what
    assert caught.value.hint == trt_bindings.install_command("tensorrt")


@pytest.mark.parametrize(
    ("backend", "machine", "jetson", "expected"),
    [
        ("tensorrt", "x86_64", False, 'pip install "lilicorr[tensorrt]"'),
        ("tensorrt", "aarch64", True, "apt install python3-libnvinfer"),
        ("tensorrt-rtx", "x86_64", False, 'pip install "lilicorr[tensorrt-rtx]"'),
    ],
)
def test_the_install_command_is_that_of_the_platform(backend, machine, jetson, expected):
    assert expected in trt_bindings.install_command(backend, machine=machine, jetson=jetson)


@pytest.mark.parametrize("version", ["8.6.1", "10.0.1", "12.0"])
def test_a_version_out_of_range_is_refused(version, monkeypatch):
    monkeypatch.setitem(sys.modules, "other_tensorrt", SimpleNamespace(__version__=version))
    monkeypatch.setitem(trt_bindings.MODULES, "tensorrt", ("other_tensorrt",))
    with pytest.raises(UserError, match=f"TensorRT {re.escape(version)} is not supported, expected 10.3 to 11.x"):
        trt_bindings.import_tensorrt("tensorrt")
