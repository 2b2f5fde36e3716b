"""Model files side by side: size and time to load of HCM models and of a quantile forest, fitted on the same rows."""

import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
from _record import record
from lightgbm import LGBMRegressor
from quantile_forest import RandomForestQuantileRegressor
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.frozen import FrozenEstimator

from onsphere import HCMRegressor, load

N_ROWS, N_HELD, N_FEATURES, N_TREES, N_LOADS = 5_000, 1_000, 20, 100, 3

rng = np.random.default_rng(0)
X = rng.normal(size=(N_ROWS + N_HELD, N_FEATURES))
y = 3 * X[:, 0] + X[:, 1] ** 2 + rng.normal(size=len(X)) * (0.1 + np.abs(X[:, 2]))
train, held = (X[:N_ROWS], y[:N_ROWS]), (X[N_ROWS:], y[N_ROWS:])
folder = Path(tempfile.mkdtemp())


def save_pickle(model, path):
    path.write_bytes(pickle.dumps(model, protocol=5))
    return path


def load_pickle(path):
    return pickle.loads(path.read_bytes())


booster = LGBMRegressor(n_jobs=1, verbose=-1).fit(*train)
kept = HCMRegressor(FrozenEstimator(booster), calibration="cv").fit(*held)
boosted = HCMRegressor(LGBMRegressor(n_jobs=1, verbose=-1)).fit(*train).calibrate(*held)
forest = HCMRegressor(ExtraTreesRegressor(N_TREES, min_samples_leaf=2), random_state=0).fit(*train).calibrate(*held)
quantiles = RandomForestQuantileRegressor(n_estimators=N_TREES, min_samples_leaf=3, random_state=0).fit(*train)
rival = "quantile forest, pickled"
files = {
    "HCM, fitted LightGBM": (kept.save(folder / "kept"), load),
    "HCM, LightGBM": (boosted.save(folder / "boosted"), load),
    "HCM, forest": (forest.save(folder / "forest"), load),
    "LightGBM alone, pickled": (save_pickle(booster, folder / "booster"), load_pickle),
    rival: (save_pickle(quantiles, folder / "quantiles"), load_pickle),
}
rows = []
for name, (path, read) in files.items():
    read(path)
    times = []
    for _ in range(N_LOADS):
        start = time.process_time()
        read(path)
        times.append(time.process_time() - start)
    rows.append({"model": name, "MB": path.stat().st_size / 1e6, "load s": float(np.median(times))})
theirs = next(row for row in rows if row["model"] == rival)
for row in rows:
    row |= {"MB, relative": row["MB"] / theirs["MB"], "load, relative": row["load s"] / theirs["load s"]}
record(
    "model_files",
    about=f"Files of models for {N_ROWS:,} rows of {N_FEATURES} features: HCM's own format, checked and without pickle "
    f"code, and a pickled quantile forest of {N_TREES} trees with leaves of 3; HCM's forest has as many. The goal "
    f"is a tenth of the quantile forest. Times to load are processor time, the median of {N_LOADS}.",
    rows=rows,
    goal_for_LightGBM_kept_by_HCM="size "
    + ("met" if rows[0]["MB, relative"] <= 0.1 else "MISSED")
    + ", time to load "
    + ("met" if rows[0]["load, relative"] <= 0.1 else "MISSED"),
)
