"""A drift alarm without labels: `DriftMonitor` watches the uncertainty of new rows, and says which columns moved."""

from onsphere.monitor.drift import DriftMonitor, DriftUpdate
from onsphere.monitor.hints import Hint

__all__ = ["DriftMonitor", "DriftUpdate", "Hint"]
