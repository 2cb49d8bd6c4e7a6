"""Plain text tables and byte counts for the human side of the commands."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a left-aligned table with a rule under `header`; columns are as wide as their widest cell."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *cells]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    title = "  ".join(name.ljust(width) for name, width in zip(header, widths, strict=True)).rstrip()
    return "\n".join([title, "  ".join("-" * width for width in widths), *lines])


def human_bytes(count: float) -> str:
    """Return `count` bytes with three significant digits, in powers of 1024 ("513 MiB")."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"
