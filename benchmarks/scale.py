"""What folders of files cost: on all cores, on Ray, with a node or the driver killed, and in memory.

python benchmarks/scale.py                     (20 million rows; about ten minutes on two idle cores)
python benchmarks/scale.py --rows 400000 --memory 100000,400000       (a trial)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _record import record
from sklearn.base import clone

import onsphere
from onsphere.export import export_onnx
from onsphere.scale import Assessor, assess_dataset
from onsphere.table import BACKBONES, fit_table

NAMES = list("abcd")
N_FILES = 40
os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": ":".join(sys.path)}

ABOUT = """A data set of four numbers and a key per row in 40 Parquet files. The model is a small one, so that reading
and writing count: boosting of 10 rounds, target frame alone; models by backbone have all frames. *local*
is the pool of processes on all cores, *ray* the same files on a Ray cluster of one node on this machine. *node killed*:
three nodes, of which one is killed half-way; *driver killed*: `kill -9` half-way, then the same call again. *same* says
whether all files of answers equal those of the local run, byte by byte. *overhead* is the time of one process over that
of a bare loop: pyarrow reads, the model's own `assess` or the backbone's `predict` answers, pyarrow writes the same."""


def make_rows(n_rows: int, seed: int) -> pa.Table:
    X = np.random.default_rng(seed).standard_normal((4, n_rows), dtype=np.float32)
    ids = pa.array(np.arange(n_rows) + seed * n_rows)
    return pa.table({"id": ids} | {name: pa.array(column) for name, column in zip(NAMES, X, strict=True)})


def make_training_rows(n_rows: int = 4_000) -> pd.DataFrame:
    frame = make_rows(n_rows, seed=10**6).to_pandas()
    noise = np.random.default_rng(0).normal(size=n_rows) * np.exp(frame["c"] / 2)
    return frame.assign(y=frame["a"] + frame["b"] ** 2 + noise)


def make_small_model(folder: Path) -> Path:
    frame = make_training_rows()
    found = fit_table(frame, ["y"], backbone="hist-gradient-boosting", keys=["id"])
    rounds = {"estimator__boosting__max_iter": 10, "estimator__boosting__max_leaf_nodes": 8}
    model = clone(found.model).set_params(frames="target", calibration=0.25, **rounds).fit(frame[NAMES], frame["y"])
    return model.save(folder / "small.onsphere", summary=found.summary())


def write_rows(folder: Path, n_rows: int) -> Path:
    folder.mkdir()
    for number in range(N_FILES):
        pq.write_table(make_rows(n_rows // N_FILES, number), folder / f"{number:03d}.parquet", compression="none")
    return folder


def link_rows(source: Path, folder: Path, n_rows: int, n_per_file: int) -> Path:
    """Make a folder with as many rows, in links to the files of another, some of them more than once."""
    folder.mkdir()
    files = sorted(source.iterdir())
    for number in range(max(1, n_rows // n_per_file)):
        (folder / f"{number:05d}.parquet").symlink_to(files[number % len(files)])
    return folder


def hash_answers(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}


def time_run(*arguments, **options) -> float:
    began = time.perf_counter()
    assess_dataset(*arguments, **options)
    return time.perf_counter() - began


def run_on_one_node(model: Path, source: Path, out: Path) -> float:
    import ray

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    try:
        return time_run(model, source, out, engine="ray")
    finally:
        ray.shutdown()


def start_cluster():
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    return cluster, nodes


def stop_cluster(cluster) -> None:
    import ray

    ray.shutdown()
    cluster.shutdown()


def run_and_kill_a_node(model: Path, source: Path, out: Path) -> float:
    cluster, nodes = start_cluster()
    killed: list[threading.Thread] = []

    def kill(n_rows: int, share: float) -> None:
        if share >= 0.5 and not killed:
            options = {"target": cluster.remove_node, "args": (nodes[0],), "kwargs": {"allow_graceful": False}}
            killed.append(threading.Thread(**options))
            killed[0].start()

    try:
        seconds = time_run(model, source, out, engine="ray", on_progress=kill)
        killed[0].join()
        return seconds
    finally:
        stop_cluster(cluster)


def run_and_kill_the_driver(model: Path, source: Path, out: Path) -> float:
    cluster, _ = start_cluster()
    try:
        began = time.perf_counter()
        parts = ["--part", "ray", "--arguments", str(model), str(source), str(out), cluster.address]
        driver = subprocess.Popen([sys.executable, __file__, *parts])
        while len(list(out.glob("_onsphere/files/*.json"))) < N_FILES // 2:
            if driver.poll() is not None:
                raise RuntimeError("the driver ended before it was killed")
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assess_dataset(model, source, out, engine="ray")
        return time.perf_counter() - began
    finally:
        stop_cluster(cluster)


def measure_memory(model: Path, source: Path, out: Path) -> float:
    """Return the peak of one process in MB."""
    command = [sys.executable, __file__, "--part", "memory", "--arguments", str(model), str(source), str(out)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_part(part: str, arguments: list[str]) -> None:
    if part == "ray":
        assess_dataset(*arguments[:3], engine="ray", address=arguments[3])
    else:
        assess_dataset(*arguments, n_workers=1)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure_overhead(model: Path, source: Path, folder: Path, repeats: int = 3) -> list[dict]:
    """Compare one process with a loop that reads, predicts and writes; the fastest of some turns each."""
    loaded = onsphere.load(model)
    files = sorted(source.iterdir())
    out = folder / "overhead"
    assess_dataset(model, source, out, n_workers=1)
    answers = [pq.read_table(path) for path in sorted(out.glob("*.parquet"))]

    def loop(predict) -> float:
        began = time.perf_counter()
        for path, table in zip(files, answers, strict=True):
            with pq.ParquetWriter(folder / "bare.parquet", table.schema) as writer:
                start = 0
                for batch in pq.ParquetFile(path).iter_batches(65_536, columns=["id", *NAMES]):
                    predict(batch.to_pandas()[NAMES].astype(np.float64))
                    writer.write_table(table.slice(start, batch.num_rows))
                    start += batch.num_rows
        return time.perf_counter() - began

    kinds = {"assess of the model": loaded.assess, "predict of the backbone": loaded.estimator_.predict}
    ours, bare = [], {name: [] for name in kinds}
    for turn in range(repeats):
        ours.append(time_run(model, source, folder / f"overhead-{turn}", n_workers=1))
        for name, predict in kinds.items():
            bare[name].append(loop(predict))
    return [
        {"beside": name, "seconds": min(ours), "bare": min(times), "ratio": min(ours) / min(times)}
        for name, times in bare.items()
    ]


def measure_backbones(folder: Path, n_rows: int) -> list[dict]:
    """Return how many rows each backbone assesses in a second of one core, with all frames."""
    table, rows = make_rows(n_rows, seed=3), []
    for name in BACKBONES:
        found = fit_table(make_training_rows(), ["y"], backbone=name, keys=["id"])
        path = found.model.save(folder / f"{name}.onsphere", summary=found.summary())
        export_onnx(found.model, path.with_suffix(".onnx"), summary=found.summary())
        speeds = {}
        for suffix in (".onsphere", ".onnx"):
            assessor = Assessor(path.with_suffix(suffix))
            began = time.process_time()
            assessor(table)
            speeds[f"rows/s {suffix}"] = round(n_rows / (time.process_time() - began))
        rows.append({"backbone": name, **speeds, "MB": path.stat().st_size / 2**20})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--memory", default="1000000,10000000,50000000", help="Rows of the runs that measure memory.")
    parser.add_argument("--part", choices=["ray", "memory"])
    parser.add_argument("--arguments", nargs="*", default=[])
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.arguments)
        return
    n_rows, n_per_file = options.rows, options.rows // N_FILES
    with tempfile.TemporaryDirectory(prefix="onsphere-scale-") as name:
        folder = Path(name)
        model, source = make_small_model(folder), write_rows(folder / "in", n_rows)
        seconds = {"local": time_run(model, source, folder / "local")}
        expected = hash_answers(folder / "local")
        runs = [{"run": "local", "rows": n_rows, "seconds": seconds["local"], "same": True}]
        ways = {"ray": run_on_one_node, "node killed": run_and_kill_a_node, "driver killed": run_and_kill_the_driver}
        for way, run in ways.items():
            out = folder / way.replace(" ", "-")
            seconds[way] = run(model, source, out)
            same = hash_answers(out) == expected
            runs.append({"run": way, "rows": n_rows, "seconds": seconds[way], "same": same})
            print(json.dumps(runs[-1]), flush=True)
        quarter = link_rows(source, folder / "quarter", n_rows // 4, n_per_file)
        alone, pair = (time_run(model, quarter, folder / f"with-{n}", n_workers=n) for n in (1, 2))
        tenth = link_rows(source, folder / "tenth", n_rows // 10, n_per_file)
        overhead = measure_overhead(model, tenth, folder)
        memory = []
        for number, n_read in enumerate(map(int, options.memory.split(","))):
            rows = link_rows(source, folder / f"memory-in-{number}", n_read, n_per_file)
            memory.append({"rows": n_read, "peak MB": measure_memory(model, rows, folder / f"memory-out-{number}")})
            print(json.dumps(memory[-1]), flush=True)
        backbones = measure_backbones(folder, min(n_rows, 131_072))
    peaks = [row["peak MB"] for row in memory]
    record(
        "scale",
        about=ABOUT,
        rows=runs,
        backbones=backbones,
        overhead=overhead,
        memory=memory,
        ray_over_local=seconds["ray"] / seconds["local"],
        two_processes_over_one=alone / pair,
        largest_over_smallest_peak=max(peaks) / min(peaks),
    )


if __name__ == "__main__":
    main()
