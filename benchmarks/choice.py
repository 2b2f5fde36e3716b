"""estimator="auto" beside each of its candidates, on ten tables: does the choice cost anything?

`python benchmarks/choice.py [N_SPLITS]`, about ten minutes of one core.
"""

import sys
import warnings

import numpy as np
from _record import record
from _tables import load_tables

from onsphere import HCMRegressor
from onsphere.metrics import winkler_score
from onsphere.models.choice import CANDIDATES, make_candidate

COVERAGE, MOST_ROWS, TIE = 0.9, 1_000, 1.01
N_SPLITS = int(sys.argv[1]) if sys.argv[1:] else 3

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


if __name__ == "__main__":
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
