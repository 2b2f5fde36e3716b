"""Methods that only the paper's tables need: each in one file with the paper it comes from."""

from reproduction.baselines.bayesian import BayesianNetwork
from reproduction.baselines.huq import HUQ, huq
from reproduction.baselines.nuq import NUQ, nuq
from reproduction.baselines.rau import RAU, rau_loss

__all__ = ["HUQ", "NUQ", "RAU", "BayesianNetwork", "huq", "nuq", "rau_loss"]
