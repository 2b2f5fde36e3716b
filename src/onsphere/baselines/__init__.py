"""Other people's methods to compare HCM with; each class names the paper it comes from.

Those that train a network (`DeepEnsemble`, `MCDropout`, …) have the methods of `HCMRegressor` and `HCMClassifier`.
Detectors judge a classifier that is already trained, from its features, its logits and the labels:

>>> import numpy as np
>>> from onsphere.baselines import KNN, Energy
>>> rng = np.random.default_rng(0)
>>> labels = np.arange(300) % 3
>>> features = np.eye(3)[labels] * 4 + rng.normal(size=(300, 3))
>>> logits = features @ rng.normal(size=(3, 3))
>>> [detector.fit(features, logits, labels).score(features, logits).shape for detector in (KNN(), Energy())]
[(300,), (300,)]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from onsphere._internal.validation import missing_extra_error
from onsphere.baselines.detector import Detector
from onsphere.baselines.distance import KNN, Mahalanobis, knn, mahalanobis
from onsphere.baselines.posthoc import LastLayer, PostHoc
from onsphere.baselines.softmax import MSP, Energy, Entropy, Gini, energy, entropy, gini, msp

if TYPE_CHECKING:
    from onsphere.baselines.dropout import MCDropout, MCDropoutClassifier
    from onsphere.baselines.ensemble import DeepEnsemble, EnsembleClassifier
    from onsphere.baselines.evidential import Evidential, EvidentialLoss
    from onsphere.baselines.likelihood import GaussianLoss, GaussianNLL, MixtureDensity, SoftmaxNetwork

__all__ = [
    "KNN",
    "MSP",
    "DeepEnsemble",
    "Detector",
    "Energy",
    "EnsembleClassifier",
    "Entropy",
    "Evidential",
    "EvidentialLoss",
    "GaussianLoss",
    "GaussianNLL",
    "Gini",
    "LastLayer",
    "MCDropout",
    "MCDropoutClassifier",
    "Mahalanobis",
    "MixtureDensity",
    "PostHoc",
    "SoftmaxNetwork",
    "energy",
    "entropy",
    "gini",
    "knn",
    "mahalanobis",
    "msp",
]

# The files that import torch, by the names in them; each is imported when one of its names is first used.
_NEEDS_TORCH = {
    "DeepEnsemble": "ensemble",
    "EnsembleClassifier": "ensemble",
    "Evidential": "evidential",
    "EvidentialLoss": "evidential",
    "GaussianLoss": "likelihood",
    "GaussianNLL": "likelihood",
    "MCDropout": "dropout",
    "MCDropoutClassifier": "dropout",
    "MixtureDensity": "likelihood",
    "SoftmaxNetwork": "likelihood",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch as torch
    except ImportError:
        raise missing_extra_error(name, "torch", "torch") from None
    return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
