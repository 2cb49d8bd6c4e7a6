"""One picture of a comparison: acceptance length per prompt set, and the share of rounds that accept each slot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError


def draw(results: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw the results of `evaluate`; the format follows the file's ending (png, svg, pdf).

    Raises:
        UserError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("a picture needs matplotlib", hint='pip install "lilicorr[train]"') from None
    checkpoints = list(dict.fromkeys(r["checkpoint"] for r in results))
    sets = list(dict.fromkeys(r["prompts"] for r in results))
    labels = _short_names(checkpoints)
    figure = Figure(figsize=(5 + 1.2 * len(sets), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    bars, lines = figure.subplots(1, 2)
    width = 0.8 / len(checkpoints)
    for index, checkpoint in enumerate(checkpoints):
        own = {r["prompts"]: r for r in results if r["checkpoint"] == checkpoint}
        lengths = [own[name]["acceptance_length"] or 0.0 for name in sets]
        shift = (index - (len(checkpoints) - 1) / 2) * width
        drawn = bars.bar([i + shift for i in range(len(sets))], lengths, width, label=labels[checkpoint])
        bars.bar_label(drawn, fmt="%.2f", fontsize=7)
        slots = max(len(r["slot_acceptance"]) for r in own.values())
        shares = [
            [r["slot_acceptance"][s] for r in own.values() if s < len(r["slot_acceptance"])] for s in range(slots)
        ]
        lines.plot(range(1, slots + 1), [sum(s) / len(s) for s in shares], marker="o", label=labels[checkpoint])
    bars.set_xticks(range(len(sets)), sets, rotation=30 if len(sets) > 3 else 0)
    bars.set_ylabel("acceptance length (tokens per round)")
    bars.set_ylim(bottom=1)
    lines.set_xlabel("slot")
    lines.set_ylabel("share of rounds accepting it, mean of sets")
    lines.set_ylim(0, 1)
    lines.legend(fontsize=8)
    figure.suptitle(f"temperature {results[0]['temperature']:g}")
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(f"the picture cannot be written to `{file}`: {error}", hint="--picture FILE.png") from None


def _short_names(checkpoints: Sequence[str]) -> dict[str, str]:
    """The shortest tails of the paths that tell them apart."""
    parts = {checkpoint: Path(checkpoint).parts for checkpoint in checkpoints}
    for count in range(1, max(map(len, parts.values())) + 1):
        names = {checkpoint: "/".join(p[-count:]) for checkpoint, p in parts.items()}
        if len(set(names.values())) == len(checkpoints):
            break
    return names
