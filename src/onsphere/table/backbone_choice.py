"""Models for tables: each backbone by name, after the step that makes numbers of any column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from onsphere._internal.validation import check_option
from onsphere.models import HCMClassifier, HCMRegressor, choice
from onsphere.models.choice import choose_backbone, make_candidate
from onsphere.table.columns import Column
from onsphere.table.encoder import TableEncoder

__all__ = ["BACKBONES", "choose_table_backbone", "make_table_model"]

BACKBONES = choice.CANDIDATES


def make_table_model(
    backbone: str,
    columns: Sequence[Column],
    *,
    classes: bool,
    frames: str | Collection[str] = "all",
    calibration: Any = None,
    domain: Any = None,
    random_state: int | None = 0,
) -> HCMClassifier | HCMRegressor:
    """Return a model for tables with these columns, not yet fitted.

    Examples
    --------
    >>> make_table_model("kernel", [Column("size", "number")], classes=False).estimator.steps[0]
    ('columns', TableEncoder(columns=(Column(name='size', kind='number', ...),)))
    """
    check_option("make_table_model", "backbone", backbone, list(choice.CANDIDATES))
    pipeline = make_candidate(backbone, [("columns", TableEncoder(tuple(columns)))])
    options: Any = {"frames": frames, "calibration": calibration, "random_state": random_state}
    return HCMClassifier(pipeline, **options) if classes else HCMRegressor(pipeline, domain=domain, **options)


def choose_table_backbone(
    X: Any,
    y: Any,
    columns: Sequence[Column],
    *,
    classes: bool,
    frames: str | Collection[str] = "all",
    coverage: float,
    random_state: int,
    on_progress: Callable[[str], None],
) -> tuple[str, list[dict[str, Any]]]:
    """Return the backbone that `choose_backbone` chooses for a table with these columns, and the figures of all."""

    def make(name: str) -> Any:
        return make_table_model(name, columns, classes=classes, frames=frames, random_state=random_state)

    options: Any = {"coverage": coverage, "random_state": random_state, "on_progress": on_progress}
    return choose_backbone(X, y, make, has_classes=classes, **options)
