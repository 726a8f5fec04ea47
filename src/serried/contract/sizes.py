"""How much there is of something, as people read it."""

from __future__ import annotations


def spell(size: int) -> str:
    """`41.2 MB`: decimal units, as disks are sold."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
