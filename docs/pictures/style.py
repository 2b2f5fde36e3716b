"""Draw every picture in one style, twice: for light and for dark pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["BOTH", "Look", "draw_both"]

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Look:
    """Colours of one variant."""

    name: str
    page: str
    ink: str
    faint: str
    data: str
    value: str
    band: str
    warn: str
    other: str


BOTH = (
    Look("light", "#ffffff", "#24292f", "#8c959f", "#8c959f", "#0072b2", "#56b4e9", "#d55e00", "#009e73"),
    Look("dark", "none", "#e6e9ee", "#7d8590", "#9aa4b0", "#6cc1f5", "#3d9bd6", "#ff8c42", "#3fc79a"),
)


def draw_both(name: str, draw: Callable[[Look], Figure], *, folder: Path = FOLDER) -> None:
    """Write NAME-light.png and NAME-dark.png."""
    for look in BOTH:
        settings = {
            "figure.facecolor": look.page,
            "axes.facecolor": "none",
            "savefig.facecolor": look.page,
            "text.color": look.ink,
            "axes.labelcolor": look.ink,
            "axes.edgecolor": look.faint,
            "xtick.color": look.faint,
            "ytick.color": look.faint,
            "xtick.labelcolor": look.ink,
            "ytick.labelcolor": look.ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 12,
            "font.size": 10.5,
            "legend.frameon": False,
        }
        with plt.rc_context(settings):
            figure = draw(look)
            figure.savefig(folder / f"{name}-{look.name}.png", dpi=150)
            plt.close(figure)
