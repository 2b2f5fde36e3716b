"""`onsphere fit` on files of 400, 10,000 and 300,000 rows: time, memory, and the model file beside a quantile forest's.

`python benchmarks/fit_time.py [ROWS ...]` on an idle machine, about four minutes for all three sizes.
"""

import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from _record import record
from quantile_forest import RandomForestQuantileRegressor

# Rows, columns, seconds and MiB of memory at most.
SIZES = [(400, 6, 10, None), (10_000, 20, 60, None), (300_000, 15, 360, 2_048)]
MOST_FOREST_ROWS = 20_000  # a quantile forest of more takes gigabytes; its file grows with its rows
CODE = """
import resource, sys
from onsphere.cli import app
try:
    app()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
"""


def make_table(n_rows, n_columns):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n_rows, n_columns)), columns=[f"x{i}" for i in range(n_columns)])
    frame["y"] = 3 * frame["x0"] + frame["x1"] ** 2 + rng.normal(size=n_rows) * (0.1 + np.abs(frame["x2"]))
    return frame


def measure_size(n_rows, n_columns, seconds, memory):
    """Return a row of the table: of a fit in a process of its own, and of a quantile forest on the same rows."""
    frame, folder = make_table(n_rows, n_columns), Path(tempfile.mkdtemp())
    frame.to_csv(folder / "table.csv", index=False)
    options = ["fit", "table.csv", "--target", "y", "--save", "model.onsphere"]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run = [sys.executable, "-c", CODE, *options]
    done = subprocess.run(run, cwd=folder, check=True, stderr=subprocess.PIPE, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    n_used = min(n_rows, MOST_FOREST_ROWS)
    rows = frame.iloc[:n_used]
    forest = RandomForestQuantileRegressor(random_state=0).fit(rows.drop(columns="y").to_numpy(), rows["y"].to_numpy())
    theirs = len(pickle.dumps(forest, protocol=5)) / 1e6 * n_rows / n_used
    ours = (folder / "model.onsphere").stat().st_size / 1e6
    row = {
        "rows": n_rows,
        "columns": n_columns,
        "seconds": wall,
        "goal s": float(seconds),
        "processor s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "MiB of memory": float(done.stderr.split()[-1]),
        "goal MiB": "none" if memory is None else float(memory),
        "MB of the file": ours,
        "file / quantile forest": ours / theirs,
    }
    print(row, flush=True)
    return row


def judge(is_met):
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    asked = [int(size) for size in sys.argv[1:]]
    rows = [measure_size(*size) for size in SIZES if not asked or size[0] in asked]
    record(
        "fit_time",
        about="`onsphere fit --save` on a file of numbers, with reading, the choice of a backbone, the fit, the "
        "calibration and the check on rows held out. The quantile forest has its default settings and is pickled; for "
        f"more than {MOST_FOREST_ROWS:,} rows its size is that for so many, times the rows.",
        rows=rows,
        seconds_at_most_as_asked=judge(all(row["seconds"] <= row["goal s"] for row in rows)),
        memory_at_most_as_asked=judge(
            all(row["goal MiB"] == "none" or row["MiB of memory"] <= row["goal MiB"] for row in rows)
        ),
        files_at_most_a_tenth=judge(all(row["file / quantile forest"] <= 0.1 for row in rows)),
    )
