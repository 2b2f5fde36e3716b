"""The plain classifier that everything else is compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from torch import nn

from onsphere._internal.validation import Floats, check_same_length, check_sample_weight
from onsphere.baselines.network import OverNetwork, ask_network, fit_on, prepare_network
from onsphere.baselines.softmax import msp
from onsphere.models.classifier import ClassificationMixin, ClassPrediction
from onsphere.torch.features import features
from onsphere.torch.regressor import TorchRegressor

__all__ = ["SoftmaxLoss", "SoftmaxNetwork"]

_FEATURES_AT_ONCE = 4096


class SoftmaxLoss(nn.CrossEntropyLoss):
    """Cross-entropy of each row, shape (n,), for classes that are given as columns of shares.

    Examples
    --------
    >>> import torch
    >>> SoftmaxLoss()(torch.zeros(2, 4), torch.eye(4)[:2]).tolist() == [torch.tensor(4.0).log().item()] * 2
    True
    """

    standardizes = False

    def __init__(self) -> None:
        super().__init__(reduction="none")


class SoftmaxNetwork(ClassificationMixin, ClassifierMixin, OverNetwork):
    """A network with a softmax, trained by cross-entropy, with the uncertainty that comes for free.

    The probability of the predicted class says how sure the network is; one minus it is the uncertainty. Logits and
    features can be read off for the detectors of `onsphere.baselines`.

    Hendrycks and Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
    Networks", ICLR 2017.

    Cost: that of the plain network. Fails off the training rows, where the largest probability goes to 1 along almost
    every direction, and where training for too long makes it sure of its mistakes.

    Parameters
    ----------
    estimator : TorchRegressor, optional
        The network and its training; its loss must be "auto". By default TorchRegressor().
    calibration, random_state : as in `HCMClassifier`

    Attributes
    ----------
    classes_ : array of shape (C,)
    estimator_ : TorchRegressor
        Trained on one column per class.
    calibration_, threshold_, n_features_in_, feature_names_in_ : as in `HCMClassifier`

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onsphere.baselines.softmax_network import SoftmaxNetwork
    >>> from onsphere.torch import TorchRegressor
    >>> X, y = load_iris(return_X_y=True)
    >>> network = TorchRegressor(hidden_sizes=(20,), max_epochs=30, learning_rate=1e-2)
    >>> model = SoftmaxNetwork(network, random_state=0).fit(X[::2], y[::2])
    >>> bool(model.score(X[1::2], y[1::2]) > 0.9)
    True
    >>> model.logits(X).shape, model.features(X).shape
    ((150, 3), (150, 20))
    """

    def _network(self) -> TorchRegressor:
        """The network to train, after a check of the parameters."""
        return prepare_network(self, TorchRegressor(), loss=SoftmaxLoss())

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        network = self._network()
        rows = self._check_rows(X, fitting=True)
        labels = self._check_labels(y)
        check_same_length(rows, labels)
        weights = check_sample_weight(sample_weight, rows)
        self.estimator_ = fit_on(self, network, rows, self.embedding_.embed(labels).direction, weights)

    def logits(self, X: Any) -> Floats:
        """What the network says of each class before the softmax, shape (n, C)."""
        rows = self._check_rows(X)
        return ask_network(self.estimator_, rows).numpy()

    def features(self, X: Any) -> Floats:
        """What the last layer of the network is given, shape (n, p)."""
        rows = self._check_rows(X)
        batches = self.estimator_.standardize_rows(rows).split(_FEATURES_AT_ONCE)
        # The labels, which are not needed, go with the features.
        return features(self.estimator_.net_.module_, [(batch, batch) for batch in batches])[0].astype(np.float64)

    def _predict(self, X: Any) -> ClassPrediction:
        logits = self.logits(X)
        return ClassPrediction(logits.argmax(axis=1), softmax(logits, axis=1), msp(logits), {})
