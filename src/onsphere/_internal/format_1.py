"""Model files of version 0.1: where their classes are now, and which of their settings have other names."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

__all__ = ["rename_settings", "rename_types"]

_MODULES = {
    "onsphere.baselines.softmax_network": "onsphere.baselines.likelihood",
    "onsphere.calibration": "onsphere.calibration.calibration",
    "onsphere.embeddings.polar": "onsphere.sphere.embeddings",
    "onsphere.embeddings.torus": "onsphere.sphere.torus",
    "onsphere.embeddings.onehot": "onsphere.sphere.onehot",
    "onsphere.estimators.regressor": "onsphere.models.regressor",
    "onsphere.estimators.classifier": "onsphere.models.classifier",
    "onsphere.frozen.designs": "onsphere.models.frozen.designs",
    "onsphere.frozen.head": "onsphere.models.frozen.head",
    "onsphere.frozen.ridge": "onsphere.models.frozen.ridge",
    "onsphere.frozen.sample": "onsphere.models.frozen.sums",
    "onsphere.frozen.sums": "onsphere.models.frozen.sums",
    "onsphere.frozen.targets": "onsphere.models.frozen.targets",
    "onsphere.tabular.columns": "onsphere.table.columns",
    "onsphere.tabular.encoding": "onsphere.table.encoder",
}
_CLASSES = {"Quantile": "AcceptShare", "Risk": "MaxErrorRate"}


def rename_types(content: bytes) -> bytes:
    """Return the same skops file with the classes of onsphere under the names they have now."""
    renamed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(renamed, "w") as new:
        for part in old.infolist():
            data = old.read(part)
            if part.filename == "schema.json":
                data = json.dumps(json.loads(data, object_hook=_rename)).encode()
            new.writestr(part.filename, data)
    return renamed.getvalue()


def _rename(node: dict[str, Any]) -> dict[str, Any]:
    module = node.get("__module__")
    if isinstance(module, str) and module.startswith("onsphere."):
        name = node.get("__class__")
        node |= {"__module__": _MODULES.get(module, module), "__class__": _CLASSES.get(str(name), name)}
    return node


def rename_settings(model: Any) -> None:
    """Give a loaded model the names that its settings have now."""
    if "_measured_with" in vars(model):
        model._calibrated_with = vars(model).pop("_measured_with")
    for settings in (vars(model), vars(model).get("_calibrated_with", {})):
        if settings.get("uncertainty_score") == "uncertainty":
            settings["uncertainty_score"] = "distance"
    if vars(model).get("_rule") is not None and "q" in vars(model._rule):
        vars(model._rule)["share"] = vars(model._rule).pop("q")
