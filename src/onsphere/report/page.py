"""Put all sections on one HTML page, and write the page completely or not at all."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from sklearn.pipeline import Pipeline

from onsphere._internal.atomic_files import check_writable, write_atomically
from onsphere._internal.validation import is_frame, missing_extra_error
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.report.classes import show_classes
from onsphere.report.drivers import find_drivers, show_drivers
from onsphere.report.elements import Section, make_table
from onsphere.report.extreme_rows import show_extreme_rows
from onsphere.report.figures import show_figures
from onsphere.report.formatting import format_percent, shorten
from onsphere.report.group_coverage import measure_group_coverage, show_group_coverage
from onsphere.report.measured_rows import MOST_FEATURES, OWNER, UNNAMED, MeasuredRows, measure_rows
from onsphere.report.next_steps import Findings, WriteCommand, show_next_steps
from onsphere.report.noise_novelty import show_noise_and_novelty
from onsphere.report.over_time import measure_over_time, show_over_time
from onsphere.report.row_groups import rank_columns, show_least_trusted
from onsphere.report.shift import show_shift
from onsphere.report.summary import summarize

__all__ = ["write_report"]


def write_report(
    model: Any,
    X: Any,
    y: Any,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    target_name: str | None = None,
    coverage: float = 0.9,
    groups: Sequence[str] | None = None,
    X_shifted: Any = None,
    shifted_name: str | None = None,
    row_names: Any = None,
    facts: Mapping[str, Any] | None = None,
    share_seen: float | None = None,
    times: Any = None,
    time_name: str | None = None,
    write_command: WriteCommand | None = None,
    show_rows: Callable[[Any], Any] | None = None,
) -> Path:
    """Write one HTML file on what a model does and how far to trust it; the page needs no network and no script.

    Parameters
    ----------
    model : calibrated model of onsphere
        A model of one or several numbers, or of classes. Without a threshold, the tables of accepted and rejected
        rows are left out.
    X : DataFrame or array of shape (n, p)
        At least ten rows that the model has not seen, neither in `fit` nor in `calibrate`.
    y : their targets or labels
    path : str or path
        Where to write. An existing file is replaced only when the new one is complete.
    title, target_name : str, optional
        By default taken from the name of y, if it has one.
    coverage : float in (0, 1), default 0.9
        The coverage of the intervals or sets.
    groups : list of column names, optional
        Show coverage by the values of these columns. By default, by the true class and the columns where it differs
        most.
    X_shifted : DataFrame or array of shape (m, p), optional
        A second table, without targets, to compare with X.
    shifted_name : str, optional
        The name of the second table.
    row_names : sequence of n names, optional
        By default the index of the frame, or 0, 1, ….
    facts : mapping of str to str, optional
        More lines for the table of how the report was made.
    share_seen : float in [0, 1], optional
        The share of the rows that the model was trained on, where it is known; by default found by comparing them.
        Where it is above 1 %, the page says so first, and calls no figure a promise.
    times : sequence of n numbers or dates, optional
        When each row was, for coverage and error over time; by default the first column of dates in X, if there is one.
    time_name : str, optional
        What the times are called.
    write_command : function of a str and a mapping, optional
        Writes the command for a step of "What to do next": called with "fit", "report", "update" or "predict" and its
        options, such as {"groups": "prediction"} or, for a larger table, {"rows": "more rows"}, it returns a line to
        paste, or None to leave the step out. By default each step has a line of Python.
    show_rows : function of a DataFrame, optional
        Returns rows of X or X_shifted as they are to be shown, for example with dates where the model takes seconds.

    Returns
    -------
    Path

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import ExtraTreesRegressor
    >>> from onsphere import HCMRegressor
    >>> from onsphere.report import write_report
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HCMRegressor(ExtraTreesRegressor(20, min_samples_leaf=2), random_state=0).fit(X[:200], y[:200])
    >>> model = model.calibrate(X[200:300], y[200:300])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(model, X[300:], y[300:], f"{folder}/report.html").name
    'report.html'
    """
    for package in ("pandas", "matplotlib", "jinja2"):
        try:
            import_module(package)
        except ImportError:
            raise missing_extra_error(OWNER, package, "report") from None
    from jinja2 import Environment, StrictUndefined

    file = _check_path(path)
    rows = measure_rows(
        model,
        X,
        y,
        coverage=coverage,
        target_name=target_name,
        row_names=row_names,
        share_seen=share_seen,
        times=times,
        time_name=time_name,
        show_rows=show_rows,
    )
    group_names, checked_facts = _check_groups(groups, rows), _check_facts(facts)
    ranked = rank_columns(rows)
    coverage_by_group = measure_group_coverage(rows, ranked, group_names)
    drivers, timeline = find_drivers(rows, model, as_array=not is_frame(X)), measure_over_time(rows)
    # The columns by which confidence differs most come first; those without groups come last.
    feature_names = list(dict.fromkeys([grouping.name for grouping in ranked] + [*map(str, rows.frame.columns)]))
    sections = [
        show_figures(rows),
        *([show_classes(rows)] if rows.is_class else []),
        *([] if timeline is None else [show_over_time(rows, timeline)]),
        show_drivers(rows, drivers),
        *([] if rows.assessment.novelty is None else [show_noise_and_novelty(rows)]),
        show_least_trusted(rows, ranked),
        show_extreme_rows(rows, feature_names),
        show_group_coverage(rows, coverage_by_group),
    ]
    if X_shifted is not None:
        name = "the second table" if shifted_name is None else shorten(shifted_name)
        sections.append(show_shift(rows, model, X_shifted, name, show_rows))
    findings = Findings(coverage_by_group.low, ranked, drivers, timeline)
    if title is None:
        title = "How far to trust this model" if rows.target_name == UNNAMED else f"Predicting {rows.target_name}"
    # Everything is escaped on the page, except for the pictures, whose text matplotlib has escaped.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = files("onsphere.report").joinpath("page.html").read_text(encoding="utf-8")
    text = environment.from_string(template).render(
        title=shorten(title, longest=200),
        bounds="sets" if rows.is_class else "intervals",
        coverage=format_percent(coverage),
        has_novelty=rows.assessment.novelty is not None,
        sections=[*sections, _describe_origin(model, rows, checked_facts)],
        next_steps=show_next_steps(rows, model, findings, write_command),
        **summarize(rows, low_groups=[str(group) for group in coverage_by_group.low]),
    )
    with write_atomically(file) as part:
        part.write_bytes(text.encode("utf-8", errors="replace"))
    return file


def _check_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"The 'path' parameter of {OWNER} must be a str or a path. Got {path!r} instead.")
    file = Path(path)
    check_writable(file)
    return file


def _check_groups(groups: Any, rows: MeasuredRows) -> list[str] | None:
    if groups is None:
        return None
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        raise InvalidTypeError(f"The 'groups' parameter of {OWNER} must be a list of column names. Got {groups!r}.")
    names, columns = [str(name) for name in groups], [str(name) for name in rows.frame.columns]
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise InvalidInputError(
            f"Expected groups that are columns of X. Got {', '.join(unknown)}. Choose among {', '.join(columns[:20])}"
            f"{' …' if len(columns) > 20 else ''}."
        )
    return names


def _check_facts(facts: Any) -> dict[str, str]:
    if facts is None:
        return {}
    if not isinstance(facts, Mapping):
        raise InvalidTypeError(
            f"The 'facts' parameter of {OWNER} must be a mapping of names to values. Got {facts!r}. "
            "Pass for example {'file': 'wafers.csv'}."
        )
    return {str(name): str(value) for name, value in facts.items()}


def _describe_rules(model: Any) -> str:
    rules = [str(rule) for rule in (model._rule, model._novelty_rule) if rule is not None]
    return " and ".join(rules) or "every row; no threshold is set"


def _describe_origin(model: Any, rows: MeasuredRows, facts: dict[str, str]) -> Section:
    backbone = model.estimator_
    steps = [step for _, step in backbone.steps] if isinstance(backbone, Pipeline) else [backbone]
    versions = [f"{name} {version(name)}" for name in ("onsphere", "scikit-learn", "numpy")]
    lines = {
        "Model": type(model).__name__,
        "Backbone": " → ".join(type(step).__name__ for step in steps),
        "Rows of this report": f"{len(rows) + rows.n_left_out:,}",
        "Calibrated on": f"{rows.n_calibration:,} rows",
        "Accepts": _describe_rules(model),
        "Versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
    }
    lines |= facts
    if rows.frame.shape[1] > MOST_FEATURES:
        lines["Columns looked at"] = f"{MOST_FEATURES:,} of {rows.frame.shape[1]:,}, evenly spread"
    columns = [("what", list(lines), shorten), ("value", list(lines.values()), partial(shorten, longest=400))]
    table = make_table("made", "Where the figures of this report come from.", columns)
    # The two columns need no header.
    return Section("made", "How it was made", [], tables=[table._replace(columns=[])])
