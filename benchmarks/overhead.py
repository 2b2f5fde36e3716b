"""What the uncertainty costs: `assess` against the plain forest's `predict` on the same rows, side by side."""

import time

import numpy as np
from _record import record
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import HCMRegressor

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
    plain, ours = forest.fit(X, y), HCMRegressor(forest).fit(X, y)
    for n_rows in (100, 1_000, 10_000):
        new = rng.normal(size=(n_rows, 8))
        pairs = [(seconds(lambda: plain.predict(new)), seconds(lambda: ours.assess(new))) for _ in range(15)]  # noqa: B023
        rows.append(
            {
                "outputs": n_outputs,
                "rows": n_rows,
                "plain ms": 1000 * float(np.median([pair[0] for pair in pairs])),
                "with uncertainty ms": 1000 * float(np.median([pair[1] for pair in pairs])),
                "ratio": float(np.median([with_u / without for without, with_u in pairs])),
            }
        )

record(
    "overhead",
    about="ExtraTrees (200 trees, leaf 2): `HCMRegressor.assess` against the plain forest's `predict`, alternating, "
    "median of 15. The goal is a ratio of at most 1.25 for one output.",
    rows=rows,
)
