"""Arrays that are not computed but recorded: a function of arrays that is called with them becomes part of a graph.

`geometry`, `scores`, the embeddings and the frames are written for any library of the array API. A `GraphArray` has as
much of that API as they use, so the graph is made by the very functions that the models call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import EllipsisType
from typing import Any

import numpy as np

from onsphere.export.graph_builder import GraphBuilder

__all__ = ["ROWS", "GraphArray", "concat", "hide_infinite_rows", "hide_lost_rows"]

ROWS = -1  # in a shape: the number of rows

_FLOAT, _BOOL = np.dtype(np.float64), np.dtype(np.bool_)


def _operator(kind: str, dtype: Any = None) -> Callable[[GraphArray, Any], Any]:
    """Return the method for an operator with something on its right."""
    return lambda self, other: self.combine(kind, other, dtype)


def _right_operator(kind: str) -> Callable[[GraphArray, Any], GraphArray]:
    """Return the method for an operator with something other than a GraphArray on its left."""
    return lambda self, other: self.to_array(other).combine(kind, self)


class GraphArray:
    """A tensor of a graph, of shape (ROWS, ...) or (...).

    Examples
    --------
    >>> from onsphere.sphere import geometry
    >>> from onsphere.export.graph_builder import open_session
    >>> graph = GraphBuilder()
    >>> x = GraphArray(graph, graph.add_input("x", np.dtype(np.float64), 2), (ROWS, 2))
    >>> length = geometry.norm(x)
    >>> graph.add_output("length", length.name, length.dtype, [])
    >>> open_session(graph.build({}).SerializeToString()).run(None, {"x": np.array([[3.0, 4.0]])})
    [array([5.])]
    """

    __array_ufunc__ = None  # numpy leaves operations with arrays to us
    __hash__ = None  # type: ignore[assignment]
    device = None

    def __init__(self, graph: GraphBuilder, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] = _FLOAT) -> None:
        self.graph = graph
        self.name = name
        self.shape = shape
        self.dtype = dtype

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _Namespace

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def apply(
        self, kind: str, *others: Any, shape: tuple[int, ...] | None = None, dtype: Any = None, **attributes: Any
    ) -> GraphArray:
        """Add an operation on this and on others, arrays or constants; shape and type are those of this by default."""
        names = [self.name, *(self.to_array(other).name for other in others)]
        name = self.graph.add_node(kind, names, **attributes)
        return GraphArray(self.graph, name, self.shape if shape is None else shape, np.dtype(dtype or self.dtype))

    def to_array(self, value: Any) -> GraphArray:
        """Return a constant as an array of the same graph; Python's numbers become floats."""
        if isinstance(value, GraphArray):
            return value
        array = np.asarray(value)
        if isinstance(value, int | float):
            array = array.astype(_FLOAT)
        return GraphArray(self.graph, self.graph.add_constant(array), array.shape, array.dtype)

    def cast(self, dtype: Any) -> GraphArray:
        """Convert to another type."""
        from onnx.helper import np_dtype_to_tensor_dtype

        return self.apply("Cast", dtype=dtype, to=np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def combine(self, kind: str, other: Any, dtype: Any = None) -> GraphArray:
        """Add an operation on two tensors, entry by entry."""
        second = self.to_array(other)
        return self.apply(kind, second, shape=_broadcast(self.shape, second.shape), dtype=dtype)

    def reduce(self, kind: str, *, axis: int, keepdims: bool = False) -> GraphArray:
        """Add an operation that removes an axis (or leaves it with length 1)."""
        axis = axis % self.ndim
        left = (1,) if keepdims else ()
        shape = (*self.shape[:axis], *left, *self.shape[axis + 1 :])
        return self.apply(kind, np.array([axis]), shape=shape, keepdims=int(keepdims))

    def __getitem__(self, key: Any) -> GraphArray:
        items = list(key) if isinstance(key, tuple) else [key]
        if isinstance(items[0], EllipsisType):
            n_skipped = self.ndim - sum(item is not None for item in items[1:])
            items = [slice(None)] * n_skipped + items[1:]
        result, axis = self, 0
        for item in items:
            before, after = result.shape[:axis], result.shape[axis + 1 :]
            if item is None:
                result = result.apply("Unsqueeze", np.array([axis]), shape=(*before, 1, *result.shape[axis:]))
                axis += 1
            elif isinstance(item, slice):
                if item != slice(None):
                    start, stop, _ = item.indices(result.shape[axis])
                    ends = np.array([start]), np.array([stop]), np.array([axis])
                    result = result.apply("Slice", *ends, shape=(*before, stop - start, *after))
                axis += 1
            else:
                index = np.asarray(int(item) % result.shape[axis])
                result = result.apply("Gather", index, shape=(*before, *after), axis=axis)
        return result

    __add__, __radd__ = _operator("Add"), _right_operator("Add")
    __sub__, __rsub__ = _operator("Sub"), _right_operator("Sub")
    __mul__, __rmul__ = _operator("Mul"), _right_operator("Mul")
    __truediv__, __rtruediv__ = _operator("Div"), _right_operator("Div")
    __lt__, __le__ = _operator("Less", _BOOL), _operator("LessOrEqual", _BOOL)
    __ge__ = _operator("GreaterOrEqual", _BOOL)

    def __eq__(self, other: Any) -> Any:
        return self.combine("Equal", other, _BOOL)

    def __matmul__(self, other: Any) -> GraphArray:
        weights = self.to_array(other)
        return self.apply("MatMul", weights, shape=(*self.shape[:-1], weights.shape[-1]))

    def __abs__(self) -> GraphArray:
        return self.apply("Abs")


def concat(parts: list[GraphArray], axis: int = -1) -> GraphArray:
    """Join arrays along the last axis."""
    first, *others = parts
    width = sum(part.shape[-1] for part in parts)
    return first.apply("Concat", *others, shape=(*first.shape[:-1], width), axis=first.ndim + axis)


def hide_infinite_rows(x: GraphArray, results: GraphArray) -> GraphArray:
    """Replace results by NaN for rows of x with an infinite entry, which a model rejects and a graph cannot."""
    infinite = x.apply("IsInf", dtype=np.bool_).cast(np.float64).reduce("ReduceMax", axis=1, keepdims=True)
    return _Namespace.where(infinite == 1.0, np.nan, results)


def hide_lost_rows(table: GraphArray, results: GraphArray) -> GraphArray:
    """Replace results by NaN for rows for which a backbone predicted NaN: it had nothing to say about them."""
    lost = _Namespace.isnan(table).cast(np.float64).reduce("ReduceMax", axis=1, keepdims=results.ndim > 1)
    return _Namespace.where(lost == 1.0, np.nan, results)


class _Namespace:
    """The functions of the array API that `geometry`, `scores`, the embeddings and the frames call.

    What does not depend on the rows stays an array of numpy until it meets one of the graph.
    """

    finfo = staticmethod(np.finfo)
    concat = staticmethod(concat)
    abs = staticmethod(abs)
    sqrt = staticmethod(partial(GraphArray.apply, kind="Sqrt"))
    exp = staticmethod(partial(GraphArray.apply, kind="Exp"))
    log = staticmethod(partial(GraphArray.apply, kind="Log"))
    round = staticmethod(partial(GraphArray.apply, kind="Round"))
    isnan = staticmethod(partial(GraphArray.apply, kind="IsNaN", dtype=_BOOL))
    astype = staticmethod(GraphArray.cast)
    max = staticmethod(partial(GraphArray.reduce, kind="ReduceMax"))
    sum = staticmethod(partial(GraphArray.reduce, kind="ReduceSum"))
    mean = staticmethod(partial(GraphArray.reduce, kind="ReduceMean"))

    @staticmethod
    def asarray(values: Any, *, dtype: Any, device: None) -> Any:
        return np.asarray(values, dtype=dtype)

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Any:
        if isinstance(condition, np.ndarray):
            return np.where(condition, x, y)
        first, second = condition.to_array(x), condition.to_array(y)
        shape = _broadcast(condition.shape, _broadcast(first.shape, second.shape))
        return condition.apply("Where", first, second, shape=shape, dtype=first.dtype)

    @staticmethod
    def clip(x: GraphArray, smallest: float, largest: float | None) -> GraphArray:
        above = x.combine("Max", smallest)
        return above if largest is None else above.combine("Min", largest)

    @staticmethod
    def full_like(x: Any, value: float) -> Any:
        if isinstance(x, np.ndarray):
            return np.full_like(x, value)
        size = x.apply("Shape", shape=(x.ndim,), dtype=np.int64)
        return size.apply("ConstantOfShape", shape=x.shape, dtype=_FLOAT, value=np.array([value], dtype=_FLOAT))

    ones_like = staticmethod(partial(full_like, value=1.0))
    zeros_like = staticmethod(partial(full_like, value=0.0))

    @staticmethod
    def reshape(x: GraphArray, shape: tuple[int, ...]) -> GraphArray:
        return x.apply("Reshape", np.asarray(shape, dtype=np.int64), shape=shape)

    @staticmethod
    def atan2(y: GraphArray, x: GraphArray) -> GraphArray:
        # onnxruntime has the arc tangent only in float32. Turned back by that angle, the point lies within 1e-6 of the
        # axis, where the tangent and two terms of its series give the rest to the last digit.
        size = abs(x).combine("Max", abs(y))
        size = _Namespace.where(size == 0.0, 1.0, size)
        x, y = x / size, y / size
        ratio = (y / _Namespace.where(x == 0.0, 1e-300, x)).cast(np.float32)
        behind = _Namespace.where(y < 0.0, -np.pi, np.pi)
        rough = ratio.apply("Atan").cast(_FLOAT) + _Namespace.where(x < 0.0, behind, 0.0)
        cosine, sine = rough.apply("Cos"), rough.apply("Sin")
        along = x * cosine + y * sine
        tangent = (y * cosine - x * sine) / _Namespace.where(along == 0.0, 1.0, along)
        return rough + (tangent - tangent * tangent * tangent / 3.0)


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that two shapes broadcast to; ROWS is larger than 1."""
    n_axes = max(len(first), len(second))
    padded = [(1,) * (n_axes - len(shape)) + shape for shape in (first, second)]
    return tuple(right if left == 1 else left for left, right in zip(*padded, strict=True))
