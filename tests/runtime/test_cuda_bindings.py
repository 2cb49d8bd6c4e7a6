"""Every call `cuda_device` makes, against the real cuda-bindings: it exists and takes these arguments, structures these fields.

Without a driver the real functions convert their arguments and then find no library, which is how the types are checked; what they
would have done, the simulated driver does.
"""

from __future__ import annotations

import ctypes
import re
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lilicorr.runtime import cuda_device
from lilicorr.runtime.cuda_device import INSTALL, CudaDevice, open_device
from lilicorr.runtime.device_memory import DeviceMemory
from lilicorr.runtime.errors import UserError
from tests.runtime.simulated_cuda import SimulatedDriver

real = pytest.importorskip("cuda.bindings.driver", reason=f"no cuda-bindings: {INSTALL}")


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


class CheckedDriver:
    """`cuda.bindings.driver` whose functions are checked and then simulated."""

    def __init__(self) -> None:
        self.simulated, self.called = SimulatedDriver(), set[str]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(real, name)
        if not name.startswith("cu"):
            return value  # an enumeration or a structure: the real one
        declared = re.match(rf"{name}\((.*)\)", (value.__doc__ or "").strip())
        assert declared, f"no signature of {name}"
        parameters = [part for part in declared.group(1).split(", ") if part]

        def call(*given: Any) -> tuple[Any, ...]:
            assert len(given) == len(parameters), f"{name}{given}: declared {parameters}"
            self.called.add(name)
            takes(value, given)
            status, *results = getattr(self.simulated, name)(*map(plain, given))
            return (getattr(real.CUresult, status.name), *results)

        return call


def takes(function: Any, given: tuple[Any, ...]) -> None:
    """The real function accepts these arguments: it fails only for want of a driver."""
    typed = [None if isinstance(value, str | list) else value for value in given]  # simulated contexts, captured graphs
    with pytest.raises(RuntimeError, match=r"dlopen|found"):
        function(*typed)


def plain(value: Any) -> Any:
    """A real copy description with numbers for its handles."""
    if not isinstance(value, real.CUDA_MEMCPY3D):
        return value
    fields = {name: getattr(value, name) for name in dir(value) if re.match("(src|dst|Width|Height|Depth)", name)}
    kinds = {name: fields[name].value for name in ("srcMemoryType", "dstMemoryType")}
    return SimpleNamespace(**{k: int(v) for k, v in fields.items() if k not in kinds and "Array" not in k}, **kinds)


@pytest.mark.skipif(has_driver(), reason="with a driver the real functions would act on made-up addresses")
def test_every_call_is_one_that_the_bindings_take() -> None:
    driver = CheckedDriver()
    memory = DeviceMemory(CudaDevice(driver))
    source, target = memory.buffer((3, 4, 8), "float32"), memory.buffer((3, 9, 8), "float32")
    values = np.random.default_rng(0).normal(size=(3, 4, 8)).astype(np.float32)
    memory.upload(source, values)
    before = memory.device.mark()
    graph = memory.device.capture(partial(memory.copy, target[:, 5:], source))
    graph()
    after = memory.device.mark()
    (found,) = memory.download(target)
    np.testing.assert_array_equal(found[:, 5:], values)
    assert memory.device.seconds_between(before, after) > 0
    with pytest.raises(MemoryError):
        memory.buffer((1 << 30,), "float32")
    del graph, target
    memory.device.close()
    written = re.findall(r'"(cu[A-Z]\w+)"', Path(cuda_device.__file__).read_text(encoding="utf-8"))
    assert driver.called == set(written)


def test_missing_bindings_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UserError, match="cuda-bindings cannot be imported") as caught:
        open_device()
    assert caught.value.hint == INSTALL
