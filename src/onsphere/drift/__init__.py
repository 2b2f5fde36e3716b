"""A drift alarm without labels: `DriftMonitor` watches the uncertainty of new rows, and says which columns moved."""

from onsphere.drift.monitor import DriftMonitor, DriftUpdate
from onsphere.drift.moved_columns import Hint
from onsphere.drift.reference import reference_of

__all__ = ["DriftMonitor", "DriftUpdate", "Hint", "reference_of"]
