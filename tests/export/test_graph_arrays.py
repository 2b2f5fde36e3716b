"""Arithmetic in a graph against the same arithmetic in numpy, on any numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from onsphere import Duplicate, Lift, Polar, SphericalOutput, Torus
from onsphere.export import graph_inputs
from onsphere.export.graph_arrays import ROWS, GraphArray
from onsphere.export.graph_builder import GraphBuilder, open_session
from onsphere.export.tree_graphs import look_up_steps
from onsphere.models.backbone import split_columns
from onsphere.sphere import geometry, scores
from onsphere.table import encoder

NUMBERS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5, 3.0]), st.floats(-1e3, 1e3))


def tables(width, numbers=NUMBERS):
    return arrays(np.float64, st.tuples(st.integers(1, 4), st.just(width)), elements=numbers)


def compile_graph(function, width):
    """Return a function that runs the graph of a function of a table."""
    graph = GraphBuilder()
    results = function(GraphArray(graph, graph.add_input("x", np.dtype(np.float64), width), (ROWS, width)))
    for number, result in enumerate(results):
        graph.add_output(f"y{number}", result.name, result.dtype, list(result.shape[1:]))
    session = open_session(graph.build({}).SerializeToString())
    return lambda x: session.run(None, {"x": x})


def fitted(embedding, n_outputs):
    return embedding.fit(np.random.default_rng(0).normal(3.0, 2.0, size=(50, n_outputs)))


def read_by(embedding, decoder, score):
    """All that is read off what a model says, by the names of the library."""
    layout = {"n_outputs": embedding.n_outputs_, "magnitude": embedding.has_magnitude, "mean": decoder == "mean"}

    def read(table):
        outputs = split_columns(table, **layout)
        return embedding.decode(outputs, decoder=decoder), embedding.sigma(outputs), score(outputs)

    width = embedding.direction_width(embedding.n_outputs_) + layout["magnitude"]
    width += embedding.n_outputs_ if layout["mean"] else 0
    return read, width, layout


CASES = {
    "lift mean": (fitted(Lift(), 1), "mean", lambda outputs: scores.anchored(outputs, 3.0)),
    "lift product": (fitted(Lift(), 3), "product", scores.uncertainty),
    "lift projective": (fitted(Lift(anchor=1.0), 2), "projective", scores.violation),
    "polar": (fitted(Polar(), 3), "product", scores.signed),
    "polar raw": (fitted(Polar(standardize=False), 2), "mean", scores.gini),
    "duplicate": (fitted(Duplicate(), 1), "product", scores.uncertainty),
    "torus": (fitted(Torus(), 2), "product", scores.reference),
    "torus slow": (fitted(Torus((2.0, 0.5)), 1), "mean", scores.violation),
}
GRAPHS = {name: compile_graph(read_by(*case)[0], read_by(*case)[1]) for name, case in CASES.items()}


@pytest.mark.parametrize("name", list(CASES))
@given(data=st.data())
def test_decoding_agrees_with_the_library(name, data):
    read, width, layout = read_by(*CASES[name])
    table = data.draw(tables(width)) + 0.0  # the angles of -0 and 0 differ
    value, sigma, score = GRAPHS[name](table)
    expected = read(table)
    size = 10.0 + np.abs(table).max()
    if CASES[name][1] == "product" and not layout["magnitude"]:
        # An angle of ±π is both: where the point lies on the cut, either is right.
        turn = 2 * np.pi * CASES[name][0].scale_ / min(CASES[name][0].frequencies)
        off = (value - expected[0]) / turn
        np.testing.assert_allclose((off - np.round(off)) * turn, 0.0, atol=1e-9 * size)
    else:
        np.testing.assert_allclose(value, expected[0], rtol=1e-12, atol=1e-12 * size)
    np.testing.assert_allclose(sigma, expected[1], rtol=1e-6, atol=1e-6 * size)
    np.testing.assert_allclose(score, expected[2], rtol=1e-12, atol=1e-12 * size)


NORM = compile_graph(lambda x: (geometry.norm(x), *geometry.split(x)), 3)


@given(tables(3, st.floats(-1e300, 1e300)))
def test_norms_do_not_overflow(x):
    length, direction, magnitude = NORM(x)
    np.testing.assert_allclose(length, geometry.norm(x), rtol=1e-14)
    np.testing.assert_allclose(direction, geometry.split(x)[0], rtol=1e-14)
    np.testing.assert_array_equal(length, magnitude)


@pytest.mark.parametrize("n_steps", [0, 1, 2, 7, 100])
def test_looking_up_steps_counts_the_steps_below(n_steps):
    rng = np.random.default_rng(n_steps)
    steps, levels = np.unique(rng.normal(size=n_steps)), rng.random(n_steps + 1)
    graph = compile_graph(lambda x: (look_up_steps(x, steps, levels),), 1)
    x = np.concatenate([steps, np.nextafter(steps, np.inf), rng.normal(size=50), [np.inf, -np.inf, np.nan]])
    np.testing.assert_array_equal(graph(x[:, None])[0][:, 0], levels[np.searchsorted(steps, x, side="left")])


CALENDAR = compile_graph(graph_inputs._encode_dates, 1)


@given(tables(1, st.one_of(st.just(np.nan), st.floats(-1e11, 1e11), st.integers(-(10**10), 10**10).map(float))))
def test_parts_of_dates_agree_with_the_encoder(seconds):
    for ours, theirs in zip(CALENDAR(seconds), encoder._split_date(seconds), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_angles_are_right_to_the_last_digits():
    rng = np.random.default_rng(0)
    angles = np.concatenate([rng.uniform(-np.pi, np.pi, 5_000), np.arange(-3, 5) * np.pi / 4])
    points = np.exp(rng.normal(scale=5, size=len(angles)))[:, None] * np.c_[np.sin(angles), np.cos(angles)]
    points = np.vstack([points, [[0.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]]])
    graph = compile_graph(lambda x: (x.__array_namespace__().atan2(x[:, 0], x[:, 1]),), 2)
    np.testing.assert_allclose(graph(points)[0], np.arctan2(points[:, 0], points[:, 1]), rtol=1e-13, atol=1e-15)


def test_arithmetic_with_numpy_on_either_side():
    ones = np.arange(1.0, 3.0)
    graph = compile_graph(
        lambda x: (
            1.0 + x,
            1.0 - x,
            2.0 * x,
            1.0 / x,
            ones + x,
            ones - x,
            ones / x,
            x[..., 1:],
            x[..., -1, None],
        ),
        2,
    )
    x = np.array([[1.0, 2.0], [4.0, 8.0]])
    expected = [1 + x, 1 - x, 2 * x, 1 / x, ones + x, ones - x, ones / x, x[:, 1:], x[:, -1:]]
    for ours, theirs in zip(graph(x), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_direction_without_magnitude_has_length_one():
    outputs = split_columns(np.ones((2, 3)), n_outputs=3, magnitude=False, mean=False)
    graph = compile_graph(lambda x: split_columns(x, n_outputs=3, magnitude=False, mean=False)[:2], 3)
    direction, magnitude = graph(np.ones((2, 3)))
    assert isinstance(outputs, SphericalOutput)
    np.testing.assert_array_equal(direction, outputs.direction)
    np.testing.assert_array_equal(magnitude, outputs.magnitude)
