"""Write a safetensors file so that it is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lilicorr.runtime.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def write_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    what: str,
    *,
    metadata: dict[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> None:
    """Write to a temporary sibling, then rename; makes the folder.

    Args:
        what: The file in words, which begin the error message.
        before: Called when the new file is whole, before it takes the place of the old one.

    Raises:
        UserError: the folder cannot be written, or the disk is full.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    temporary = path.with_suffix(f".{os.getpid()}")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(whole, temporary, metadata=metadata)
        if before is not None:
            before()
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(
            f"{what} cannot be saved in `{path.parent}`: {error}; what was saved before is untouched",
            hint="make room there, or choose another folder",
        ) from None
