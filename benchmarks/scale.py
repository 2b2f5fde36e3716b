"""What folders of files cost: on all cores, on Ray, with a node or the driver killed, and in memory.

python benchmarks/scale.py                     (20 million rows; about 10 minutes on two idle cores)
python benchmarks/scale.py --only memory       (the parts whose names begin so; the last one to be measured ends it)
python benchmarks/scale.py --rows 400000 --memory 100000,400000       (a trial)

Finished parts are kept in a folder of temporary files, by the code that they measure: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from _record import record
from sklearn.base import clone
from threadpoolctl import threadpool_limits

import onsphere
from onsphere.decision import AcceptShare
from onsphere.export import export_onnx
from onsphere.scale import Assessor, assess_dataset
from onsphere.table import BACKBONES, fit_table

NAMES = list("abcd")
N_FILES = 40
os.environ |= {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": ":".join(sys.path)}

ABOUT = """A data set of four numbers and a key per row in 40 Parquet files. The model is a small one, so that reading
and writing count: boosting of 10 rounds of 8 leaves, target frame alone. *local* is two processes on this machine,
*ray* the same files on a Ray cluster of one node on this machine, whose start is a part of the time; as in the local
pool, the process that calls is one of the two workers. *node killed*: three nodes, of which one is killed half-way;
*driver killed*: `kill -9` half-way, then the same call again. *same* says
whether all files of answers equal those of the local run, byte by byte, and *answers* counts their rows. *overhead* is
the processor time of one process over that of a bare loop: load the model, read with pyarrow, answer with the model's
own `assess` or the backbone's `predict`, and write the same tables with pyarrow. Beside the small model it is told of
*usual*, the boosting of 200 rounds that tables get. Models by backbone have all frames; their speeds are rows per
second of processor time. Peaks are of one process."""


def make_rows(n_rows: int, seed: int) -> pa.Table:
    X = np.random.default_rng(seed).standard_normal((4, n_rows), dtype=np.float32)
    ids = pa.array(np.arange(n_rows) + seed * n_rows)
    return pa.table({"id": ids} | {name: pa.array(column) for name, column in zip(NAMES, X, strict=True)})


def make_training_rows(n_rows: int = 4_000) -> pd.DataFrame:
    frame = make_rows(n_rows, seed=10**6).to_pandas()
    noise = np.random.default_rng(0).normal(size=n_rows) * np.exp(frame["c"] / 2)
    return frame.assign(y=frame["a"] + frame["b"] ** 2 + noise)


def fit_usual_model(path: Path) -> Path:
    found = fit_table(make_training_rows(), ["y"], backbone="hist-gradient-boosting", keys=["id"], frames="target")
    return found.model.save(path, summary=found.summary())


def fit_small_model(path: Path) -> Path:
    frame = make_training_rows()
    found = fit_table(frame, ["y"], backbone="hist-gradient-boosting", keys=["id"], frames="target")
    rounds = {"estimator__boosting__max_iter": 10, "estimator__boosting__max_leaf_nodes": 8}
    model = clone(found.model).set_params(calibration=0.25, **rounds).fit(frame[NAMES], frame["y"])
    return model.set_threshold(AcceptShare(0.95)).save(path, summary=found.summary())


def write_rows(folder: Path, n_rows: int) -> Path:
    folder.mkdir(exist_ok=True)
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


def sum_up(out: Path) -> dict:
    """Return how many rows the answers have, and a hash of the name and the content of every file of them."""
    n_rows, digest = 0, hashlib.sha256()
    for path in sorted(out.glob("*.parquet")):
        n_rows += pq.read_metadata(path).num_rows
        digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return {"answers": n_rows, "digest": digest.hexdigest()}


def time_run(*arguments, **options) -> float:
    began = time.perf_counter()
    assess_dataset(*arguments, **options)
    return time.perf_counter() - began


def run_on_one_node(model: Path, source: Path, out: Path) -> float:
    return time_run(model, source, out, engine="ray")


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
        driver = start_part("ray", model, source, out, cluster.address)
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


def start_part(*arguments: object) -> subprocess.Popen[str]:
    """Run this file in a process of its own, with options that choose what it does."""
    return subprocess.Popen(
        [sys.executable, __file__, "--part", *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def run_part(name: str, model: str, source: str, out: str, address: str | None = None) -> None:
    if name == "ray":
        assess_dataset(model, source, out, engine="ray", address=address)
    else:
        assess_dataset(model, source, out, n_workers=1)
        # Not ru_maxrss, which begins with what the parent had.
        [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
        print(int(peak.split()[1]) / 1024)


def measure_memory(model: Path, source: Path, out: Path) -> float:
    """Return the peak of one process in MB."""
    process = start_part("memory", model, source, out)
    said = process.communicate()[0]
    if process.returncode:
        raise RuntimeError("the run ended with an error")
    return float(said)


def measure_overhead(model: Path, source: Path, folder: Path, repeats: int = 3) -> list[dict]:
    """Compare one process with a loop that reads, predicts and writes, by the processor; the fastest of some turns."""
    kinds = {
        "assess of the model": lambda loaded: loaded.assess,
        "predict of the backbone": lambda loaded: loaded.estimator_.predict,
    }
    ours, bare = [], {name: [] for name in kinds}
    for turn in range(repeats):
        out = folder / f"{model.stem}-{turn}"
        began = time.process_time()
        assess_dataset(model, source, out, n_workers=1)
        ours.append(time.process_time() - began)
        outputs = [pq.read_table(path) for path in sorted(out.glob("*.parquet"))]
        for name, choose in kinds.items():
            with threadpool_limits(1):
                began = time.process_time()
                loop(choose(onsphere.load(model)), sorted(source.iterdir()), outputs, folder / "bare.parquet")
                bare[name].append(time.process_time() - began)
    return [
        {"model": model.stem, "beside": name, "seconds": min(ours), "bare": min(times), "ratio": min(ours) / min(times)}
        for name, times in bare.items()
    ]


def loop(predict: Callable[[pd.DataFrame], object], files: list[Path], outputs: list[pa.Table], path: Path) -> None:
    pa.set_cpu_count(1)
    for file, table in zip(files, outputs, strict=True):
        start = 0
        with pq.ParquetWriter(path, table.schema) as writer:
            for batch in pq.ParquetFile(file).iter_batches(65_536, columns=["id", *NAMES]):
                predict(batch.to_pandas()[NAMES].astype(np.float64))
                writer.write_table(table.slice(start, batch.num_rows))
                start += batch.num_rows


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


def list_parts(folder: Path, n_rows: int, memory: list[int]) -> dict[str, Callable[[Path], object]]:
    """Return what is measured, in order; each gets a folder of its own, which is removed afterwards."""
    small, source = folder / "small.onsphere", folder / "in"
    ways = {
        "local": partial(time_run, n_workers=2),
        "ray": run_on_one_node,
        "node killed": run_and_kill_a_node,
        "driver killed": run_and_kill_the_driver,
    }

    def run(way: Callable[..., float], place: Path) -> dict:
        seconds = way(small, source, place / "out")
        return {"rows": n_rows, "seconds": seconds, **sum_up(place / "out")}

    def link(place: Path, n_linked: int) -> Path:
        return link_rows(source, place / "in", n_linked, n_rows // N_FILES)

    def compare(place: Path) -> list[dict]:
        few = place / "few"
        few.mkdir()
        pq.write_table(make_rows(min(n_rows, 262_144), seed=0), few / "0.parquet", compression="none")
        usual = fit_usual_model(place / "usual.onsphere")
        return [*measure_overhead(small, link(place, n_rows // 5), place), *measure_overhead(usual, few, place, 2)]

    return {
        "one process": lambda place: time_run(small, source, place / "out", n_workers=1),
        **{name: partial(run, way) for name, way in ways.items()},
        "overhead": compare,
        "backbones": lambda place: measure_backbones(place, min(n_rows, 131_072)),
        **{
            f"memory {n_read}": lambda place, n_read=n_read: measure_memory(small, link(place, n_read), place / "out")
            for n_read in memory
        },
    }


def measure_parts(n_rows: int, memory: list[int], only: str) -> dict[str, Any] | None:
    """Measure every part, or read it if the same code measured it before; None if some are left.

    Memory and equal answers can be measured beside other work; times need a machine that does nothing else.
    """
    package = Path(onsphere.__file__).parent
    code = b"".join(path.read_bytes() for path in [*sorted(package.rglob("*.py")), Path(__file__)])
    folder = Path(tempfile.gettempdir()) / f"onsphere-scale-{n_rows}-{hashlib.sha256(code).hexdigest()[:12]}"
    folder.mkdir(exist_ok=True)
    if not (folder / "small.onsphere").exists():
        write_rows(folder / "in", n_rows)
        fit_small_model(folder / "small.onsphere")
    found = {}
    for name, measure in list_parts(folder, n_rows, memory).items():
        kept, place = folder / f"{name}.json", folder / f"running {only}"
        if not kept.exists() and name.startswith(only):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            kept.write_text(json.dumps(measure(place)))
            shutil.rmtree(place)
        if kept.exists():
            print(name, kept.read_text(), flush=True)
        found[name] = json.loads(kept.read_text()) if kept.exists() else None
    return None if None in found.values() else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--memory", default="1000000,10000000,50000000", help="Rows of the runs that measure memory.")
    parser.add_argument("--only", default="", help="What the names of the parts to measure begin with.")
    parser.add_argument("--part", nargs="*", help="What a process of this benchmark does.")
    options = parser.parse_args()
    if options.part:
        run_part(*options.part)
        return
    sizes = [int(size) for size in options.memory.split(",")]
    found = measure_parts(options.rows, sizes, options.only)
    if found is None:
        return
    runs = {name: part for name, part in found.items() if isinstance(part, dict) and "digest" in part}
    rows = [
        {
            "run": name,
            **{key: part[key] for key in ("rows", "answers", "seconds")},
            "same": part["digest"] == runs["local"]["digest"],
        }
        for name, part in runs.items()
    ]
    peaks = [found[f"memory {size}"] for size in sizes]
    times = {1: found["one process"], 2: found["local"]["seconds"]}
    record(
        "scale",
        about=ABOUT,
        rows=rows,
        backbones=found["backbones"],
        overhead=found["overhead"],
        memory=[{"rows": size, "peak MB": peak} for size, peak in zip(sizes, peaks, strict=True)],
        ray_over_local=runs["ray"]["seconds"] / runs["local"]["seconds"],
        processes=[{"processes": number, "seconds": seconds} for number, seconds in times.items()],
        two_processes_over_one=times[1] / times[2],
        largest_over_smallest_peak=max(peaks) / min(peaks),
    )


if __name__ == "__main__":
    main()
