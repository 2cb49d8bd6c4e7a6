"""Which weights a bundle's target gets as integers: those its folder already has, or ours by round-to-nearest. Reads no weight.

Pre-quantised formats: GPTQ, AWQ, and the "pack-quantized" one of compressed-tensors, each with one block for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lilicorr.export.headers import TensorHeader
from lilicorr.export.options import BLOCKS, INTEGER_WEIGHTS, BuildOptions
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Quantisation

OURS = "round-to-nearest"
PACKED = {"gptq": "qweight", "awq": "qweight", "compressed-tensors": "weight_packed"}
"""Pre-quantised format -> the tensor that says that a layer is quantised, of 32-bit words."""


@dataclass(frozen=True)
class Stored:
    """How the integers of a pre-quantised folder are packed."""

    source: str  # one of PACKED
    bits: int  # of a packed value, 4 or 8
    block: int
    symmetric: bool
    zero_shift: int = 0  # what must be added to stored zero points

    @property
    def quantisation(self) -> Quantisation:
        """What the graph holds. TensorRT reads zero points of 0 only, and a 4-bit value minus its zero point needs 5 bits."""
        return Quantisation(bits=4 if self.bits == 4 and self.symmetric else 8, block=self.block, source=self.source)


def stored_integers(config: Mapping[str, Any], where: str) -> Stored | None:
    """What `quantization_config` of a config.json says; None where there is none.

    Raises:
        UserError: a format that is not in PACKED, or a variant of one that cannot be carried over integer by integer.
    """
    settings = config.get("quantization_config")
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else settings
    if not isinstance(method, str) or method not in PACKED:
        raise UserError(
            f"`{where}` is quantised by {method!r}; the formats that can be read are {', '.join(PACKED)}",
            hint="take the unquantised model and --weights int4, or one in these formats",
        )
    stored = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}[method](settings, where)
    if stored.block not in BLOCKS:
        _refuse(where, method, f"group size {stored.block!r}, expected {', '.join(map(str, BLOCKS))}")
    if stored.bits != 4 and not (stored.bits == 8 and stored.symmetric and method != "awq"):
        zeros = "" if stored.symmetric else " with zero points"
        _refuse(where, method, f"{stored.bits!r} bits{zeros}, expected 4, or (not for awq) 8 symmetric ones")
    return stored


def chosen_quantisation(
    stored: Stored | None, headers: Mapping[str, TensorHeader], options: BuildOptions
) -> Quantisation | None:
    """The quantisation of a build; None keeps every weight a float.

    Args:
        stored: What the target's folder has.
        headers: Its tensors.

    Raises:
        UserError: integers asked of what is already quantised, or widths that the block does not divide.
    """
    if options.weights is None:
        return None if stored is None else stored.quantisation
    if stored is not None:
        raise UserError(
            f"the target's weights are integers already ({stored.source}, {stored.bits} bits, blocks of {stored.block}); "
            f"--weights {options.weights} would quantise them twice",
            hint="leave --weights out, or take the unquantised model",
        )
    _require_divisible(options, linear_widths(headers))
    return Quantisation(bits=INTEGER_WEIGHTS[options.weights], block=options.weights_block, source=OURS)


def linear_widths(headers: Mapping[str, TensorHeader]) -> dict[str, int]:
    """Name -> input width of every weight of the decoder layers that a product reads, from an unquantised folder."""
    return {
        name: header.shape[1]
        for name, header in headers.items()
        if ".layers." in name and name.endswith(".weight") and len(header.shape) == 2
    }


def count_values(stored: Stored | None, headers: Mapping[str, TensorHeader]) -> dict[str, int]:
    """Tensors of a folder that a quantised graph holds as integers, or not at all -> how many integers each becomes."""
    if stored is None:
        return {name: headers[name].numel for name in linear_widths(headers)}
    words = "." + PACKED[stored.source]
    layers = {name.removesuffix(words) for name in headers if name.endswith(words)}
    parts = {name for name in headers if name.rpartition(".")[0] in layers and not name.endswith(".bias")}
    return {name: headers[name].numel * 32 // stored.bits if name.endswith(words) else 0 for name in parts}


def _require_divisible(options: BuildOptions, widths: Mapping[str, int]) -> None:
    wrong = [name for name, width in widths.items() if width % options.weights_block]
    if not wrong:
        return
    fitting = [block for block in BLOCKS if all(width % block == 0 for width in widths.values())]
    others = f", as in {len(wrong) - 1} more" if len(wrong) > 1 else ""
    raise UserError(
        f"--weights {options.weights}: `{wrong[0]}` has an input width of {widths[wrong[0]]}, "
        f"which blocks of {options.weights_block} do not divide{others}",
        hint=f"--weights-block {fitting[-1]}" if fitting else "no block size fits this target: leave --weights out",
    )


def _gptq(settings: Mapping[str, Any], where: str) -> Stored:
    if settings.get("desc_act"):
        _refuse(where, "gptq", "desc_act: its blocks are not runs of neighbours, which no engine here reads")
    version = settings.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        _refuse(where, "gptq", f"checkpoint_format {version!r}, expected gptq or gptq_v2")
    symmetric, shift = bool(settings.get("sym")), int(version == "gptq")
    return Stored("gptq", settings.get("bits", 0), settings.get("group_size", 0), symmetric, shift)


def _awq(settings: Mapping[str, Any], where: str) -> Stored:
    if (version := str(settings.get("version", "gemm")).lower()) != "gemm":
        _refuse(where, "awq", f"version {version!r}, expected gemm")
    symmetric = not settings.get("zero_point")
    return Stored("awq", settings.get("bits", 0), settings.get("group_size", 0), symmetric)


def _compressed_tensors(settings: Mapping[str, Any], where: str) -> Stored:
    groups, kind = settings.get("config_groups"), settings.get("format")
    if kind != "pack-quantized" or not isinstance(groups, dict) or len(groups) != 1:
        found = f"format {kind!r} with {len(groups) if isinstance(groups, dict) else 'no'} config groups"
        _refuse(where, "compressed-tensors", f"{found}, expected pack-quantized with one")
    group = next(iter(groups.values()))
    weights = group.get("weights") or {}
    if group.get("input_activations") or weights.get("type") != "int" or weights.get("strategy") != "group":
        _refuse(where, "compressed-tensors", "expected integer weights with a scale per group, and float activations")
    if weights.get("actorder"):
        _refuse(
            where, "compressed-tensors", "actorder: its groups are not runs of neighbours, which no engine here reads"
        )
    symmetric = bool(weights.get("symmetric"))
    return Stored("compressed-tensors", weights.get("num_bits", 0), weights.get("group_size", 0), symmetric)


def _refuse(where: str, method: str, problem: str) -> NoReturn:
    raise UserError(
        f"`{where}`: this {method} checkpoint cannot be exported: {problem}",
        hint="take the unquantised model and --weights int4, or a checkpoint without this",
    )
