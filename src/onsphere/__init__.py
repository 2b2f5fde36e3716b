"""An honest uncertainty for every prediction, in one pass.

>>> from onsphere import HCMRegressor
>>> model = HCMRegressor(random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
>>> model.assess([[1.5]]).value.shape
(1,)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onsphere.assessment import Assessment
from onsphere.calibration import Calibration
from onsphere.decision import AcceptShare, FalseAlarm, MaxErrorRate, MaxMeanError, Novelty, Tolerance
from onsphere.errors import (
    InvalidInputError,
    InvalidTypeError,
    MissingExtraError,
    NotCalibratedError,
    NotFittedError,
    OnsphereError,
    OnsphereWarning,
)
from onsphere.models import HCMClassifier, HCMRegressor
from onsphere.models.frozen import FrozenHead
from onsphere.models.selection import select
from onsphere.persistence import load
from onsphere.sphere import Duplicate, Lift, OneHot, Polar, Torus
from onsphere.sphere.geometry import SphericalOutput

if TYPE_CHECKING:
    from onsphere.comparison import Comparison, compare
    from onsphere.drift import DriftMonitor
    from onsphere.export import export_onnx
    from onsphere.report import write_report

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


# Names whose rooms take a while to import, or need an extra; each is imported when it is first used.
_LAZY = {
    "Comparison": "onsphere.comparison",
    "DriftMonitor": "onsphere.drift",
    "compare": "onsphere.comparison",
    "export_onnx": "onsphere.export",
    "write_report": "onsphere.report",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
