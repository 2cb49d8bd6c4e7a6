"""One training process, or several started by `accelerate launch`: each computes its share of a step, gradients are summed.

The sum equals the gradient of one process with the same global step up to rounding. accelerate is imported only when there are
several.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Processes:
    """`rank` of `count`; `device` is this process's."""

    def __init__(self) -> None:
        self._state: Any = None
        self.rank, self.count = 0, int(os.environ.get("WORLD_SIZE", "1"))
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.count > 1:
            from accelerate import PartialState

            self._state = PartialState(cpu=not torch.cuda.is_available())
            self.rank, self.device = self._state.process_index, self._state.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by the sum over all processes; in one message."""
        if self.count == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
        torch.distributed.all_reduce(flat)
        for parameter, grad in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            parameter.grad = grad.view_as(parameter).clone()

    def sum_values(self, values: dict[str, float]) -> dict[str, float]:
        """Sums over all processes; the keys are the same everywhere."""
        if self.count == 1:
            return values
        total = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64)
        total = total if self.device.type == "cpu" else total.to(self.device)
        torch.distributed.all_reduce(total)
        return dict(zip(sorted(values), total.tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        """True everywhere when it is true anywhere."""
        return self.sum_values({"flag": float(flag)})["flag"] > 0

    def wait(self) -> None:
        """Until all processes are here."""
        if self._state is not None:
            self._state.wait_for_everyone()
