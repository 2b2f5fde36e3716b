"""Boosting with HCM beside its own constant intervals and beside a forest on |error|, on ten tables.

`python benchmarks/boosting.py [N_SPLITS]`. Finished splits are kept in a folder of temporary files, so a run that was
stopped goes on where it was. `python benchmarks/boosting.py timing` measures the time of fits alone, on an idle
machine.
"""

import hashlib
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from _record import record
from _tables import load_tables
from lightgbm import LGBMRegressor
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import KFold, cross_val_predict
from threadpoolctl import threadpool_limits
from xgboost import XGBRegressor

import onsphere
from onsphere import HCMRegressor
from onsphere.calibration import conformal_quantile
from onsphere.metrics import interval_coverage, winkler_score

COVERAGE, MOST_ROWS, N_TIMED, N_REPEATED = 0.9, 2_000, 10_000, 3
N_SPLITS = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1] != "timing" else 5
BOOSTERS = {
    "HistGradientBoosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
    "LightGBM": lambda seed: LGBMRegressor(n_jobs=1, verbose=-1, random_state=seed),
    "XGBoost": lambda seed: XGBRegressor(n_jobs=1, random_state=seed),
}

warnings.filterwarnings("ignore")


def measure(value, sigmas, held, test, spread):
    """Return the Winkler score, over the spread of the target, and the coverage of value ± q·sigma.

    `sigmas` are those of the held-out rows and of the test rows.
    """
    sigma_held, sigma_test = (np.maximum(sigma, 1e-9 * spread) for sigma in sigmas)
    half = conformal_quantile(np.abs(held[1] - value(held[0])) / sigma_held, COVERAGE) * sigma_test
    ends = value(test[0]) - half, value(test[0]) + half
    return {
        "Winkler": winkler_score(test[1], *ends, coverage=COVERAGE) / spread,
        "coverage": interval_coverage(test[1], *ends),
    }


def measure_split(X, y, make, seed):
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(y))[:MOST_ROWS]
    train, held, test = ((X[part], y[part]) for part in np.split(rows, [int(0.6 * len(rows)), int(0.8 * len(rows))]))
    plain, spread = make(seed).fit(*train), y.std()
    error = np.abs(train[1] - cross_val_predict(make(seed), *train, cv=5))
    forest = RandomForestRegressor(100, min_samples_leaf=10, random_state=seed).fit(train[0], error)
    error_held = np.abs(held[1] - plain.predict(held[0]))
    of_folds = cross_val_predict(clone(forest), held[0], error_held, cv=KFold(5, shuffle=True, random_state=seed))
    of_all = clone(forest).fit(held[0], error_held).predict(test[0])
    rows = (held, test, spread)
    model = HCMRegressor(make(seed)).fit(*train).calibrate(*held)
    kept = HCMRegressor(FrozenEstimator(plain), calibration="cv").fit(*held)
    found = {
        "constant": measure(plain.predict, (np.ones(len(held[1])), np.ones(len(test[1]))), *rows),
        "forest on |error|": measure(plain.predict, (forest.predict(held[0]), forest.predict(test[0])), *rows),
        "forest, same rows": measure(plain.predict, (of_folds, of_all), *rows),
    }
    for name, each in (("HCM", model), ("HCM, fitted model", kept)):
        ends = each.predict_interval(test[0], coverage=COVERAGE).T
        found[name] = {
            "Winkler": winkler_score(test[1], *ends, coverage=COVERAGE) / spread,
            "coverage": interval_coverage(test[1], *ends),
        }
    errors = [np.sqrt(np.mean((each.predict(test[0]) - test[1]) ** 2)) for each in (plain, model, kept)]
    found["error"] = {"HCM": errors[1] / errors[0], "HCM, fitted model": errors[2] / errors[0]}
    return found


def run():
    """Measure every split, or read it if the same code measured it before; return {booster: {table: [splits]}}."""
    package = Path(onsphere.__file__).parent
    code = b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))
    folder = Path(tempfile.gettempdir()) / f"onsphere-boosting-{hashlib.sha256(code).hexdigest()[:12]}"
    folder.mkdir(exist_ok=True)
    found = {}
    for name, X, y in load_tables():
        for seed in range(N_SPLITS):
            for booster, make in BOOSTERS.items():
                path = folder / f"{booster}-{name}-{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(measure_split(X, y, make, seed)))
                    print(path.name, flush=True)
                found.setdefault(booster, {}).setdefault(name, []).append(json.loads(path.read_text()))
    return found


