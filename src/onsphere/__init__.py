"""An honest uncertainty for every prediction, in one pass.

>>> from onsphere import HCMRegressor
>>> model = HCMRegressor(random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
>>> model.assess([[1.5]]).value.shape
(1,)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onsphere.assessment import Assessment
    from onsphere.calibration import Calibration
    from onsphere.comparison import Comparison, compare
    from onsphere.decision import AcceptShare, FalseAlarm, MaxErrorRate, MaxMeanError, Novelty, Tolerance
    from onsphere.drift import DriftMonitor
    from onsphere.errors import (
        InvalidInputError,
        InvalidTypeError,
        MissingExtraError,
        NotCalibratedError,
        NotFittedError,
        OnsphereError,
        OnsphereWarning,
    )
    from onsphere.export import export_onnx
    from onsphere.models import HCMClassifier, HCMRegressor
    from onsphere.models.frozen import FrozenHead
    from onsphere.models.selection import select
    from onsphere.persistence import load
    from onsphere.report import write_report
    from onsphere.sphere import Duplicate, Lift, OneHot, Polar, Torus
    from onsphere.sphere.geometry import SphericalOutput

__version__ = "0.2.0"

__all__ = [
    "AcceptShare",
    "Assessment",
    "Calibration",
    "Comparison",
    "DriftMonitor",
    "Duplicate",
    "FalseAlarm",
    "FrozenHead",
    "HCMClassifier",
    "HCMRegressor",
    "InvalidInputError",
    "InvalidTypeError",
    "Lift",
    "MaxErrorRate",
    "MaxMeanError",
    "MissingExtraError",
    "NotCalibratedError",
    "NotFittedError",
    "Novelty",
    "OneHot",
    "OnsphereError",
    "OnsphereWarning",
    "Polar",
    "SphericalOutput",
    "Tolerance",
    "Torus",
    "__version__",
    "compare",
    "export_onnx",
    "load",
    "select",
    "write_report",
]


# Where each name is. It is imported when it is first used, so that what needs little starts at once.
_ORIGINS = {
    **dict.fromkeys([name for name in __all__ if name.endswith(("Error", "Warning"))], "errors"),
    **dict.fromkeys(["AcceptShare", "FalseAlarm", "MaxErrorRate", "MaxMeanError", "Novelty", "Tolerance"], "decision"),
    **dict.fromkeys(["Comparison", "compare"], "comparison"),
    **dict.fromkeys(["Duplicate", "Lift", "OneHot", "Polar", "Torus"], "sphere"),
    **dict.fromkeys(["HCMClassifier", "HCMRegressor"], "models"),
    "Assessment": "assessment",
    "Calibration": "calibration",
    "DriftMonitor": "drift",
    "FrozenHead": "models.frozen",
    "SphericalOutput": "sphere.geometry",
    "export_onnx": "export",
    "load": "persistence",
    "select": "models.selection",
    "write_report": "report",
}
# Rooms that could be used after `import onsphere` alone.
_ROOMS = {"assessment", "calibration", "decision", "errors", "models", "persistence", "sphere"}


def __getattr__(name: str) -> Any:
    if name in _ORIGINS:
        value = getattr(import_module(f"onsphere.{_ORIGINS[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f"onsphere.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
