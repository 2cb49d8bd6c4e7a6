"""Which precision runs on which compute capability, with the reason when one does not. No TensorRT needed."""

from __future__ import annotations

import re

from lilicorr.export.options import ELEMENT_BYTES
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Quantisation

BOARDS = {
    "7.2": "Xavier",
    "7.5": "Turing",
    "8.6": "RTX 30",
    "8.7": "Orin",
    "8.9": "L4, RTX 40",
    "11.0": "Thor",
    "12.0": "RTX 50",
}
# precision -> the first capability whose tensor cores have it
FIRST = {"bf16": (8, 0), "fp8": (8, 9), "nvfp4": (10, 0)}
# TensorRT-RTX 1.7.1 on 7.5: "FP32 GEMM is not supported"
RTX_FIRST = {"fp32": (8, 0)}
# bits of weights -> the only block sizes that TensorRT's documentation names for them; TensorRT-RTX 1.7.1 also compiles 32
TENSORRT_BLOCKS = {4: (64, 128)}


def parse_capabilities(text: str) -> tuple[str, ...]:
    """("8.9", "12.0") from "8.9,12.0", without repeats, in ascending order.

    Raises:
        UserError: not a list of such numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not re.fullmatch(r"\d{1,2}\.\d", part)]
    if wrong:
        raise UserError(
            f"`{text}` is not a list of compute capabilities: found `{wrong[0]}`, expected numbers such as 8.9 or 12.0",
            hint="--compute-capability 8.9,12.0",
        )
    return tuple(sorted(set(parts), key=_number))


def require_precision(backend: str, asked: str, bundle: str, capabilities: tuple[str, ...]) -> None:
    """Refuse what a device lacks, then what the bundle is not: precision lives in the graph, no builder flag changes it.

    Args:
        asked: The precision the user wants, usually the bundle's own.
        bundle: The bundle's.

    Raises:
        UserError: names the precision, the device and what it would need.
    """
    first = max(FIRST.get(asked, (0, 0)), RTX_FIRST.get(asked, (0, 0)) if backend == "tensorrt-rtx" else (0, 0))
    for capability in capabilities:
        if _number(capability) < first:
            board = BOARDS.get(capability)
            raise UserError(
                f"{asked} does not run on compute capability {capability}{f' ({board})' if board else ''}: "
                f"{backend} needs {first[0]}.{first[1]} or newer for it",
                hint="lilicorr-export build … --precision fp16",
            )
    if asked not in ELEMENT_BYTES:
        raise UserError(
            f"{asked} engines are not made: graphs are fp32, fp16 or bf16",
            hint="lilicorr-export build … --precision fp16",
        )
    if asked != bundle:
        raise UserError(
            f"the bundle's graphs are {bundle}, {asked} was asked; an engine has the precision of its graph",
            hint=f"lilicorr-export build … --precision {asked}",
        )


def require_blocks(backend: str, quantisation: Quantisation | None) -> None:
    """Refuse integer weights whose blocks TensorRT does not read.

    Raises:
        UserError: names the block and those that can be had.
    """
    if quantisation is None or backend != "tensorrt":
        return
    allowed = TENSORRT_BLOCKS.get(quantisation.bits, (quantisation.block,))
    if quantisation.block not in allowed:
        raise UserError(
            f"the bundle's int{quantisation.bits} weights have blocks of {quantisation.block}, "
            f"TensorRT reads {' and '.join(map(str, allowed))}",
            hint=f"lilicorr-export build … --weights int{quantisation.bits} --weights-block {allowed[0]}",
        )


def _number(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
