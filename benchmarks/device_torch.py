"""Whether torch can compute on a device here; for the scripts that say why they were skipped and end well."""

from __future__ import annotations


def why_not(device: str) -> str | None:
    """Why torch cannot compute on `device`; None where it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if device == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    return None
