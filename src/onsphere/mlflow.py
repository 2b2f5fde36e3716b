"""Models in MLflow: log one with a run, load it as it was, or serve it as a pyfunc whose answers are assessments.

Needs mlflow or mlflow-skinny.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onsphere import persistence
from onsphere._internal.validation import missing_extra_error
from onsphere.errors import InvalidTypeError
from onsphere.models.base import CalibratedModel

__all__ = ["load_model", "log_model", "save_model"]

FLAVOR = "onsphere"
_FILE = "model.onsphere"


def save_model(
    model: Any,
    path: str | Path,
    *,
    mlflow_model: Any = None,
    signature: Any = None,
    input_example: Any = None,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a fitted model to a folder that MLflow reads.

    Parameters
    ----------
    model : fitted model of onsphere
    path : path
        A folder that does not exist yet.
    mlflow_model : mlflow.models.Model, optional
        The description to add the model to; `log_model` has MLflow make one.
    signature, input_example, metadata
        As in other flavors of MLflow. By default the signature says that the pyfunc has a parameter `coverage`.
    """
    models, pyfunc = _import_mlflow()
    from mlflow.models.utils import _save_example
    from mlflow.types import DataType, ParamSchema, ParamSpec
    from mlflow.utils.environment import _PythonEnv

    if not isinstance(model, CalibratedModel):
        raise InvalidTypeError(
            f"Expected a fitted model of onsphere to log. Got a {type(model).__name__}. Use MLflow's own flavor for "
            "it, or wrap it: HCMRegressor(FrozenEstimator(model)).fit(X, y)."
        )
    described = models.Model() if mlflow_model is None else mlflow_model
    coverage = ParamSchema([ParamSpec("coverage", DataType.double, 0.9)])
    described.signature = models.ModelSignature(params=coverage) if signature is None else signature
    described.metadata = metadata
    folder = Path(path)
    folder.mkdir(parents=True)
    if input_example is not None:
        _save_example(described, input_example, str(folder))
    manifest = persistence.read_manifest(model.save(folder / _FILE))
    needs = [f"onsphere=={manifest['onsphere']}", *(f"{name}=={number}" for name, number in _list_needs(manifest))]
    (folder / "requirements.txt").write_text("\n".join(needs) + "\n")
    _PythonEnv.current().to_yaml(str(folder / "python_env.yaml"))
    pyfunc.add_to_model(described, loader_module="onsphere.mlflow", data=_FILE, python_env="python_env.yaml")
    described.add_flavor(FLAVOR, onsphere_version=manifest["onsphere"], data=_FILE)
    described.save(str(folder / "MLmodel"))


def log_model(model: Any, name: str = "model", **options: Any) -> Any:
    """Log a fitted model with the active run, and return MLflow's description of it.

    The pyfunc (`mlflow.pyfunc.load_model`, `mlflow models serve`) answers with the columns of `Assessment.to_frame`;
    its parameter `coverage` sets that of the intervals or sets.

    Parameters
    ----------
    model : fitted model of onsphere
    name : str, default "model"
    **options
        As in `mlflow.models.Model.log`: registered_model_name, signature, input_example, metadata.
    """
    models, _ = _import_mlflow()
    import onsphere.mlflow

    return models.Model.log(artifact_path=None, name=name, flavor=onsphere.mlflow, model=model, **options)


def load_model(uri: str) -> Any:
    """Load a model that was logged, as it was: with assess, calibrate and all the rest."""
    _import_mlflow()
    from mlflow.tracking.artifact_utils import _download_artifact_from_uri

    return persistence.load(Path(_download_artifact_from_uri(artifact_uri=uri)) / _FILE)


class _Assessor:
    """The pyfunc: rows in, a table with an assessment of each out."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def predict(self, rows: Any, params: dict[str, Any] | None = None) -> Any:
        """Return the columns of an assessment as a DataFrame."""
        if hasattr(rows, "to_numpy") and not hasattr(self._model, "feature_names_in_"):
            rows = rows.to_numpy()  # a model that was fitted on an array; MLflow makes a table of it
        return self._model.assess(rows, **(params or {})).to_frame()


def _load_pyfunc(path: str) -> _Assessor:  # pyright: ignore[reportUnusedFunction]
    """Load the pyfunc; MLflow calls this by name."""
    return _Assessor(persistence.load(path))


def _list_needs(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    found = {name: number for name, number in manifest["libraries"].items() if name in ("scikit-learn", "skops")}
    return list((found | manifest["needs"]).items())


def _import_mlflow() -> tuple[Any, Any]:
    try:
        from mlflow import models, pyfunc
    except ImportError:
        raise missing_extra_error("onsphere.mlflow", "mlflow", "mlflow") from None
    return models, pyfunc
