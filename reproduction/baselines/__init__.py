"""Methods that only the paper's tables need: each in one file with the paper it comes from."""

from reproduction.baselines.bayesian import BayesianNetwork
from reproduction.baselines.huq import HUQ, huq
from reproduction.baselines.nuq import NUQ, nuq
from reproduction.baselines.odin import ODIN, odin
from reproduction.baselines.rau import RAU, rau_loss
from reproduction.baselines.subspace import FDBD, NCI, ViM, fdbd, nci, vim

__all__ = [
    "FDBD",
    "HUQ",
    "NCI",
    "NUQ",
    "ODIN",
    "RAU",
    "BayesianNetwork",
    "ViM",
    "fdbd",
    "huq",
    "nci",
    "nuq",
    "odin",
    "rau_loss",
    "vim",
]
