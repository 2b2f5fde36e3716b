"""The models a user fits, and the base that other methods derive from."""

from onsphere.models.base import CalibratedModel
from onsphere.models.classifier import ClassificationMixin, ClassPrediction, HCMClassifier
from onsphere.models.frozen import FrozenHead
from onsphere.models.regressor import HCMRegressor, RegressionMixin, RegressionPrediction

__all__ = [
    "CalibratedModel",
    "ClassPrediction",
    "ClassificationMixin",
    "FrozenHead",
    "HCMClassifier",
    "HCMRegressor",
    "RegressionMixin",
    "RegressionPrediction",
]
