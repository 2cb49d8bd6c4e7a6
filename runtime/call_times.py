"""Seconds spent in calls, per graph, until somebody takes them."""

from __future__ import annotations


class CallTimes:
    """Implements `engine.Backend.take_seconds` for a backend that adds its calls."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, graph: str, seconds: float) -> None:
        self._seconds[graph] = self._seconds.get(graph, 0.0) + seconds

    def take_seconds(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken
