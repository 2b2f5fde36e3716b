"""What `onsphere predict` costs on a million rows, beside reading them with pyarrow and the backbone's own predict.

    python benchmarks/streaming.py

Each part runs in a process of its own, so that its peak memory can be told.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from _record import record

import onsphere
from onsphere.persistence import read_manifest
from onsphere.table import BACKBONES, Column, fit_table, predict_file

N_FEATURES = 20


def make_table(n_rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, N_FEATURES)).round(6)
    y = X[:, 0] + X[:, 1] ** 2 + rng.normal(size=n_rows) * np.exp(X[:, 2] / 2)
    return {f"x{column}": X[:, column] for column in range(N_FEATURES)} | {"y": y}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=["plain", "predict"])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(time_part(options.part, options.folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pa.csv.write_csv(pa.table(make_table(options.rows, 1)), folder / "rows.csv")
        rows = [
            measure_backbone(backbone, folder, options.rows, options.repeats)
            for backbone in BACKBONES
            if backbone != "mlp"
        ]
    record("streaming", about=ABOUT, rows=rows)


ABOUT = """`onsphere predict model.onsphere rows.csv --out out.csv` on a CSV of 20 columns. *plain* is pyarrow reading
the whole file and the fitted backbone's own `predict` on it; *ratio* is the time of our command over that, each the
median of some runs of processor time. *memory* is the peak of our process above the same process with the model
loaded and no rows read."""


def measure_backbone(backbone: str, folder: Path, n_rows: int, n_repeats: int) -> dict[str, object]:
    import pandas as pd

    fit = fit_table(pd.DataFrame(make_table(5_000, 0)), ["y"], backbone=backbone)
    fit.model.save(folder / "model.onsphere", summary=fit.summary())
    runs = {part: [run_part(part, folder) for _ in range(n_repeats)] for part in ("plain", "predict")}
    seconds = {part: float(np.median([each["seconds"] for each in each_run])) for part, each_run in runs.items()}
    memory = max(each["mebibytes"] for each in runs["predict"])
    return {
        "backbone": backbone,
        "rows": n_rows,
        "runs": n_repeats,
        "plain s": seconds["plain"],
        "predict s": seconds["predict"],
        "ratio": seconds["predict"] / seconds["plain"],
        "memory MiB": memory,
        "plain memory MiB": max(each["mebibytes"] for each in runs["plain"]),
    }


def run_part(part: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def time_part(part: str, folder: Path) -> dict[str, float]:
    model = onsphere.load(folder / "model.onsphere")
    columns = [Column(**column) for column in read_manifest(folder / "model.onsphere")["summary"]["columns"]]
    model.assess(make_rows(1))
    before = read_peak_memory()
    start = time.process_time()
    if part == "plain":
        frame = pa.csv.read_csv(folder / "rows.csv").drop_columns(["y"]).to_pandas()
        model.estimator_.predict(frame)
    else:
        predict_file(model, columns, folder / "rows.csv", folder / "out.csv")
    return {"seconds": time.process_time() - start, "mebibytes": read_peak_memory() - before}


def make_rows(n_rows: int) -> object:
    import pandas as pd

    return pd.DataFrame({name: values for name, values in make_table(n_rows, 2).items() if name != "y"})


def read_peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
