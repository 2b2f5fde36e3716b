"""What an answer costs in onnxruntime, beside scikit-learn, the library itself, and rivals that sample."""

import tempfile
import time
from pathlib import Path

import numpy as np
from _record import record
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import AcceptShare, HCMRegressor
from onsphere.baselines import DeepEnsemble, MCDropout
from onsphere.export import export_onnx, open_graph, prepare_inputs
from onsphere.torch import TorchRegressor

SECONDS, N_TURNS = 0.4, 5  # of each method at a time, as a service asks one model over and over
rng = np.random.default_rng(0)
X = rng.normal(size=(5000, 8))
y = np.sin(X @ rng.normal(size=8)) + 0.3 * rng.normal(size=5000)
forest = ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2, random_state=0)
plain = forest.fit(X[:4000], y[:4000])


def make_network(**options):
    return TorchRegressor(hidden_sizes=(100, 100), max_epochs=3, random_state=0, **options)


def fit_and_calibrate(model):
    return model.fit(X[:4000], y[:4000]).calibrate(X[4000:], y[4000:]).set_threshold(AcceptShare(0.95))


def open_exported(model):
    """Export a model; return a function of rows that computes all outputs of the graph."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        print(export_onnx(model, path, X=X[4000:]))
        session, facts = open_graph(path)
    return lambda rows: session.run(None, prepare_inputs(facts["inputs"], rows))


trees, net = fit_and_calibrate(HCMRegressor(forest)), fit_and_calibrate(HCMRegressor(make_network()))
ensemble, dropout = (
    fit_and_calibrate(DeepEnsemble(make_network())),
    fit_and_calibrate(MCDropout(make_network(dropout=0.1))),
)
METHODS = {
    "forest: scikit-learn's predict, no uncertainty": plain.predict,
    "forest: onsphere": trees.assess,
    "forest: onnxruntime": open_exported(trees),
    "network: onsphere": net.assess,
    "network: onnxruntime": open_exported(net),
    "5 networks (ensemble)": ensemble.assess,
    "network, 50 passes (MC dropout)": dropout.assess,
}


def measure_medians(rows):
    """Return the milliseconds of each method, the methods taking turns of some time each."""
    seen = {name: [] for name in METHODS}
    for call in METHODS.values():
        call(rows)
    for _ in range(N_TURNS):
        for name, call in METHODS.items():
            end = time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                start = time.perf_counter()
                call(rows)
                seen[name].append(1000 * (time.perf_counter() - start))
    return {name: float(np.median(values)) for name, values in seen.items()}


rows = []
for n_rows in (1, 100, 10_000):
    found = measure_medians(rng.normal(size=(n_rows, 8)))
    reference = found["forest: scikit-learn's predict, no uncertainty"]
    rows += [
        {"rows": n_rows, "method": name, "ms": ms, "times faster than the forest's predict": reference / ms}
        for name, ms in found.items()
    ]
single = {row["method"]: row["times faster than the forest's predict"] for row in rows if row["rows"] == 1}
record(
    "serving",
    about="Value, uncertainty, interval, confidence and decision for rows with 8 columns: 200 extremely randomised "
    "trees, and an MLP of two layers of 100. Medians of wall time, the methods taking turns of .4 s each. "
    "The goal: one row through onnxruntime at least 50 times as fast as scikit-learn's own predict of the same forest.",
    rows=rows,
    single_row_forest_in_onnxruntime=f"{single['forest: onnxruntime']:.0f} times as fast (goal 50)",
)
