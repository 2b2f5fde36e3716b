"""The models a user fits, and the base that other methods derive from."""

from onsphere.models.base import CalibratedModel
from onsphere.models.classifier import ClassificationMixin, ClassPrediction, HCMClassifier
from onsphere.models.frozen import FrozenHead
from onsphere.models.regression_base import RegressionMixin, RegressionPrediction
from onsphere.models.regressor import HCMRegressor

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
