"""Whole distributions side by side: HCM against quantile forests, crepes, NGBoost and LightGBM, each made conformal.

Needs crepes and ngboost, which nothing else here does: `pip install crepes==0.9.1 ngboost==0.5.11`.
"""

import argparse
import time
import warnings
from importlib.metadata import version

import numpy as np
from _record import record
from crepes import ConformalPredictiveSystem
from crepes.extras import DifficultyEstimator
from lightgbm import LGBMRegressor
from ngboost import NGBRegressor
from quantile_forest import RandomForestQuantileRegressor
from rich.progress import track
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from onsphere import HCMRegressor
from onsphere.calibration import conformal_quantile
from onsphere.metrics import interval_coverage, pinball_loss, winkler_score
from reproduction.data import UCI_NAMES, load_uci

COVERAGE, LEVELS = 0.9, np.arange(1, 20) / 20
MOST_ROWS = 600  # of a set: the first of a fixed shuffle
SEEDS = (0, 1, 2)  # settings were developed on splits 100 and 101

warnings.filterwarnings("ignore")  # of the other libraries


def load(name):
    made = {
        "diabetes": lambda: load_diabetes(return_X_y=True),
        "friedman1": lambda: make_friedman1(MOST_ROWS, noise=1.0, random_state=0),
        "friedman2": lambda: make_friedman2(MOST_ROWS, noise=125.0, random_state=0),
        "friedman3": lambda: make_friedman3(MOST_ROWS, noise=0.1, random_state=0),
    }
    X, y = made[name]() if name in made else load_uci(name)
    rows = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    return np.asarray(X, dtype=float)[rows], np.asarray(y, dtype=float)[rows]


SETS = (*UCI_NAMES, "diabetes", "friedman1", "friedman2", "friedman3")

# The same three learners for the two methods that take any.
LEARNERS = {
    "trees": lambda: ExtraTreesRegressor(200, min_samples_leaf=2, random_state=0),
    "boosting": lambda: HistGradientBoostingRegressor(
        max_iter=200, learning_rate=0.06, max_leaf_nodes=15, random_state=0
    ),
    "kernel": lambda: make_pipeline(
        StandardScaler(), Nystroem(n_components=300, random_state=0), RidgeCV(np.logspace(-6, 2, 9))
    ),
}


# Each method takes a setting, training rows, calibration rows and new ones, and returns quantiles at LEVELS and both
# ends of the equal-tailed interval.


def hcm(setting, train, held, X):
    n_landmarks = min(300, len(train[1]))
    learner = LEARNERS[setting]()
    if setting == "kernel":
        learner.set_params(nystroem__n_components=n_landmarks)
    model = HCMRegressor(learner, domain="auto", shape="auto", random_state=0).fit(*train).calibrate(*held)
    distribution = model.predict_distribution(X)
    return distribution.quantiles(LEVELS), *distribution.interval(COVERAGE, tails="equal").T


def quantile_forest(setting, train, held, X):
    forest = RandomForestQuantileRegressor(n_estimators=200, min_samples_leaf=setting, random_state=0).fit(*train)
    return conformalize(lambda rows: forest.predict(rows, quantiles=LEVELS.tolist()), held, X)


def boosted_quantiles(setting, train, held, X):
    options = {"objective": "quantile", "verbose": -1, "n_jobs": 1, "random_state": 0, **setting}
    models = [LGBMRegressor(alpha=level, **options).fit(*train) for level in LEVELS]
    return conformalize(lambda rows: np.sort(np.stack([model.predict(rows) for model in models], axis=1)), held, X)


def conformalize(predict, held, X):
    """Shift each quantile by that of its error on calibration rows; the interval as in CQR."""
    known, new = predict(held[0]), predict(X)
    error = held[1][:, None] - known
    shifts = [conformal_quantile(error[:, column], level) for column, level in enumerate(LEVELS)]
    widen = conformal_quantile(np.maximum(-error[:, 0], error[:, -1]), COVERAGE)
    low, high = np.sort([new[:, 0] - widen, new[:, -1] + widen], axis=0)
    return np.sort(new + np.array(shifts), axis=1), low, high


