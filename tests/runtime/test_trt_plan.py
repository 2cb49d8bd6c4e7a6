"""Plans of calls: profile, shapes, addresses. A buffer that contradicts the manifest is a defect."""

from __future__ import annotations

from typing import Any

import pytest

from lilicorr.export.engine_profiles import profiles_for
from lilicorr.runtime.device_array import DeviceArray, dense_strides
from lilicorr.runtime.dtypes import ITEMSIZE
from lilicorr.runtime.engine_set import Engine
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.manifest import Tensor
from lilicorr.runtime.trt_plan import Plan, plan_call
from tests.runtime.fakes import VOCAB, tiny_manifest

MANIFEST = tiny_manifest()
SIZES = {"N": 2, "T": 5, "C": 64}
UNREAD = {("logits", 2 * 5 * VOCAB * 4): 1 << 30}


def arrays(tensors: tuple[Tensor, ...], sizes: dict[str, int]) -> dict[str, DeviceArray]:
    """One aligned array per tensor, each at an address of its own."""
    made = {}
    for number, tensor in enumerate(tensors):
        shape = tuple(sizes[size] if isinstance(size, str) else size for size in tensor.shape)
        address = (number + 1) << 20
        made[tensor.name] = DeviceArray(address, shape, dense_strides(shape, ITEMSIZE[tensor.dtype]), tensor.dtype)
    return made


def plan(sizes: dict[str, int] = SIZES, *, without: tuple[str, ...] = (), **changed: DeviceArray) -> Plan:
    component = MANIFEST.components["target"]
    inputs = arrays(component.inputs, sizes)
    inputs |= {name: array for name, array in changed.items() if name in inputs}
    outputs = {name: array for name, array in arrays(component.outputs, sizes).items() if name not in without}
    outputs |= {name: array for name, array in changed.items() if name not in inputs}
    engine = Engine("target.engine", "", 0, profiles_for(MANIFEST, "target"), {})
    inputs = {name: array for name, array in inputs.items() if name not in without}
    return plan_call(
        "target",
        component,
        engine,
        inputs,
        outputs,
        unread=lambda tensor, size: UNREAD[tensor.name, size],
        rebuild="REBUILD",
        alignment=256,
    )


def test_a_call_is_a_profile_shapes_and_addresses() -> None:
    found = plan(without=("logits",))
    assert (found.profile, found.recurs) == (1, True)  # verify
    assert found.shapes["tokens"] == (2, 5)
    assert found.shapes["v_cache_1"] == (2, 2, 64, 3)
    assert found.addresses["logits"] == 1 << 30
    outputs = MANIFEST.components["target"].outputs
    assert set(found.addresses) == set(found.shapes) | {tensor.name for tensor in outputs}


def test_a_prefill_chunk_does_not_recur() -> None:
    assert (plan({**SIZES, "T": 16}).profile, plan({**SIZES, "T": 16}).recurs) == (0, False)


def test_shapes_beyond_the_profiles_are_refused_with_the_command() -> None:
    with pytest.raises(UserError) as caught:
        plan({**SIZES, "T": 17})
    assert "profile `prefill`: `tokens` is (2, 17), allowed (1, 1) to (4, 16)" in caught.value.what
    assert caught.value.hint.endswith("then REBUILD")
    assert caught.value.exit_code == EXIT_ENGINE


def dense(shape: tuple[int, ...], dtype: str, address: int = 256) -> DeviceArray:
    return DeviceArray(address, shape, dense_strides(shape, ITEMSIZE[dtype]), dtype)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokens": dense((2, 5), "float32")}, r"`tokens` is float32 \(2, 5\), expected int32 \('N', 'T'\)"),
        ({"tokens": dense((2, 5, 1), "int32")}, r"`tokens` is int32 \(2, 5, 1\)"),
        ({"lengths": dense((3,), "int32")}, r"`lengths` is \(3,\), expected \('N',\) with {'N': 2"),
        ({"v_cache_0": dense((2, 2, 32, 3), "float32")}, r"`v_cache_0` is \(2, 2, 32, 3\), .* 'C': 64"),
        (
            {"k_cache_0": dense((2, 3, 64, 3), "float32")},
            r"`k_cache_0` is \(2, 3, 64, 3\), expected \('N', 2, 'C', 3\)",
        ),
        ({"next_ids": dense((2, 4), "int32")}, r"`next_ids` is \(2, 4\)"),
        ({"tokens": dense((2, 5), "int32", address=264)}, r"`tokens` at 0x108 .* aligned to 256 bytes"),
        ({"features": dense((2, 9, 4), "float32")[:, :5]}, r"`features` at .* not contiguous"),
        ({"other": dense((2,), "int32")}, r"\['other'\] missing or unknown"),
    ],
)
def test_a_wrong_buffer_is_a_defect(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**changed)


def test_a_missing_input_is_a_defect() -> None:
    with pytest.raises(ValueError, match=r"\['lengths'\] missing or unknown"):
        plan(without=("lengths",))
