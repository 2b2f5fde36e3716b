"""The service under load on loopback: throughput, latency, wrong answers against an oracle, and kill -9.

Needs wrk, which asks from a process of its own. One row per request; every answer is stored before it is sent.
"""

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
from _record import record

from onsphere.export import export_onnx
from onsphere.table import fit_table

SECONDS, SECONDS_MORE, CONNECTIONS = int(os.environ.get("SECONDS", "60")), 15, 8
TOLERANCE = 1e-6  # of a wrong answer: rounding depends on how many rows are asked about at once
START = """
import sys
from onsphere.service import Settings, serve
serve(Settings(sys.argv[1], port=0, rate=0.0), on_ready=lambda address: print(address, flush=True))
"""


def table(n_rows, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n_rows),
            "rooms": rng.integers(1, 6, n_rows).astype(float),
            "shop": rng.choice(["a", "b", "c"], n_rows),
            "new": rng.random(n_rows) > 0.5,
        }
    )
    frame["price"] = 3 * frame["size"] + frame.rooms + (frame.shop == "a") + rng.normal(size=n_rows) * 0.2
    return frame


class Served:
    """A service in its own process."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        log = open(os.devnull, "w")
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", START, str(self.path)]
        self.run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
        log.close()
        self.url = self.run.stdout.readline().strip()
        while True:
            try:
                if httpx.get(f"{self.url}/readyz").status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.1)

    def __exit__(self, *_):
        self.run.send_signal(signal.SIGTERM)
        self.run.wait(60)


def ask(url, rows, expected, done, found):
    """Send rows with known answers until stopped; count wrong answers, and remember what was stored."""
    with httpx.Client(base_url=url, timeout=30) as client:
        while not done.is_set():
            index = random.randrange(len(rows))
            try:
                answer = client.post("/v1/assess", json={"rows": [rows[index]]})
            except httpx.TransportError:
                return
            row = answer.json()["rows"][0] if answer.status_code == 200 else {}
            near = all(
                abs(row.get(name, np.inf) - expected[name][index]) <= TOLERANCE for name in ("value", "lower", "upper")
            )
            found["asked"] += 1
            found["wrong"] += not (near and row["accepted"] == bool(expected["accepted"][index]))
            if answer.status_code == 200 and answer.json()["recorded"]:
                found["stored"].append(answer.headers["x-request-id"])


def start_asking(url, rows, expected, n_threads):
    done, found = threading.Event(), {"asked": 0, "wrong": 0, "stored": []}
    threads = [threading.Thread(target=ask, args=(url, rows, expected, done, found)) for _ in range(n_threads)]
    for thread in threads:
        thread.start()

    def stop():
        done.set()
        for thread in threads:
            thread.join()
        return found

    return stop


def wrk(url, rows, seconds, connections, folder):
    bodies = ",\n".join("'" + json.dumps({"rows": [row]}) + "'" for row in rows[:50])
    script = Path(folder) / "ask.lua"
    script.write_text(
        f"local bodies = {{{bodies}}}\nlocal n = 0\n"
        'request = function() n = n + 1; return wrk.format("POST", "/v1/assess", '
        '{["Content-Type"] = "application/json"}, bodies[n % #bodies + 1]) end\n'
    )
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--timeout",
        "30s",
        "--latency",
        "-s",
        str(script),
        url,
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    shares = {
        share: float(number) * units[unit] for share, number, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s)", text)
    }
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: (.*)", text)
    return {
        "requests/s": float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1]),
        "p50 ms": shares["50"],
        "p99 ms": shares["99"],
        "refused": int(refused[1]) if refused else 0,
        "socket errors": broken[1] if broken else "none",
    }


def measure_load(path, rows, expected, seconds, connections, folder):
    with Served(path) as served:
        stop = start_asking(served.url, rows, expected, 1)
        figures = wrk(served.url, rows, seconds, connections, folder)
        found = stop()
    asked = {"file": path.name, "seconds": seconds, "connections": connections}
    return {**asked, **figures, "checked": found["asked"], "wrong": found["wrong"]}


def count_lost(path, rows, expected):
    """Count the acknowledged requests, and those of them that are missing after kill -9 under load."""
    with Served(path) as served:
        stop = start_asking(served.url, rows, expected, 4)
        time.sleep(5)
        served.run.kill()
        found = stop()
    with sqlite3.connect(f"{path}.sqlite") as connection:
        kept = {name for (name,) in connection.execute("SELECT request FROM onsphere_assessments")}
    connection.close()
    return len(found["stored"]), len(set(found["stored"]) - kept)


load_before = os.getloadavg()[1]
with tempfile.TemporaryDirectory() as folder:
    fit = fit_table(table(1000, 0), ["price"], backbone="kernel")
    summary = {"data": "made up", **fit.summary()}
    native = fit.model.save(Path(folder) / "model.onsphere", summary=summary)
    new = table(500, 1).drop(columns="price")
    graph = Path(folder) / "model.onnx"
    export_onnx(fit.model, graph, X=new, coverage=fit.coverage, summary=summary)
    rows, expected = new.to_dict(orient="records"), fit.model.assess(new, coverage=fit.coverage).to_dict()
    figures = [
        measure_load(native, rows, expected, SECONDS, CONNECTIONS, folder),
        measure_load(native, rows, expected, SECONDS_MORE, 4 * CONNECTIONS, folder),
        measure_load(graph, rows, expected, SECONDS_MORE, CONNECTIONS, folder),
    ]
    n_stored, n_lost = count_lost(native, rows, expected)
record(
    "service_load",
    about="`onsphere serve`, one worker, asked by wrk on the same machine, one row per request, a kernel model of a "
    "table of 1,000 rows; SQLite holds each assessment before it is answered. At the same time one more client "
    "compares its answers with those of the model in its own process, to "
    f"{TOLERANCE:g}: the model itself answers a row alone and among others with a difference of up to 2e-7. The load "
    "average tells how many other processes wanted the cores before anything was asked.",
    rows=figures,
    acknowledged_before_kill_9=n_stored,
    lost_by_kill_9=n_lost,
    load_average_before=round(load_before, 1),
)
