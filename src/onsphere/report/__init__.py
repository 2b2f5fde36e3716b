"""Write one self-contained HTML page on a calibrated model: what it does, and how far to trust it."""

from onsphere.report.page import write_report

__all__ = ["write_report"]
