"""An honest uncertainty for every prediction, in one pass.

>>> from onsphere import HCMRegressor
>>> model = HCMRegressor(random_state=0).fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
>>> model.assess([[1.5]]).value.shape
(1,)
"""

from typing import TYPE_CHECKING, Any

from onsphere.assessment import Assessment
from onsphere.calibration import Calibration
from onsphere.decision import FalseAlarm, Quantile, Risk, Tolerance
from onsphere.embeddings import Duplicate, Lift, OneHot, Polar, Torus
from onsphere.errors import (
    InvalidInputError,
    InvalidTypeError,
    MissingExtraError,
    NotCalibratedError,
    NotFittedError,
    OnsphereError,
    OnsphereWarning,
)
from onsphere.estimators import HCMClassifier, HCMRegressor
from onsphere.frozen import FrozenHead
from onsphere.geometry import SphericalOutput
from onsphere.persistence import load

if TYPE_CHECKING:
    from onsphere.comparison import Comparison, compare

__version__ = "0.1.0"

__all__ = [
    "Assessment",
    "Calibration",
    "Comparison",
    "Duplicate",
    "FalseAlarm",
    "FrozenHead",
    "HCMClassifier",
    "HCMRegressor",
    "InvalidInputError",
    "InvalidTypeError",
    "Lift",
    "MissingExtraError",
    "NotCalibratedError",
    "NotFittedError",
    "OneHot",
    "OnsphereError",
    "OnsphereWarning",
    "Polar",
    "Quantile",
    "Risk",
    "SphericalOutput",
    "Tolerance",
    "Torus",
    "__version__",
    "compare",
    "load",
]


def __getattr__(name: str) -> Any:
    # All the methods to compare with take a while to import, and few need them.
    if name in ("Comparison", "compare"):
        from onsphere import comparison

        return getattr(comparison, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
