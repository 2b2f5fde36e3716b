"""Write the report of a model of `onsphere fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onsphere.cli.model_rows import LabelledRows, name_targets, restore_types
from onsphere.cli.next_commands import make_command_writer
from onsphere.report import write_report
from onsphere.table import Column

__all__ = ["write_report_page"]


def write_report_page(
    path: Path,
    model: Any,
    rows: LabelledRows,
    columns: list[Column],
    summary: dict[str, Any],
    *,
    data: Path,
    coverage: float,
    shifted: Any,
    shifted_path: Path | None,
    model_path: Path | None,
) -> None:
    """Write a page on how good a model is on these rows."""
    n_rows, clock = summary["n_rows"], summary.get("time")
    write_report(
        model,
        rows.X,
        name_targets(rows.y, summary["targets"]),
        path,
        title=f"{', '.join(summary['targets'])} from {Path(str(summary.get('data', 'a table'))).name}",
        target_name=", ".join(summary["targets"]),
        coverage=coverage,
        row_names=rows.names,
        share_seen=rows.share_seen,
        times=rows.times,
        time_name=None if clock is None else clock["name"],
        write_command=make_command_writer(summary, model=model_path, report=path),
        show_rows=lambda features: restore_types(features, columns),
        X_shifted=shifted,
        shifted_name=None if shifted_path is None else shifted_path.name,
        facts={
            "Measured on": data.name,
            "Task": f"{summary['task']} ({summary['why']})",
            "Backbone": summary["backbone"],
            "Rows": f"{n_rows['train']:,} trained on, {n_rows['calibration']:,} calibrated on",
            "Notes": "; ".join(summary["notes"]) or "none",
        },
    )
