"""The same model on files larger than memory: one callable from Arrow to Arrow, on all cores or on a Ray cluster."""

from onsphere.scale.assessor import Assessor
from onsphere.scale.dataset import assess_dataset
from onsphere.scale.fitting import calibrate_dataset, fit_head
from onsphere.scale.sketch import CalibrationSketch

__all__ = ["Assessor", "CalibrationSketch", "assess_dataset", "calibrate_dataset", "fit_head"]
