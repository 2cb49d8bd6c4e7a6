"""What only one of the TensorRT builders has, behind one name. The bindings themselves: `lilicorr.runtime.trt_bindings`.

Together with `engine_builder` and `timing_cache` this is every call we make into TensorRT to build; a test holds all of them
against the signatures of the real bindings.
"""

from __future__ import annotations

import re
from typing import Any

from lilicorr.runtime.errors import UserError


def compute_capability_member(trt: Any, capability: str) -> Any:
    """`trt.ComputeCapability.SM89` for "8.9"; ahead-of-time builds of TensorRT-RTX only.

    Raises:
        UserError: this version has no such member; lists those it has.
    """
    members = trt.ComputeCapability.__members__
    name = "SM" + capability.replace(".", "")
    if name not in members:
        known = [f"{m[2:-1]}.{m[-1]}" for m in members if re.fullmatch(r"SM\d+", m)]
        raise UserError(
            f"TensorRT-RTX {trt.__version__} cannot build for compute capability {capability}; it knows {', '.join(known)}",
            hint="choose one of them, or build on the device with --backend tensorrt",
        )
    return members[name]
