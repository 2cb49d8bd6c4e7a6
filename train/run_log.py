"""The record of a run: `log.jsonl`, a line on stderr with the time left, and TensorBoard scalars when asked for."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError


class RunLog:
    """Args: the run's folder, its last step, the step it begins with, and whether to write TensorBoard files (`out/tensorboard`).

    Raises:
        UserError: TensorBoard is asked for and not installed.
    """

    def __init__(self, out: Path, steps: int, first: int, *, tensorboard: bool):
        self.out, self.steps, self.first = out, steps, first
        self.started = time.monotonic()
        self.writer: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError(
                    "`tensorboard` is true and the package is not installed", hint="pip install tensorboard"
                ) from None
            self.writer = SummaryWriter(str(out / "tensorboard"))

    def steps_per_second(self, step: int) -> float:
        return (step - self.first) / (time.monotonic() - self.started)

    def write(self, step: int, values: dict[str, float]) -> None:
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({name: round(value, 5) for name, value in (values | {"step": step}).items()}) + "\n")
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()
        shown = " ".join(f"{name} {value:.3f}" for name, value in values.items() if name != "lr")
        left = (self.steps - step) / self.steps_per_second(step)
        print(f"step {step}/{self.steps} {shown} | {left / 60:.0f} min left", file=sys.stderr, flush=True)
