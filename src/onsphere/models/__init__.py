"""An uncertainty for every prediction of any regressor."""

from onsphere.models.classifier import HCMClassifier
from onsphere.models.regressor import HCMRegressor

__all__ = ["HCMClassifier", "HCMRegressor"]
