"""Keep the libraries' own progress bars and warnings out of our commands' stderr; errors still show."""

from __future__ import annotations

import logging
import warnings


def quiet_libraries() -> None:
    """Silence transformers' bars and advice and the exporter's notes; call before loading a model."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
