"""An uncertainty for every prediction of any regressor."""

from onsphere.estimators.classifier import HCMClassifier
from onsphere.estimators.regressor import HCMRegressor

__all__ = ["HCMClassifier", "HCMRegressor"]