def crepes(setting, train, held, X):
    learner = LEARNERS[setting]()
    if setting == "kernel":
        learner.set_params(nystroem__n_components=min(300, len(train[1])))
    learner.fit(*train)
    if setting == "trees":  # how far the trees disagree
        difficulty = DifficultyEstimator().fit(X=train[0], learner=learner, scaler=True)
    else:  # how far neighbours do
        scale = StandardScaler().fit(train[0])
        near = DifficultyEstimator().fit(X=scale.transform(train[0]), y=train[1], scaler=True)
        difficulty = None
    sigma = (lambda rows: difficulty.apply(rows)) if difficulty else (lambda rows: near.apply(scale.transform(rows)))
    known, new = learner.predict(held[0]), learner.predict(X)
    system = ConformalPredictiveSystem().fit(held[1] - known, sigmas=sigma(held[0]), seed=0)
    ends = {"lower_percentiles": 100 * (1 - COVERAGE) / 2, "higher_percentiles": 100 * (1 + COVERAGE) / 2}
    low, high = system.predict_percentiles(new, sigmas=sigma(X), **ends).T
    return system.predict_percentiles(new, sigmas=sigma(X), higher_percentiles=(100 * LEVELS).tolist()), low, high


def ngboost(setting, train, held, X):
    rate, depth = setting
    base = DecisionTreeRegressor(criterion="friedman_mse", max_depth=depth, random_state=0)
    model = NGBRegressor(Base=base, n_estimators=200, learning_rate=rate, verbose=False, random_state=0).fit(*train)
    known, new = model.pred_dist(held[0]).params, model.pred_dist(X).params
    error = (held[1] - known["loc"]) / known["scale"]
    limits = np.array([conformal_quantile(error, level) for level in LEVELS])
    tail = (1 + COVERAGE) / 2
    low, high = -conformal_quantile(-error, tail), conformal_quantile(error, tail)
    center, scale = new["loc"], new["scale"]
    return center[:, None] + scale[:, None] * limits, center + scale * low, center + scale * high


METHODS = {
    "HCM": (hcm, ("trees", "boosting", "kernel")),
    "quantile forest": (quantile_forest, (1, 3, 10)),
    "crepes": (crepes, ("trees", "boosting", "kernel")),
    "NGBoost": (ngboost, ((0.03, 3), (0.1, 3), (0.1, 5))),
    "LightGBM": (
        boosted_quantiles,
        (
            {"n_estimators": 100, "learning_rate": 0.1, "num_leaves": 7},
            {"n_estimators": 100, "learning_rate": 0.1, "num_leaves": 31},
            {"n_estimators": 300, "learning_rate": 0.05, "num_leaves": 7},
        ),
    ),
}


def tune(method, settings, X, y):
    """Return the setting with the least pinball loss on a part of the training rows, which also has to calibrate."""
    train, held, test = np.split(np.arange(len(y)), [int(0.6 * len(y)), int(0.8 * len(y))])
    losses = [
        pinball_loss(y[test], method(setting, (X[train], y[train]), (X[held], y[held]), X[test])[0], LEVELS)
        for setting in settings
    ]
    return settings[int(np.argmin(losses))]


def measure(name, seed, methods):
    """Return CRPS and Winkler score over std(y), coverage, seconds and the setting of each method on one split."""
    X, y = load(name)
    order = np.random.default_rng(seed).permutation(len(y))
    train, held, test = np.split(order, [int(0.6 * len(y)), int(0.8 * len(y))])
    found = {}
    for label in methods:
        method, settings = METHODS[label]
        setting = tune(method, settings, X[train], y[train])
        start = time.perf_counter()
        quantiles, low, high = method(setting, (X[train], y[train]), (X[held], y[held]), X[test])
        found[label] = {
            "crps": 2 * pinball_loss(y[test], quantiles, LEVELS) / y.std(),
            "winkler": winkler_score(y[test], low, high, coverage=COVERAGE) / y.std(),
            "coverage": interval_coverage(y[test], low, high),
            "seconds": time.perf_counter() - start,
            "setting": str(setting),
        }
    return found


