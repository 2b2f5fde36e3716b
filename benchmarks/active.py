"""Which rows to label next: test error against labelled rows, chosen by chance, by novelty, by disagreement, by noise.

`python benchmarks/active.py [N_SEEDS]`.
"""

import sys

import numpy as np
from _record import record
from rich.progress import track
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import HCMRegressor, select
from reproduction.data import UCI_NAMES, load_uci

N_SEEDS = int(sys.argv[1]) if len(sys.argv) > 1 else 6
N_TREES, MOST_ROWS = 60, 2000  # of a forest, and of a set that rows are chosen from
SIZES = range(50, 301, 25)
STARTS = ("all rows", "one half")


def choose_by_chance(model, pool, n, rng):
    return rng.choice(len(pool), n, replace=False)


def choose_by_novelty(model, pool, n, rng):
    return select(model, pool, n)


def choose_by_disagreement(model, pool, n, rng):
    """Choose the rows on whose value the trees of the forest differ most."""
    values = [tree.predict(pool)[:, -1] for tree in model.estimator_.estimators_]
    return np.argsort(-np.std(values, axis=0), kind="stable")[:n]


def choose_by_noise(model, pool, n, rng):
    return select(model, pool, n, by="noise")


# How rows are chosen, and the frames that the choice needs; the prediction is the same with all.
CHOICES = {
    "chance": (choose_by_chance, "target"),
    "novelty": (choose_by_novelty, ("target", "input")),
    "disagreement": (choose_by_disagreement, "target"),
    "noise": (choose_by_noise, ("target", "error")),
}


def find_half(X, y):
    """Return which rows lie below the median of the feature that tells most of the target."""
    leading = ExtraTreesRegressor(100, random_state=0).fit(X, y).feature_importances_.argmax()
    return X[:, leading] < np.median(X[:, leading])


def fit_model(X, y, frames, seed):
    forest = ExtraTreesRegressor(N_TREES, min_samples_leaf=2)
    return HCMRegressor(forest, frames=frames, random_state=seed).fit(X, y)


def measure_curve(pool, test, start, choice, seed):
    """Return the RMSE on test rows at each number of labelled rows that leaves a choice."""
    choose, frames = CHOICES[choice]
    rng = np.random.default_rng(seed)
    X, y = pool
    labelled, curve, model = start, [], None
    for size in [size for size in SIZES if size <= len(y)]:
        if curve:
            others = np.setdiff1d(np.arange(len(y)), labelled)
            labelled = np.append(labelled, others[choose(model, X[others], size - len(labelled), rng)])
        model = fit_model(X[labelled], y[labelled], frames, seed)
        curve.append(float(np.sqrt(np.mean((model.predict(test[0]) - test[1]) ** 2))))
    return curve


def measure_set(name):
    """Return {(start, choice): mean curve over seeds}, errors over the standard deviation of the target."""
    X, y = load_uci(name)
    y = (y - y.mean()) / y.std()
    half, found = find_half(X, y), {}
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        test, pool = np.split(rng.permutation(len(y))[: MOST_ROWS * 5 // 4], [min(len(y), MOST_ROWS * 5 // 4) // 5])
        places = {"all rows": np.arange(len(pool)), "one half": np.flatnonzero(half[pool])}
        for start in STARTS:
            first = rng.choice(places[start], SIZES[0], replace=False)
            for choice in CHOICES:
                curve = measure_curve((X[pool], y[pool]), (X[test], y[test]), first, choice, seed)
                found.setdefault((start, choice), []).append(curve)
    return {key: np.mean(curves, axis=0) for key, curves in found.items()}


found = {name: measure_set(name) for name in track(UCI_NAMES, "Active learning")}
empty = dict.fromkeys(map(str, SIZES), "")
rows = []
for start in STARTS:
    ratios = {choice: [] for choice in CHOICES}
    for name in UCI_NAMES:
        for choice in CHOICES:
            curve, by_chance = found[name][start, choice], found[name][start, "chance"]
            ratios[choice].append(float(np.mean(curve[1:]) / np.mean(by_chance[1:])))
            errors = {str(size): float(error) for size, error in zip(SIZES, curve, strict=False)}
            rows.append(
                {"start": start, "set": name, "chosen by": choice, "ratio": ratios[choice][-1], **empty, **errors}
            )
    for choice, values in ratios.items():
        mean = float(np.exp(np.mean(np.log(values))))
        rows.append({"start": start, "set": "mean", "chosen by": choice, "ratio": mean, **empty})

worse = {
    f"{choice} is behind chance, start from {start}": ", ".join(
        row["set"]
        for row in rows
        if (row["start"], row["chosen by"]) == (start, choice) and row["ratio"] > 1 and row["set"] != "mean"
    )
    or "on no set"
    for start in STARTS
    for choice in CHOICES
    if choice != "chance"
}
record(
    "active",
    about=f"RMSE on test rows, over the standard deviation of the target, against the number of labelled rows: mean of "
    f"{N_SEEDS} seeds, a fifth of each set for the test, at most {MOST_ROWS} rows to choose from. 50 rows are labelled "
    "at the start, drawn from all rows or from the half of them below the median of the leading feature; then 25 are "
    f"chosen at a time and the model, HCMRegressor over ExtraTrees({N_TREES}), is fitted again. 'novelty' and 'noise' "
    "are onsphere.select; 'disagreement' takes the rows on which the trees of the forest differ most. 'ratio' is the "
    "mean of a curve after the start over that of rows chosen by chance, below 1 is better; its mean over sets is "
    "geometric.",
    rows=rows,
    **worse,
)
