"""Input shapes against the profiles of an engine, before the call: TensorRT's own refusal quotes neither tensor nor range.

Plain tuples; chooses the profile a call runs under, and knows no engine object.
"""

from __future__ import annotations

from collections.abc import Mapping

from lilicorr.runtime.engine_set import Engine, Profile, Range
from lilicorr.runtime.errors import EXIT_ENGINE, UserError

Shape = tuple[int, ...]


def profile_for(component: str, engine: Engine, shapes: Mapping[str, Shape], rebuild: str) -> int:
    """Index of the profile that allows `shapes` and is tuned nearest to them.

    Args:
        shapes: Every input with a dynamic dimension -> shape of this call.
        rebuild: The command that builds the engines again, for the hint.

    Raises:
        UserError: exit code 4: no profile allows them; quotes tensor, given and allowed of every profile.
        ValueError: an input is missing or unknown: a defect of the caller.
    """
    names = set(engine.profiles[0].shapes)
    if set(shapes) != names:
        raise ValueError(f"{component}: shapes given for {sorted(shapes)}, the engine needs {sorted(names)}")
    problems = [_problems(profile, shapes) for profile in engine.profiles]
    fitting = [index for index, found in enumerate(problems) if not found]
    if not fitting:
        lines = "\n  ".join(line for found in problems for line in found)
        raise UserError(
            f"`{engine.file}` cannot run these shapes:\n  {lines}",
            hint=f"lilicorr-export build … --max-context N --max-batch N, then {rebuild}",
            exit_code=EXIT_ENGINE,
        )
    return min(fitting, key=lambda index: _distance(engine.profiles[index], shapes))


def _problems(profile: Profile, shapes: Mapping[str, Shape]) -> list[str]:
    return [
        f"profile `{profile.name}`: `{name}` is {_text(shape)}, allowed {_text(allowed.min)} to {_text(allowed.max)}"
        for name, shape in shapes.items()
        if not _inside(shape, allowed := profile.shapes[name])
    ]


def _inside(shape: Shape, allowed: Range) -> bool:
    return len(shape) == len(allowed.min) and all(
        low <= size <= high for size, low, high in zip(shape, allowed.min, allowed.max, strict=True)
    )


def _distance(profile: Profile, shapes: Mapping[str, Shape]) -> float:
    """How far the call is from what the profile is tuned for: the sum of size ratios, 0 for an exact match."""
    ratios = (
        max(size, best) / max(1, min(size, best)) - 1
        for name, shape in shapes.items()
        for size, best in zip(shape, profile.shapes[name].opt, strict=True)
    )
    return sum(ratios)


def _text(shape: Shape) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
