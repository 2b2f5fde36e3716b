"""A drift alarm without labels: `DriftMonitor` watches the uncertainty of new rows, and says which columns moved."""

from onsphere.monitor.drift import DriftMonitor, DriftUpdate
from onsphere.monitor.hints import Hint
from onsphere.monitor.reference import reference_of

__all__ = ["DriftMonitor", "DriftUpdate", "Hint", "reference_of"]
