"""Compare HCM with other methods on one table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split

from onsphere.comparison import Comparison, compare
from onsphere.models import HCMClassifier, HCMRegressor, choice
from onsphere.table.encoder import TableEncoder
from onsphere.table.prepare import prepare_table

__all__ = ["compare_table"]


def compare_table(
    frame: Any,
    targets: Sequence[str],
    *,
    task: str = "auto",
    shifted: Any = None,
    coverage: float = 0.9,
    ignore: Sequence[str] = (),
    random_state: int = 0,
) -> Comparison:
    """Fit HCM over every backbone, and other methods, on the same rows of a table; see `onsphere.compare`.

    The other methods are an ensemble, dropout, evidential and Gaussian networks where torch is installed, and for
    classes the scores of a plain classifier.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> result = compare_table(load_diabetes(as_frame=True).frame.head(150), ["target"])
    >>> "HCM extra-trees" in [row["method"] for row in result.rows]
    True
    """
    options: Any = {"keys": (), "ignore": ignore, "test_size": 0.2, "random_state": random_state}
    table = prepare_table(frame, targets, task=task, coverage=coverage, **options)
    X, X_test, y, y_test = train_test_split(
        table.X, table.y, test_size=0.2, random_state=random_state, stratify=table.y if table.classes else None
    )
    # Most of the methods take numbers only, so all are given the same ones.
    encoder = TableEncoder(tuple(table.columns))
    filler = SimpleImputer(strategy="median", keep_empty_features=True)
    rows = filler.fit_transform(encoder.fit_transform(X, np.equal.outer(y, np.unique(y)) if table.classes else y))
    test_rows = filler.transform(encoder.transform(X_test))
    moved = None if shifted is None else filler.transform(encoder.transform(shifted))
    methods = _list_classifiers() if table.classes else _list_regressors()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from inside the methods; what matters is in the table
        return compare(
            methods,
            rows,
            y,
            X_test=test_rows,
            y_test=y_test,
            X_shifted=moved,
            coverage=coverage,
            calibration_size=0.25,
            random_state=random_state,
            progress=False,
        )


def _make_hcm(kind: Any) -> dict[str, Any]:
    return {f"HCM {name}": kind(choice.make_candidate(name)) for name in choice.CANDIDATES}


def _list_regressors() -> dict[str, Any]:
    methods = _make_hcm(HCMRegressor)
    if find_spec("torch") and find_spec("skorch"):
        from onsphere import baselines
        from onsphere.torch import TorchRegressor

        plain, thinned = (TorchRegressor(hidden_sizes=(64, 64), max_epochs=60, dropout=share) for share in (0.0, 0.1))
        methods |= {
            "HCM network": HCMRegressor(plain),
            "ensemble of 5": baselines.DeepEnsemble(plain),
            "MC dropout": baselines.MCDropout(thinned),
            "evidential": baselines.Evidential(plain),
            "Gaussian": baselines.GaussianNLL(plain),
        }
    return methods


def _list_classifiers() -> dict[str, Any]:
    from onsphere import baselines

    return _make_hcm(HCMClassifier) | {
        "MSP": baselines.MSP(),
        "energy": baselines.Energy(),
        "KNN": baselines.KNN(),
    }
