"""The same model on files larger than memory: one callable from Arrow to Arrow, on all cores or on a Ray cluster."""

from onsphere.scale.assessor import Assessor
from onsphere.scale.dataset import assess_dataset

__all__ = ["Assessor", "assess_dataset"]
