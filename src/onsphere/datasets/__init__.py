"""Readers of standard formats."""

from onsphere.datasets.uci import UCI_NAMES, load_uci

__all__ = ["UCI_NAMES", "load_uci"]
