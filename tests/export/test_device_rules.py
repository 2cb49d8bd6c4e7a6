"""Precisions and devices: what runs where, and the reason when it does not."""

import pytest

from lilicorr.export.device_rules import parse_capabilities, require_blocks, require_precision
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Quantisation


def test_capabilities_are_sorted_numbers():
    assert parse_capabilities("12.0, 8.9,8.9") == ("8.9", "12.0")


@pytest.mark.parametrize("text", ["", "8.9,", "sm89", "89", "8,9", "8.9.0"])
def test_anything_else_is_refused(text):
    with pytest.raises(UserError, match="is not a list of compute capabilities"):
        parse_capabilities(text)


@pytest.mark.parametrize(
    ("backend", "precision", "capability"),
    [
        ("tensorrt", "fp16", "8.7"),
        ("tensorrt", "bf16", "8.7"),
        ("tensorrt", "fp32", "7.5"),
        ("tensorrt-rtx", "fp32", "8.6"),
    ],
)
def test_what_runs_is_allowed(backend, precision, capability):
    require_precision(backend, precision, precision, (capability,))


@pytest.mark.parametrize(
    ("backend", "asked", "capability", "reason"),
    [
        ("tensorrt", "fp8", "8.7", r"fp8 does not run on compute capability 8\.7 \(Orin\): tensorrt needs 8\.9"),
        ("tensorrt", "nvfp4", "8.7", r"nvfp4 does not run on compute capability 8\.7 \(Orin\): tensorrt needs 10\.0"),
        ("tensorrt", "nvfp4", "8.9", r"nvfp4 does not run on compute capability 8\.9"),
        ("tensorrt", "bf16", "7.2", r"bf16 does not run on compute capability 7\.2 \(Xavier\): tensorrt needs 8\.0"),
        (
            "tensorrt-rtx",
            "fp32",
            "7.5",
            r"fp32 does not run on compute capability 7\.5 \(Turing\): tensorrt-rtx needs 8\.0",
        ),
        ("tensorrt", "fp8", "8.9", "fp8 engines are not made: graphs are fp32, fp16 or bf16"),
        ("tensorrt", "int3", "8.9", "int3 engines are not made"),
        ("tensorrt", "bf16", "8.9", "the bundle's graphs are fp16, bf16 was asked"),
    ],
)
def test_what_does_not_is_refused_with_the_reason(backend, asked, capability, reason):
    with pytest.raises(UserError, match=reason):
        require_precision(backend, asked, "fp16" if asked == "bf16" else asked, (capability,))


def test_one_device_of_a_list_is_enough_to_refuse():
    with pytest.raises(UserError, match="7\\.5"):
        require_precision("tensorrt-rtx", "bf16", "bf16", ("7.5", "8.9"))


def test_blocks_of_integers_that_tensorrt_does_not_read():
    require_blocks("tensorrt", None)
    require_blocks("tensorrt", Quantisation(4, 64, "gptq"))
    require_blocks("tensorrt", Quantisation(8, 32, "gptq"))
    require_blocks("tensorrt-rtx", Quantisation(4, 32, "gptq"))
    with pytest.raises(UserError, match="int4 weights have blocks of 32, TensorRT reads 64 and 128") as caught:
        require_blocks("tensorrt", Quantisation(4, 32, "gptq"))
    assert "--weights-block 64" in caught.value.hint
