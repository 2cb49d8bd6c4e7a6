"""Run a bundle: `load(bundle)` gives a Session with `generate`, `generate_batch` and `stream`. No torch, no transformers.

Importing this package is light; numpy and onnxruntime come with the first `load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lilicorr.runtime.session import Chunk, Result, Session, load

__all__ = ["Chunk", "Result", "Session", "load"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from lilicorr.runtime import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
