"""estimator="auto" beside each of its candidates, on ten tables: does the choice cost anything?

`python benchmarks/choice.py [N_SPLITS]`, about ten minutes of one core. `python benchmarks/choice.py timing` measures
the processor time of `onsphere fit` alone, on an idle machine.
"""

import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from _record import record
from _tables import load_tables

from onsphere import HCMRegressor
from onsphere.metrics import winkler_score
from onsphere.models.choice import CANDIDATES, make_candidate

COVERAGE, MOST_ROWS, TIE = 0.9, 1_000, 1.01
N_SPLITS = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1] != "timing" else 3

NAMES = {make_candidate(name).steps[-1][0]: name for name in CANDIDATES}

warnings.filterwarnings("ignore")


def measure_split(X, y, seed):
    """Return the Winkler score over the spread of each candidate and of the choice, and what was chosen."""
    rows = np.random.default_rng(seed).permutation(len(y))[:MOST_ROWS]
    train, held, test = np.split(rows, [int(0.6 * len(rows)), int(0.8 * len(rows))])
    found = {}
    for name in (*CANDIDATES, "auto"):
        backbone = name if name == "auto" else make_candidate(name)
        if name == "kernel":  # no more landmarks than rows, as the choice has it
            backbone.set_params(kernel__n_components=min(300, len(train) * 3 // 5))
        model = HCMRegressor(backbone, random_state=0).fit(X[train], y[train]).calibrate(X[held], y[held])
        ends = model.predict_interval(X[test], coverage=COVERAGE).T
        found[name] = winkler_score(y[test], *ends, coverage=COVERAGE) / y.std()
    return found, NAMES[model.estimator_.steps[-1][0]]


def measure_table(name, X, y):
    """Return a row of the table: level is within 1 %, or within one standard error of the difference over splits."""
    splits, chosen = zip(*(measure_split(X, y, seed) for seed in range(N_SPLITS)), strict=True)
    scores = {method: np.array([split[method] for split in splits]) for method in splits[0]}
    best = min(CANDIDATES, key=lambda method: scores[method].mean())
    difference = scores["auto"] - scores[best]
    error = difference.std(ddof=1) / np.sqrt(N_SPLITS)
    is_level = difference.mean() <= max((TIE - 1) * scores[best].mean(), error)
    print(name, flush=True)
    means = {method: float(values.mean()) for method, values in scores.items()}
    return {"table": name, **means, "best": best, "chosen": ", ".join(chosen), "level": str(bool(is_level))}


def time_fit(n_rows, n_columns):
    """Return the processor seconds of `onsphere fit` on a table in a file."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, n_columns)), columns=[f"x{i}" for i in range(n_columns)])
    frame["y"] = 3 * frame["x0"] + frame["x1"] ** 2 + rng.normal(size=n_rows) * (0.1 + np.abs(frame["x2"]))
    folder = Path(tempfile.mkdtemp())
    frame.to_csv(folder / "table.csv", index=False)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = "from onsphere.cli import app; app()"
    subprocess.run([sys.executable, "-c", code, "fit", "table.csv", "--target", "y"], cwd=folder, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def judge(value, goal):
    return f"{value:.1f}, goal at most {goal:g}: {'met' if value <= goal else 'MISSED'}"


if sys.argv[1:] == ["timing"]:
    sizes = ((400, 6, 10), (10_000, 20, 60))
    rows = [{"rows": n, "columns": p, "processor s": time_fit(n, p), "goal s": float(goal)} for n, p, goal in sizes]
    record(
        "choice_time",
        about="Processor time of `onsphere fit` on a file of numbers, with the choice of a backbone, the fit, the "
        "calibration and the check on rows held out.",
        rows=rows,
        **{f"seconds for {row['rows']} rows": judge(row["processor s"], row["goal s"]) for row in rows},
    )
else:
    rows = [measure_table(*table) for table in load_tables()]
    n_level = sum(row["level"] == "True" for row in rows)
    record(
        "choice",
        about=f"90 % intervals on {N_SPLITS} random 60/20/20 splits of ten tables, at most {MOST_ROWS:,} rows of each. "
        "Winkler scores over std(y), lower is better. 'auto' chooses on the training rows alone. Stated before it was "
        "run: it is level if it is within 1 % of the candidate that is best on the test rows, or within one standard "
        "error of the difference over splits.",
        rows=rows,
        tables_on_which_the_choice_is_level=f"{n_level} of {len(rows)}, goal at least 8: "
        + ("met" if n_level >= 8 else "MISSED"),
    )
