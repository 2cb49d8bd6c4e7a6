"""Native attention in TensorRT: what can run it, and what its parser made of our nodes, read back from the parsed network.

TensorRT drops inputs in silence that it does not know (ONNX Attention's `nonpad_kv_seqlen`, a `kv_lengths` in the place another
version expects it), and attention without its lengths gives other numbers without an error.
"""

from __future__ import annotations

import re
from typing import Any

from lilicorr.runtime.contract import NATIVE, TWO_PART
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Manifest

# The first with lengths. NVIDIA's operator documents show them as TRT_Attention's eighth input and, later, as its sixth; which
# release moved them is not known here, so `network_problems` looks at what was parsed.
FIRST = (11, 1)
HINT = f"lilicorr-export build … --attention {TWO_PART}"
# Fused kernels of TensorRT-RTX 1.7.1 in half precision: all multiples of 8 that were tried from 16 to 256 (23 of them for SM89 and
# fp16, 11 for SM86, SM120 and bf16); not 8, 100, 264, 272 or 576. fp32 has none, and is decomposed.
WIDTHS = range(16, 257, 8)
ATTENTION_INPUTS = 5  # query, keys, values, mask, lengths


def require_native(manifest: Manifest, backend: str, version: str) -> None:
    """Refuse native attention where TensorRT lacks it; a bundle with two-part attention always passes.

    Raises:
        UserError: names the version, or the graph and its head width, and what it would need.
    """
    if manifest.attention != NATIVE:
        return
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if backend == "tensorrt" and found < FIRST:
        raise UserError(f"native attention needs TensorRT {FIRST[0]}.{FIRST[1]} or newer, here is {version}", hint=HINT)
    for name, cache in (("target", manifest.target.cache), ("drafter", manifest.drafter.cache)):
        if manifest.precision != "fp32" and cache.head_dim not in WIDTHS:
            raise UserError(
                f"native attention has no {manifest.precision} kernel for the {name}'s head width {cache.head_dim}, "
                f"expected a multiple of {WIDTHS.step} from {WIDTHS.start} to {WIDTHS.stop - 1}",
                hint=HINT,
            )


def network_problems(trt: Any, network: Any) -> list[str]:
    """Inputs that no layer reads, and attention layers without mask or lengths, of any parsed network; one line each."""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    read, problems = set[str](), list[str]()
    for layer in layers:
        inputs = [tensor.name for i in range(layer.num_inputs) if (tensor := layer.get_input(i)) is not None]
        read.update(inputs)
        # versions without attention have no such member
        if layer.type == getattr(trt.LayerType, "ATTENTION_INPUT", None) and len(inputs) != ATTENTION_INPUTS:
            problems.append(f"`{layer.name}` reads {', '.join(inputs)}: its mask or its lengths are missing")
    names = [network.get_input(i).name for i in range(network.num_inputs)]
    return problems + [f"the input `{name}` is ignored" for name in names if name not in read]
