"""What models over a backbone share: which rows the backbone takes."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator, MetaEstimatorMixin

from onsphere._internal.validation import check_fitted, check_rows
from onsphere.models.backbone import input_tags

__all__ = ["BackboneModel"]


class BackboneModel(MetaEstimatorMixin, BaseEstimator):
    """A model whose `estimator` is the backbone, and `estimator_` the fitted one."""

    estimator: Any
    estimator_: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.input_tags.sparse = input_tags(self.estimator)
        tags.target_tags.required = True
        return tags

    def _rows(self, X: Any, *, fitting: bool = False) -> Any:
        if not fitting:
            check_fitted(self, "estimator_")
        allow_nan, accept_sparse = input_tags(self.estimator)
        return check_rows(self, X, fitting=fitting, allow_nan=allow_nan, accept_sparse=accept_sparse)
