"""Trace a module to an ONNX model in memory, with the exact tensor names and dimension names of docs/design.md.

Weights stay the module's own tensors: nothing is copied until `weights` writes them. Simplifies nothing (`simplify`).
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor, nn

OPSET = 18  # torch's own operator library: no version conversion; TensorRT 10.3 reads up to 20
EXAMPLE_SIZES = {"N": 2, "T": 3, "C": 5, "M": 7}  # distinct and > 1: torch.export neither merges nor specialises them


@dataclass(frozen=True)
class Port:
    """One graph input: name, dtype and dimensions (a number, or a symbol of EXAMPLE_SIZES)."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]

    def example(self) -> Tensor:
        return torch.zeros([EXAMPLE_SIZES.get(d, d) for d in self.shape], dtype=self.dtype)  # type: ignore[arg-type]

    def dynamic(self) -> dict[int, object]:
        return {i: torch.export.Dim.DYNAMIC for i, d in enumerate(self.shape) if isinstance(d, str)}


Ports = Sequence["Port | list[Port]"]


def trace(module: nn.Module, inputs: Ports, output_names: Sequence[str]) -> ir.Model:
    """Trace `module` with one positional argument per entry of `inputs` (a list of ports is a list argument).

    Args:
        module: In evaluation mode; its outputs, flattened, are named by `output_names`.

    Returns:
        An IR model of opset OPSET whose inputs, outputs and symbolic dimensions carry the given names.
    """
    ports = [port for entry in inputs for port in (entry if isinstance(entry, list) else [entry])]
    examples = tuple([p.example() for p in e] if isinstance(e, list) else e.example() for e in inputs)
    dynamic = tuple([p.dynamic() for p in e] if isinstance(e, list) else e.dynamic() for e in inputs)
    with torch.no_grad(), _quiet():
        program = torch.export.export(module.eval(), examples, dynamic_shapes=dynamic, strict=False)
        model = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, optimize=False, verify=False, verbose=False
        ).model
    symbols = {}
    for value, port in zip(model.graph.inputs, ports, strict=True):
        assert value.shape is not None
        value.name = port.name
        for found, wanted in zip(value.shape, port.shape, strict=True):
            if isinstance(wanted, str) and isinstance(found, ir.SymbolicDim):
                symbols[str(found.value)] = wanted
            elif found != wanted:
                raise AssertionError(f"`{port.name}` was specialised to {value.shape}, expected {port.shape}")
    for value, name in zip(model.graph.outputs, output_names, strict=True):
        value.name = name
    _rename_dimensions(model, symbols)
    return model


def _rename_dimensions(model: ir.Model, symbols: dict[str, str]) -> None:
    """Replace torch's symbols (s27, or 3*s27) in every known shape."""
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, symbols)) + r")\b")
    values = [*model.graph.inputs, *(output for node in model.graph for output in node.outputs)]
    for value in values:
        if value.shape is not None:
            dims = [
                d if isinstance(d, int) else pattern.sub(lambda m: symbols[m[0]], str(d.value)) for d in value.shape
            ]
            value.shape = ir.Shape(dims)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on things a user cannot act on (missing torchvision, deprecations inside torch)."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.onnx._internal.exporter._registration")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