def time_fits():
    """Return processor seconds of plain fits, of HCM in one fit, and of HCM over the fitted model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_TIMED, 20))
    y = 3 * X[:, 0] + X[:, 1] ** 2 + np.sin(3 * X[:, 2]) + rng.normal(size=N_TIMED) * (0.1 + np.abs(X[:, 3]))
    rows = []
    for booster, make in BOOSTERS.items():
        HCMRegressor(make(0)).fit(X[:500], y[:500])  # what is imported at the first fit is no part of the others
        for n_trees in (100, 1000):
            count = {"max_iter" if booster == "HistGradientBoosting" else "n_estimators": n_trees}
            plain = make(0).set_params(**count)
            models = {"plain": plain, "HCM": HCMRegressor(clone(plain)), "kept": HCMRegressor(FrozenEstimator(plain))}
            times = {name: [] for name in models}
            for _ in range(N_REPEATED):
                for name, model in models.items():
                    start = time.process_time()
                    model.fit(X, y)
                    times[name].append(time.process_time() - start)
            seconds = {name: float(np.median(found)) for name, found in times.items()}
            ratio = seconds["HCM"] / seconds["plain"]
            rows.append(
                {
                    "booster": booster,
                    "trees": n_trees,
                    "plain s": seconds["plain"],
                    "HCM s": seconds["HCM"],
                    "HCM ×": ratio,
                    "fitted model, further s": seconds["kept"],
                }
            )
    return rows


def judge(value, goal):
    return f"{value:.3f}, goal at most {goal:g}: {'met' if value <= goal else 'MISSED'}"


def report_timing():
    with threadpool_limits(1):  # threads that wait for each other would count as processor time
        rows = time_fits()
    goals = {}
    for n_trees in (100, 1000):
        worst = max(row["HCM ×"] for row in rows if row["trees"] == n_trees)
        goals[f"largest ratio with {n_trees} trees"] = judge(worst, 3)
    further = max(row["fitted model, further s"] for row in rows)
    record(
        "boosting_time",
        about=f"Processor time of fits on {N_TIMED:,} rows of 20 features, one thread, medians of {N_REPEATED} in "
        "turn: plain boosting, HCMRegressor over it (the mean in one fit, a second fit on half of the rows, error and "
        "input frames), and what HCMRegressor adds to a model that is fitted already. The frames cost about the same "
        "whatever the booster, so they weigh most beside the 100 trees that are the libraries' default.",
        rows=rows,
        **goals,
        largest_addition_to_a_fitted_model_in_seconds=judge(further, 5),
    )


def report_intervals():
    found = run()
    methods = ("constant", "forest on |error|", "forest, same rows", "HCM", "HCM, fitted model")
    rows, goals = [], {}
    for booster, tables in found.items():
        for name, splits in tables.items():
            row = {"booster": booster, "table": name}
            for method in methods:
                row[method] = float(np.mean([split[method]["Winkler"] for split in splits]))
            row["HCM coverage"] = float(np.mean([split["HCM"]["coverage"] for split in splits]))
            row["RMSE of HCM, relative"] = float(np.mean([split["error"]["HCM"] for split in splits]))
            rows.append(row)
        ours = [row for row in rows if row["booster"] == booster]
        rivals = {"constant": 0.9, "forest on |error|": 1.0}
        for method, others in (("HCM", rivals), ("HCM, fitted model", rivals | {"forest, same rows": 1.0})):
            for rival, goal in others.items():
                ratio = float(np.exp(np.mean([np.log(row[method] / row[rival]) for row in ours])))
                goals[f"{booster}, {method} over {rival}"] = judge(ratio, goal)
        worst = max(abs(row["RMSE of HCM, relative"] - 1) for row in ours)
        goals[f"{booster}, largest relative change of the RMSE"] = judge(worst, 0.005)
    record(
        "boosting",
        about=f"90 % intervals on {N_SPLITS} random 60/20/20 splits of ten tables, at most {MOST_ROWS:,} rows of each "
        "(drawn anew for each split). Winkler scores over std(y), lower is better; ratios are geometric means over "
        "tables. All boosters have their default settings. 'constant' is split conformal prediction with one width; "
        "'forest on |error|' divides errors by what a random forest (100 trees, leaves of 10) learned from "
        "out-of-fold |error| (five folds): leaves of 1, 5 and 10 were tried on other splits, and 10 was best. 'HCM' is "
        "HCMRegressor(booster), calibrated on the same rows. 'HCM, fitted model' keeps the model, and learns noise and "
        "calibration from the calibration rows alone, by cross-validation. A "
        "fitted model has a third of these rows to learn from, and cannot know its errors on the others; 'forest, same "
        "rows' is the same forest with these rows alone, cross-fitted in five folds. What HCM does "
        "was decided on other splits (100 to 116 and 300 to 303) of the same tables.",
        rows=rows,
        **goals,
    )


if sys.argv[1:] == ["timing"]:
    report_timing()
else:
    report_intervals()