def summarize(runs, label, figure):
    """Return the mean over splits of each set."""
    return np.array([np.mean([run[label][figure] for run in runs[name]]) for name in runs])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--dry", action="store_true", help="print, and write nothing")
    options = parser.parse_args()
    names, methods = options.sets.split(","), options.methods.split(",")
    seeds = [int(seed) for seed in options.seeds.split(",")]
    runs = {name: [] for name in names}
    for name, seed in track([(name, seed) for name in names for seed in seeds], "Distributions"):
        runs[name].append(measure(name, seed, methods))
    if options.dry:
        for name in names:
            for label in methods:
                figures = [
                    f"{np.mean([run[label][figure] for run in runs[name]]):.4f}" for figure in ("crps", "winkler")
                ]
                print(name, label, *figures)
        return
    report(runs, seeds, methods)


def report(runs, seeds, methods):
    """Compare the methods over all sets and write the results."""
    names = list(runs)
    rows, wins = [], {}
    rivals = [label for label in methods if label != "HCM"]
    best, ratios = {}, {}
    for figure in ("crps", "winkler"):
        means = {label: summarize(runs, label, figure) for label in methods}
        best[figure] = min(rivals, key=lambda label: np.mean(np.log(means[label])))
        ratios[figure] = means["HCM"] / means[best[figure]]
        gaps = np.array(
            [[run["HCM"][figure] - min(run[label][figure] for label in rivals) for run in runs[name]] for name in names]
        )
        errors = gaps.std(axis=1, ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else np.zeros(len(names))
        least = np.min([means[label] for label in rivals], axis=0)
        wins[figure] = int(np.sum(means["HCM"] <= least + errors))
    for place, name in enumerate(names):
        row = {"set": name}
        for figure in ("crps", "winkler"):
            for label in methods:
                values = [run[label][figure] for run in runs[name]]
                row[f"{label} {figure}"] = float(np.mean(values))
            row[f"ratio {figure}"] = float(ratios[figure][place])
        row["HCM coverage"] = float(np.mean([run["HCM"]["coverage"] for run in runs[name]]))
        row["HCM learner"] = "/".join(run["HCM"]["setting"] for run in runs[name])
        rows.append(row)
    means = {figure: float(np.exp(np.mean(np.log(ratios[figure])))) for figure in ratios}

    def compare_on_wine(figure):
        wine = rows[names.index("wine")]
        return wine[f"HCM {figure}"] / wine[f"quantile forest {figure}"]

    met = max(means.values()) <= 0.97 and min(wins.values()) * 2 >= len(names)
    met &= max(map(compare_on_wine, ratios)) <= 1
    record(
        "distribution",
        about=f"CRPS (twice the pinball loss over the levels .05, .10, …, .95) and Winkler score of equal-tailed 90 % "
        f"intervals, both over std(y), lower is better; mean of {len(seeds)} random 60/20/20 split(s). "
        f"Sets of more than {MOST_ROWS} rows were cut to that many at random. "
        "HCM is HCMRegressor(domain='auto', shape='auto'). "
        "Every method chose one of three settings by the pinball loss on a part of its training rows. "
        "Ratios are to the one rival with the least geometric mean over all sets. "
        "The goal is a geometric mean of at most 0.97 for both, best or within one standard error of the best on half "
        "of the sets, and wine no worse than with the quantile forest. "
        "Seconds are of one fit with the chosen setting, summed over the sets, mean of the splits, beside other jobs.",
        rows=rows,
        n_splits=len(seeds),
        geometric_mean_of_crps_ratios=means["crps"],
        geometric_mean_of_winkler_ratios=means["winkler"],
        best_rival_by_crps=best["crps"],
        best_rival_by_winkler=best["winkler"],
        best_or_within_one_standard_error_by_crps=wins["crps"],
        best_or_within_one_standard_error_by_winkler=wins["winkler"],
        wine_crps_over_that_of_the_quantile_forest=compare_on_wine("crps"),
        wine_winkler_over_that_of_the_quantile_forest=compare_on_wine("winkler"),
        **{f"seconds_of_{label}": float(np.sum(summarize(runs, label, "seconds"))) for label in methods},
        **{f"version_of_{name}": version(name) for name in ("quantile-forest", "crepes", "ngboost", "lightgbm")},
        goal_met="yes" if met else "NO",
    )


if __name__ == "__main__":
    main()
