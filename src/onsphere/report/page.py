"""The page itself: all sections in one file, written at once or not at all."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from onsphere._internal.atomic_files import check_writable, write_atomically
from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidInputError, InvalidTypeError
from onsphere.report.extremes import extremes
from onsphere.report.features import MOST_FEATURES, read_features
from onsphere.report.figures import figures
from onsphere.report.groups import coverage_by_group, least_trusted, ranked_features
from onsphere.report.judged import NAMELESS, OWNER, Judged, judge
from onsphere.report.parts import Section, Table, clean, download
from onsphere.report.shift import shift
from onsphere.report.summary import about, headline, limits, outputs, tiles, verdicts

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
) -> Path:
    """Write one HTML file that says what a model does and how far to trust it; it needs no network and no script.

    Parameters
    ----------
    model : calibrated model of onsphere
        Of numbers, one or several, or of classes. Without a threshold, the tables of accepted and rejected rows are
        left out.
    X : DataFrame or array of shape (n, p)
        At least ten rows that the model has not seen, neither in `fit` nor in `calibrate`.
    y : their targets or labels
    path : str or path
        Where to write. A file that is there is replaced only when the new one is complete.
    title, target_name : str, optional
        By default made of the name of y, if it has one.
    coverage : float in (0, 1), default 0.9
        Of the intervals or sets.
    groups : list of column names, optional
        By whose values coverage is shown. By default the true class and the columns where it differs most.
    X_shifted : DataFrame or array of shape (m, p), optional
        A second table, without targets, to compare with X.
    shifted_name : str, optional
        What to call it.
    row_names : sequence of n names, optional
        By default the index of the frame, or 0, 1, ….
    facts : mapping of str to str, optional
        More lines for the table of how the report was made.

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
    try:
        import pandas
    except ImportError:
        raise missing_extra_error(OWNER, "pandas", "report") from None
    goal = _checked_path(path)
    rows = judge(model, X, y, coverage=coverage, target_name=target_name, row_names=row_names, pandas=pandas)
    names = _checked_groups(groups, rows)
    known = _checked_facts(facts)
    features = read_features(rows.frame)
    ranked = ranked_features(rows, features)
    # The columns by which trust differs most come first; those that no group was made of come last.
    told_first = [each.grouping.name for each in ranked]
    told_first += [name for name in map(str, rows.frame.columns) if name not in set(told_first)]
    sections = [
        figures(rows),
        least_trusted(rows, ranked),
        extremes(rows, told_first),
        coverage_by_group(rows, ranked, names),
    ]
    if X_shifted is not None:
        name = "the second table" if shifted_name is None else clean(shifted_name)
        sections.append(shift(rows, model, X_shifted, name, pandas))
    if title is None:
        title = "How far to trust this model" if rows.target_name == NAMELESS else f"Predicting {rows.target_name}"
    page = {
        "title": clean(title, longest=200),
        "headline": headline(rows),
        "tiles": tiles(rows),
        "about": about(rows, features),
        "verdicts": verdicts(rows),
        "outputs": outputs(rows),
        "sections": [*sections, _how_made(model, rows, known), limits(rows)],
    }
    text = _rendered(page)
    with write_atomically(goal) as part:
        part.write_bytes(text.encode("utf-8", errors="replace"))
    return goal


def _checked_path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InvalidTypeError(f"The 'path' parameter of {OWNER} must be a str or a path. Got {path!r} instead.")
    goal = Path(path)
    check_writable(goal)
    return goal


def _checked_groups(groups: Any, rows: Judged) -> list[str] | None:
    if groups is None:
        return None
    if isinstance(groups, str) or not isinstance(groups, Sequence):
        raise InvalidTypeError(f"The 'groups' parameter of {OWNER} must be a list of column names. Got {groups!r}.")
    names, known = [str(name) for name in groups], [str(name) for name in rows.frame.columns]
    missing = [name for name in names if name not in known]
    if missing:
        raise InvalidInputError(
            f"Expected groups that are columns of X. Got {', '.join(missing)}. Choose among {', '.join(known[:20])}"
            f"{' …' if len(known) > 20 else ''}."
        )
    return names


def _checked_facts(facts: Any) -> dict[str, str]:
    if facts is None:
        return {}
    if not isinstance(facts, Mapping):
        raise InvalidTypeError(
            f"The 'facts' parameter of {OWNER} must be a mapping of names to words. Got {facts!r}. "
            "Pass for example {'file': 'wafers.csv'}."
        )
    return {str(name): str(value) for name, value in facts.items()}


def _how_made(model: Any, rows: Judged, facts: dict[str, str]) -> Section:
    rule = getattr(model, "_rule", None)
    backbone = type(model.estimator_).__name__
    if hasattr(model.estimator_, "steps"):
        backbone = " → ".join(type(step).__name__ for _, step in model.estimator_.steps)
    lines = {
        "Model": type(model).__name__,
        "Backbone": backbone,
        "Rows of this report": f"{len(rows) + rows.n_left_out:,}",
        "Calibrated on": f"{rows.n_calibration:,} rows",
        "Accepts": "every row; no threshold is set" if rule is None else f"{rule}",
        "Versions": ", ".join(
            [f"{name} {version(name)}" for name in ("onsphere", "scikit-learn", "numpy")]
            + [f"Python {platform.python_version()}"]
        ),
    }
    lines |= facts
    if rows.frame.shape[1] > MOST_FEATURES:
        lines["Columns looked at"] = f"{MOST_FEATURES:,} of {rows.frame.shape[1]:,}, evenly spread"
    cells = [[clean(name), clean(value, longest=400)] for name, value in lines.items()]
    columns = {"what": list(lines), "value": list(lines.values())}
    table = Table(
        "Where the figures of this report come from.", ["", ""], cells, [False, False], download("made", columns)
    )
    return Section("made", "How it was made", [], [], [table])


def _rendered(page: dict[str, Any]) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise missing_extra_error(OWNER, "jinja2", "report") from None
    # All that is put into the page is escaped, except for the drawings, which are made of escaped text.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = files("onsphere.report").joinpath("page.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(page)
