"""Hyperspherical confidence for PyTorch: a head, a loss, and tools to put them on any network.

>>> import torch
>>> from onsphere.torch import HCMLoss, SphericalHead
>>> network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), SphericalHead(16, 2))
>>> loss = HCMLoss(network[-1])
>>> loss(network(torch.zeros(5, 8)), torch.zeros(5, 2)).shape
torch.Size([])
"""

from typing import TYPE_CHECKING, Any

from onsphere._internal.validation import missing_extra_error

try:
    import torch as torch
except ImportError:
    raise missing_extra_error("onsphere.torch", "torch", "torch") from None

from onsphere.torch.attach import Attached, AttachedMap, attach
from onsphere.torch.calibrate import CalibratedNetwork, calibrate
from onsphere.torch.dense import DenseHead
from onsphere.torch.features import feature_batches, features
from onsphere.torch.frozen_module import to_torch
from onsphere.torch.head import SphericalHead, SphericalOutput
from onsphere.torch.loss import HCMLoss
from onsphere.torch.mixing import MixingCollate, dirichlet_mix, mixup
from onsphere.torch.networks import MLP, UNet

if TYPE_CHECKING:
    from onsphere.torch.regressor import TorchRegressor

__all__ = [
    "MLP",
    "Attached",
    "AttachedMap",
    "CalibratedNetwork",
    "DenseHead",
    "HCMLoss",
    "MixingCollate",
    "SphericalHead",
    "SphericalOutput",
    "TorchRegressor",
    "UNet",
    "attach",
    "calibrate",
    "dirichlet_mix",
    "feature_batches",
    "features",
    "mixup",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    # Only TorchRegressor needs skorch.
    if name == "TorchRegressor":
        from onsphere.torch.regressor import TorchRegressor

        return TorchRegressor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
