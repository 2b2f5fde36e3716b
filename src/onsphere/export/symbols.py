"""Arrays that are not computed but written down: functions on arrays, called with them, become part of a graph.

`geometry`, `scores` and the embeddings are written for any library of the array API. A `Symbol` speaks as much of that
API as they ask for, so what the graph does is what they say, and need not be said again.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy as np

from onsphere.export.graph import Graph

__all__ = ["ROWS", "Symbol", "concat", "unary", "unsaid_of_infinite"]

ROWS = -1  # in a shape: as many as there are rows

_FLOAT, _BOOL = np.dtype(np.float64), np.dtype(np.bool_)


class Symbol:
    """A tensor of a graph, of shape (ROWS, ...) or (...).

    Examples
    --------
    >>> from onsphere.sphere import geometry
    >>> from onsphere.export.graph import session_of
    >>> graph = Graph()
    >>> x = Symbol(graph, graph.input("x", np.dtype(np.float64), 2), (ROWS, 2))
    >>> length = geometry.norm(x)
    >>> graph.output("length", length.name, length.dtype, [])
    >>> session_of(graph.model({}).SerializeToString()).run(None, {"x": np.array([[3.0, 4.0]])})
    [array([5.])]
    """

    __array_ufunc__ = None  # numpy leaves operations with arrays to us
    __hash__ = None  # type: ignore[assignment]
    device = None

    def __init__(self, graph: Graph, name: str, shape: tuple[int, ...], dtype: np.dtype[Any] = _FLOAT) -> None:
        self.graph = graph
        self.name = name
        self.shape = shape
        self.dtype = dtype

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _Namespace

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def made(self, kind: str, *others: Any, shape: tuple[int, ...], dtype: Any = None, **attributes: Any) -> Symbol:
        """What an operation makes of this and of others, symbols or constants."""
        names = [self.name, *(self.like(other).name for other in others)]
        return Symbol(self.graph, self.graph.add(kind, names, **attributes), shape, dtype or self.dtype)

    def like(self, other: Any) -> Symbol:
        """A constant as a symbol of the same graph; floats unless it has another type."""
        if isinstance(other, Symbol):
            return other
        array = np.asarray(other)
        if isinstance(other, int | float):
            array = array.astype(_FLOAT)
        return Symbol(self.graph, self.graph.constant(array), array.shape, array.dtype)

    def cast(self, dtype: Any) -> Symbol:
        """In another type."""
        from onnx.helper import np_dtype_to_tensor_dtype

        kind = np.dtype(dtype)
        return self.made("Cast", shape=self.shape, dtype=kind, to=np_dtype_to_tensor_dtype(kind))

    def with_other(self, kind: str, other: Any, dtype: Any = None) -> Symbol:
        """An operation on two tensors, entry by entry."""
        second = self.like(other)
        return self.made(kind, second, shape=_joint(self.shape, second.shape), dtype=dtype)

    def reduced(self, kind: str, axis: int, keepdims: bool) -> Symbol:
        """Without an axis (or with it, of length 1)."""
        axis = axis % self.ndim
        left = (1,) if keepdims else ()
        shape = (*self.shape[:axis], *left, *self.shape[axis + 1 :])
        return self.made(kind, np.array([axis]), shape=shape, keepdims=int(keepdims))

    def take(self, columns: Any) -> Symbol:
        """Some of the columns, in this order."""
        index = np.asarray(columns, dtype=np.int64)
        return self.made("Gather", index, shape=(*self.shape[:-1], len(index)), axis=self.ndim - 1)

    def __getitem__(self, key: Any) -> Symbol:
        items = list(key) if isinstance(key, tuple) else [key]
        if isinstance(items[0], EllipsisType):
            n_skipped = self.ndim - sum(item is not None for item in items[1:])
            items = [slice(None)] * n_skipped + items[1:]
        result, axis = self, 0
        for item in items:
            if item is None:
                shape = (*result.shape[:axis], 1, *result.shape[axis:])
                result = result.made("Unsqueeze", np.array([axis]), shape=shape)
                axis += 1
            elif isinstance(item, slice):
                result = result if item == slice(None) else result._sliced(item, axis)
                axis += 1
            else:
                index = np.asarray(int(item) % result.shape[axis])
                shape = (*result.shape[:axis], *result.shape[axis + 1 :])
                result = result.made("Gather", index, shape=shape, axis=axis)
        return result

    def _sliced(self, item: slice, axis: int) -> Symbol:
        start, stop, _ = item.indices(self.shape[axis])
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        return self.made("Slice", np.array([start]), np.array([stop]), np.array([axis]), shape=shape)

    def __add__(self, other: Any) -> Symbol:
        return self.with_other("Add", other)

    def __radd__(self, other: Any) -> Symbol:
        return self.like(other) + self

    def __sub__(self, other: Any) -> Symbol:
        return self.with_other("Sub", other)

    def __rsub__(self, other: Any) -> Symbol:
        return self.like(other) - self

    def __mul__(self, other: Any) -> Symbol:
        return self.with_other("Mul", other)

    def __rmul__(self, other: Any) -> Symbol:
        return self.like(other) * self

    def __truediv__(self, other: Any) -> Symbol:
        return self.with_other("Div", other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self.like(other) / self

    def __matmul__(self, other: Any) -> Symbol:
        weights = self.like(other)
        return self.made("MatMul", weights, shape=(*self.shape[:-1], weights.shape[-1]))

    def __abs__(self) -> Symbol:
        return unary("Abs", self)

    def __eq__(self, other: Any) -> Any:
        return self.with_other("Equal", other, _BOOL)

    def __lt__(self, other: Any) -> Symbol:
        return self.with_other("Less", other, _BOOL)

    def __le__(self, other: Any) -> Symbol:
        return self.with_other("LessOrEqual", other, _BOOL)

    def __ge__(self, other: Any) -> Symbol:
        return self.with_other("GreaterOrEqual", other, _BOOL)


def unary(kind: str, x: Symbol, dtype: Any = None) -> Symbol:
    """An operation on every entry."""
    return x.made(kind, shape=x.shape, dtype=dtype)


def concat(parts: list[Symbol], axis: int = -1) -> Symbol:
    """Side by side, along the last axis."""
    first, *others = parts
    width = sum(part.shape[-1] for part in parts)
    return first.made("Concat", *others, shape=(*first.shape[:-1], width), axis=first.ndim + axis)


def unsaid_of_infinite(x: Symbol, answers: Symbol) -> Symbol:
    """NaN about rows of x with an infinite entry, which a model refuses and a graph cannot."""
    infinite = unary("IsInf", x, np.bool_).cast(np.float64).reduced("ReduceMax", 1, keepdims=True)
    return _Namespace.where(infinite == 1.0, np.nan, answers)


class _Namespace:
    """What `geometry`, `scores` and the embeddings ask of a library of the array API."""

    finfo = staticmethod(np.finfo)
    concat = staticmethod(concat)

    @staticmethod
    def asarray(values: Any, *, dtype: Any, device: None) -> Any:
        return np.asarray(values, dtype=dtype)

    @staticmethod
    def abs(x: Symbol) -> Symbol:
        return abs(x)

    @staticmethod
    def sqrt(x: Symbol) -> Symbol:
        return unary("Sqrt", x)

    @staticmethod
    def exp(x: Symbol) -> Symbol:
        return unary("Exp", x)

    @staticmethod
    def log(x: Symbol) -> Symbol:
        return unary("Log", x)

    @staticmethod
    def max(x: Symbol, *, axis: int, keepdims: bool = False) -> Symbol:
        return x.reduced("ReduceMax", axis, keepdims)

    @staticmethod
    def sum(x: Symbol, *, axis: int, keepdims: bool = False) -> Symbol:
        return x.reduced("ReduceSum", axis, keepdims)

    @staticmethod
    def mean(x: Symbol, *, axis: int, keepdims: bool = False) -> Symbol:
        return x.reduced("ReduceMean", axis, keepdims)

    @staticmethod
    def where(condition: Symbol, x: Any, y: Any) -> Symbol:
        first, second = condition.like(x), condition.like(y)
        shape = _joint(condition.shape, _joint(first.shape, second.shape))
        return condition.made("Where", first, second, shape=shape, dtype=first.dtype)

    @staticmethod
    def clip(x: Symbol, smallest: float, largest: None) -> Symbol:
        return x.with_other("Max", smallest)

    @staticmethod
    def full_like(x: Symbol, value: float) -> Symbol:
        size = x.made("Shape", shape=(x.ndim,), dtype=np.int64)
        return size.made("ConstantOfShape", shape=x.shape, dtype=_FLOAT, value=np.array([value], dtype=_FLOAT))

    @staticmethod
    def ones_like(x: Symbol) -> Symbol:
        return _Namespace.full_like(x, 1.0)

    @staticmethod
    def zeros_like(x: Symbol) -> Symbol:
        return _Namespace.full_like(x, 0.0)

    @staticmethod
    def reshape(x: Symbol, shape: tuple[int, ...]) -> Symbol:
        return x.made("Reshape", np.asarray(shape, dtype=np.int64), shape=shape)

    @staticmethod
    def atan2(y: Symbol, x: Symbol) -> Symbol:
        # onnxruntime has the arc tangent in float32 alone: turned back by it, the point lies within 1e-6 of the axis,
        # where the tangent and two terms of its series give what is left to the last digit.
        size = abs(x).with_other("Max", abs(y))
        size = _Namespace.where(size == 0.0, 1.0, size)
        x, y = x / size, y / size
        ratio = (y / _Namespace.where(x == 0.0, 1e-300, x)).cast(np.float32)
        behind = _Namespace.where(y < 0.0, -np.pi, np.pi)
        rough = unary("Atan", ratio).cast(_FLOAT) + _Namespace.where(x < 0.0, behind, 0.0)
        cosine, sine = unary("Cos", rough), unary("Sin", rough)
        along = x * cosine + y * sine
        tangent = (y * cosine - x * sine) / _Namespace.where(along == 0.0, 1.0, along)
        return rough + (tangent - tangent * tangent * tangent / 3.0)


def _joint(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that two shapes broadcast to."""
    n_axes = max(len(first), len(second))
    padded = [(1,) * (n_axes - len(shape)) + shape for shape in (first, second)]
    return tuple(right if left == 1 else left for left, right in zip(*padded, strict=True))
