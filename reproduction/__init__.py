"""The experiments of the paper, each one flat module, and the figures it published.

>>> from reproduction import EXPERIMENTS
>>> "uci" in EXPERIMENTS
True
"""

from reproduction.experiment import EXPERIMENTS, PRESETS, Claim, Result, reproduce

__all__ = ["EXPERIMENTS", "PRESETS", "Claim", "Result", "reproduce"]
