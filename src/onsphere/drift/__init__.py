"""A drift alarm without labels: `DriftMonitor` watches the uncertainty of new rows, and compares their columns."""

from onsphere.drift.column_changes import ColumnChange
from onsphere.drift.monitor import DriftMonitor, DriftUpdate
from onsphere.drift.reference import make_reference

__all__ = ["ColumnChange", "DriftMonitor", "DriftUpdate", "make_reference"]
