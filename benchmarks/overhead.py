"""What the uncertainty costs: `assess` against the plain forest's `predict`, and the fit of the input frame."""

import time

import numpy as np
from _record import record
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import HCMRegressor
from onsphere.models.novelty import find_relevance, fit_input_frame

N_TURNS, N_FITTED, N_FITTED_COLUMNS = 15, 100_000, 20

rng = np.random.default_rng(0)


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


rows = []
for n_outputs in (1, 5, 25):
    X = rng.normal(size=(4000, 8))
    signal = np.sin(X @ rng.normal(size=(8, n_outputs))) + 0.3 * rng.normal(size=(4000, n_outputs))
    y = signal[:, 0] if n_outputs == 1 else signal
    forest = ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2, random_state=0)
    calls = [
        forest.fit(X, y).predict,
        HCMRegressor(forest, frames="target").fit(X, y).assess,
        HCMRegressor(forest).fit(X, y).assess,
    ]
    for n_rows in (100, 1_000, 10_000):
        new = rng.normal(size=(n_rows, 8))
        turns = np.array([[seconds(lambda: call(new)) for call in calls] for _ in range(N_TURNS)])  # noqa: B023
        plain, target, frames = turns.T
        rows.append(
            {
                "outputs": n_outputs,
                "rows": n_rows,
                "plain ms": 1000 * float(np.median(plain)),
                "target frame ms": 1000 * float(np.median(target)),
                "all frames ms": 1000 * float(np.median(frames)),
                "ratio, target frame": float(np.median(target / plain)),
                "ratio, all frames": float(np.median(frames / plain)),
                "novelty over plain": float(np.median((frames - target) / plain)),
            }
        )

X = rng.normal(size=(N_FITTED, N_FITTED_COLUMNS))
y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
fit_seconds = seconds(lambda: fit_input_frame(X, relevance=find_relevance(X, y, 0), takes_missing=True))
largest = max(row["novelty over plain"] for row in rows)
record(
    "overhead",
    about="ExtraTrees (200 trees, leaf 2): `HCMRegressor.assess` against the plain forest's `predict`, taking turns, "
    f"median of {N_TURNS}. In a forest all frames but the target's cost novelty alone, since its noise is a "
    "multiple of sigma. The goals: a ratio of at most 1.25 for one output and the target frame; novelty at most "
    f".25 of the plain forest's predict; the input frame of {N_FITTED:,} rows of {N_FITTED_COLUMNS} columns fitted"
    " within 20 s.",
    rows=rows,
    largest_share_of_novelty=f"{largest:.3f}: {'met' if largest <= 0.25 else 'MISSED'}",
    seconds_to_fit_the_input_frame=f"{fit_seconds:.1f}: {'met' if fit_seconds <= 20 else 'MISSED'}",
)
