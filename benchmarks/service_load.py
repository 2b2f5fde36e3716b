"""The service under load on loopback, beside an earlier version of it: throughput, latency, attacks, kill -9, memory.

Needs wrk, which asks from a process of its own, and takes about eight minutes on an idle machine. Every answer is
stored before it is sent. `--before CLONE` measures the service of another clone of this repository in the same run,
with a graph that this clone wrote of the same rows, and `--litserve PYTHON` LitServe with the graph of this version, by
an interpreter that has litserve and onnxruntime:

    git clone . /tmp/before && git -C /tmp/before checkout 7c930d7
    python benchmarks/service_load.py --before /tmp/before --litserve /tmp/litserve/bin/python

`--only memory` and the like measure one part and print it; with `--parts FILE`, which keeps what each part has found,
what is there is recorded once load and versions are. `--seconds 1 --requests 500` tries it out.
"""

import argparse
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
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import psutil
from _record import record

from onsphere.export import export_onnx
from onsphere.table import fit_table

PARTS = ("load", "versions", "attacks", "memory", "kill")
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--before", type=Path, help="a clone of an earlier version")
PARSER.add_argument("--litserve", type=Path, help="a Python that has litserve")
PARSER.add_argument("--only", choices=PARTS)
PARSER.add_argument("--parts", type=Path, help="a file that keeps what each part has found")
PARSER.add_argument("--write", type=Path, help="write the models to this folder and end, as is done for each version")
PARSER.add_argument("--seconds", type=int, default=6, help="of each measurement")
PARSER.add_argument("--requests", type=int, default=100_000, help="to see whether memory grows")
GIVEN = PARSER.parse_args()
SECONDS, CONNECTIONS = GIVEN.seconds, 8
TOLERANCE = 1e-6  # of a wrong answer: rounding depends on how many rows are asked about at once
HERE = Path(__file__).parents[1]
START = """
import sys
from onsphere.service import Settings, serve
serve(Settings(sys.argv[1], port=0), on_ready=lambda address: print(address, flush=True))
"""
CONSTANT = """
import socket, sys, uvicorn
from fastapi import FastAPI, Request
app = FastAPI()
@app.post("/v1/assess")
async def answer(request: Request) -> dict[str, float]:
    await request.body()
    return {"value": 1.0}
@app.get("/readyz")
async def ready() -> dict[str, bool]:
    return {"ready": True}
listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
config = uvicorn.Config(app, http="h11", ws="none", log_level="error", access_log=False)
uvicorn.Server(config).run(sockets=[listener])
"""


LITSERVE = """
import socket, sys, numpy, onnxruntime
import litserve
class Api(litserve.LitAPI):
    def setup(self, device):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(sys.argv[1], options)
        self.inputs = [(each.name, "string" in each.type) for each in self.session.get_inputs()]
        self.outputs = [each.name for each in self.session.get_outputs()]
    def decode_request(self, request):
        row = request["rows"][0]
        return {
            name: numpy.array([[row[name]]], dtype=object if text else numpy.float64) for name, text in self.inputs
        }
    def predict(self, fed):
        return self.session.run(None, fed)
    def encode_response(self, found):
        return {name: numpy.asarray(values).tolist() for name, values in zip(self.outputs, found)}
if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    server = litserve.LitServer(Api(api_path="/v1/assess"), accelerator="cpu", healthcheck_path="/readyz")
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="error", num_api_servers=1)
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
    """A service in its own process, of this clone or of another one."""

    def __init__(self, path, *, clone=HERE, code=START, python=sys.executable):
        self.path, self.clone, self.code, self.python = path, clone, code, python

    def __enter__(self):
        for end in ("", "-wal", "-shm"):
            Path(f"{self.path}.sqlite{end}").unlink(missing_ok=True)
        more = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{self.clone}/src",
            "ONSPHERE_RATE": "0",
        }  # earlier versions' own
        script = self.path.parent / "serve_it.py"  # some start further processes, which import it
        script.write_text(self.code)
        command, env = [str(self.python), str(script), str(self.path)], {**os.environ, **more}
        self.run = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
            cwd=self.clone,
            start_new_session=True,
        )
        self.url = self.run.stdout.readline().strip()
        for _ in range(600):
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/readyz", timeout=60).status_code == 200:
                    return self
            time.sleep(0.1)
        raise RuntimeError(f"{self.path} did not start.")

    def __exit__(self, *_):
        self.run.send_signal(signal.SIGTERM)
        try:
            self.run.wait(10)
        except subprocess.TimeoutExpired:  # as the version before may after an attack
            self.run.kill()
            self.run.wait()
        with suppress(ProcessLookupError):  # LitServe leaves processes behind
            os.killpg(self.run.pid, signal.SIGKILL)
        self.run.stdout.close()


def wrk(url, bodies, seconds, connections, folder):
    script = folder / "ask.lua"
    quoted = ",\n".join("'" + body + "'" for body in bodies)
    script.write_text(
        f"local bodies = {{{quoted}}}\nlocal n = 0\n"
        'request = function() n = n + 1; return wrk.format("POST", "/v1/assess", '
        '{["Content-Type"] = "application/json"}, bodies[n % #bodies + 1]) end\n'
    )
    options = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "--latency", "-s", str(script), url]
    text = subprocess.run(["wrk", *options], capture_output=True, text=True, check=True).stdout
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    shares = {
        share: float(number) * units[unit] for share, number, unit in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s)", text)
    }
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])
    if not rate:  # nobody was answered, which took at least so long
        shares = dict.fromkeys(shares, 1e3 * seconds)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    broken = re.search(r"Socket errors: (.*)", text)
    return {
        "requests/s": rate,
        "p50 ms": shares["50"],
        "p99 ms": shares["99"],
        "refused": int(refused[1]) if refused else 0,
        "socket errors": broken[1] if broken else "none",
    }


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


def measure_load(path, rows, expected, connections, folder):
    """Measure this version, with one more client that compares its answers with those of the model."""
    with Served(path) as served:
        stop = start_asking(served.url, rows, expected, 1)
        figures = wrk(served.url, list_bodies(rows), SECONDS, connections, folder)
        found = stop()
    asked = {"file": path.name, "seconds": SECONDS, "connections": connections}
    return {**asked, **figures, "checked": found["asked"], "wrong": found["wrong"]}


def list_bodies(rows):
    return [json.dumps({"rows": [row]}) for row in rows[:50]]


def write_models(folder):
    """Write the model and its graph, and return the fit."""
    fit = fit_table(table(1000, 0), ["price"], backbone="kernel")
    summary = {"data": "made up", **fit.summary()}
    fit.model.save(folder / "model.onsphere", summary=summary)
    graph = folder / "model.onnx"
    export_onnx(fit.model, graph, X=table(500, 1).drop(columns="price"), coverage=fit.coverage, summary=summary)
    return fit


def write_graph(folder, name, clone):
    """Return the graph of a version, which may not read that of another one."""
    (folder / name).mkdir()
    env = {**os.environ, "PYTHONPATH": f"{clone}/src"}
    subprocess.run([sys.executable, __file__, "--write", str(folder / name)], env=env, check=True)
    return folder / name / "model.onnx"


def compare_versions(graphs, rows, folder, versions):
    """Measure the ONNX graph on each version in turn: one row at 8 and 32 connections, and a thousand rows at 4."""
    many = [json.dumps({"rows": (rows * 2)[:1000]})]
    kinds = [("one row", list_bodies(rows), 8), ("one row", list_bodies(rows), 32), ("1,000 rows", many, 4)]
    found = []
    for name, clone in versions.items():
        with Served(graphs[name], clone=clone) as served:
            wrk(served.url, kinds[0][1], 2, 8, folder)
            for kind, bodies, connections in kinds:
                asked = {"version": name, "request": kind, "connections": connections}
                found.append({**asked, **wrk(served.url, bodies, SECONDS, connections, folder)})
    with Served(folder / "none", code=CONSTANT) as served:
        asked = {"version": "FastAPI on h11, a constant", "request": "one row", "connections": 8}
        found.append({**asked, **wrk(served.url, kinds[0][1], SECONDS, 8, folder)})
    if GIVEN.litserve is not None:
        with Served(graphs["now"], code=LITSERVE, python=GIVEN.litserve) as served:
            for kind, bodies, connections in kinds[:2]:
                asked = {"version": "LitServe, nothing stored", "request": kind, "connections": connections}
                found.append({**asked, **wrk(served.url, bodies, SECONDS, connections, folder)})
    return found


def compare_figures(found):
    """Return the ratios that are to hold, of this version to the one before and to calm."""
    rate = {(row["version"], row["request"], row["connections"]): row["requests/s"] for row in found["versions"]}
    ratios = {
        f"{request} at {connections} connections, times the version before": round(
            rate["now", request, connections] / rate["before", request, connections], 2
        )
        for version, request, connections in rate
        if version == "before"
    }
    slowest = {(row["version"], row["connections"]): row["p99 ms"] for row in found["versions"]}
    other = slowest.get(("LitServe, nothing stored", 32))
    if other is not None:
        ratios["p99 at 32 connections, times LitServe's"] = round(slowest["now", 32] / other, 2)
    under_attack = [row["p99 to calm"] for row in found.get("attacks", ()) if row["version"] == "now"]
    return ratios | ({"largest p99 under attack, times calm": max(under_attack)} if under_attack else {})


BODIES = {
    "16 MiB of []": ("/v1/assess", b'{"rows":[' + b"[]," * (5 * 2**20) + b"[]]}", "application/json"),
    "400,000 names": ("/v1/assess", b"a," * 400_000 + b"b", "text/csv"),
    "50,000 rows": ("/v1/assess", b"size,rooms,shop,new\n" + b"0.5,3,a,true\n" * 50_000, "text/csv"),
    "1 MiB of labels": ("/v1/labels", b'{"labels":[' + b"[]," * 345_000 + b"[]]}", "application/json"),
}


def send_again_and_again(served, done, path, body, media_type):
    with httpx.Client(base_url=served.url, timeout=2 * SECONDS) as client:
        while not done.is_set():
            with suppress(httpx.TransportError):
                client.post(path, content=body, headers={"content-type": media_type})


def label_again_and_again(served, done):
    rows = [{"size": 0.5, "rooms": 3, "shop": "a", "new": True, "id": place} for place in range(1_000)]
    labels = [{"key": place, "value": 1.0} for place in range(1_000)]
    with httpx.Client(base_url=served.url, timeout=2 * SECONDS) as client:
        while not done.is_set():
            with suppress(httpx.TransportError):
                client.post("/v1/assess?key=id", json={"rows": rows})
                client.post("/v1/labels", json={"labels": labels})


def lock_store(served, done):
    with closing(sqlite3.connect(f"{served.path}.sqlite", isolation_level=None, timeout=60)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        done.wait()


def measure_attacks(graphs, rows, folder, versions):
    """Measure the single rows of one client, calm and while another one attacks again and again."""
    found = []
    attacks = {
        name: partial(send_again_and_again, path=path, body=body, media_type=media_type)
        for name, (path, body, media_type) in BODIES.items()
    }
    attacks |= {"1,000 labels": label_again_and_again, "a locked store": lock_store}
    for version, clone in versions.items():
        graph = graphs[version]
        with Served(graph, clone=clone) as served:
            calm = wrk(served.url, list_bodies(rows), SECONDS, 1, folder)
        for name, attack in {"none": None, **attacks}.items():
            figures = calm if attack is None else measure_under_attack(graph, rows, folder, clone, attack)
            ratio = round(figures["p99 ms"] / calm["p99 ms"], 1)
            found.append({"version": version, "attack": name, **figures, "p99 to calm": ratio})
    return found


def measure_under_attack(graph, rows, folder, clone, attack):
    with Served(graph, clone=clone) as served:
        done = threading.Event()
        thread = threading.Thread(target=attack, args=(served, done))
        thread.start()
        time.sleep(1)
        figures = wrk(served.url, list_bodies(rows), SECONDS, 1, folder)
        done.set()
        thread.join()
        return figures


def measure_memory(graph, rows, folder):
    """Measure how far the memory of the service and its child grows over many requests, after the first tenth."""
    with Served(graph) as served:
        process, n_asked, sizes = psutil.Process(served.run.pid), 0, []
        while n_asked < GIVEN.requests:
            n_asked += wrk(served.url, list_bodies(rows), SECONDS, 32, folder)["requests/s"] * SECONDS
            if n_asked >= GIVEN.requests / 10:
                sizes.append(sum(each.memory_info().rss for each in [process, *process.children(recursive=True)]))
        return {"requests": round(n_asked), "growth": sizes[-1] / sizes[0] - 1}


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
    return {"acknowledged": len(found["stored"]), "lost": len(set(found["stored"]) - kept)}


def write_results(found):
    if not {"load", "versions"} <= set(found):
        return
    kill, memory = found.get("kill"), found.get("memory")
    record(
        "service_load",
        about="`onsphere serve`, one worker, asked by wrk on the same machine, one row per request, a kernel model of "
        "a table of 1,000 rows; SQLite holds each assessment before it is answered. At the same time one more client "
        "compares its answers with those of the model in its own process, to "
        f"{TOLERANCE:g}: the model itself answers a row alone and among others with a difference of up to 2e-7. The "
        "load average tells how many other processes wanted the cores before anything was asked.",
        rows=found["load"],
        **({"acknowledged_before_kill_9": kill["acknowledged"], "lost_by_kill_9": kill["lost"]} if kill else {}),
        side_by_side=found["versions"],
        **({"attacks": found["attacks"]} if "attacks" in found else {}),
        **({"memory_growth": memory["growth"], "memory_requests": memory["requests"]} if memory else {}),
        load_average_before=round(found["load average"], 1),
        **compare_figures(found),
    )


def main():
    if GIVEN.write is not None:
        write_models(GIVEN.write)
        return
    versions = ({} if GIVEN.before is None else {"before": GIVEN.before.resolve()}) | {"now": HERE}
    load_before = os.getloadavg()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fit = write_models(folder)
        native, graph = folder / "model.onsphere", folder / "model.onnx"
        graphs = {version: write_graph(folder, version, clone) for version, clone in versions.items()}
        new = table(500, 1).drop(columns="price")
        rows, expected = new.to_dict(orient="records"), fit.model.assess(new, coverage=fit.coverage).to_dict()
        asked = [(native, CONNECTIONS), (native, 4 * CONNECTIONS), (graph, CONNECTIONS)]
        measures = {
            "load": lambda: [measure_load(path, rows, expected, n_clients, folder) for path, n_clients in asked],
            "versions": lambda: compare_versions(graphs, rows, folder, versions),
            "attacks": lambda: measure_attacks(graphs, rows, folder, versions),
            "memory": lambda: measure_memory(graph, rows, folder),
            "kill": lambda: count_lost(native, rows, expected),
        }
        found = json.loads(GIVEN.parts.read_text()) if GIVEN.parts is not None and GIVEN.parts.exists() else {}
        found.setdefault("load average", load_before)
        for part in PARTS if GIVEN.only is None else [GIVEN.only]:
            started = time.monotonic()
            found[part] = measures[part]()
            if GIVEN.parts is not None:
                GIVEN.parts.write_text(json.dumps(found))
            for row in found[part] if isinstance(found[part], list) else [found[part]]:
                print(part, row, flush=True)
            print(f"{part} took {time.monotonic() - started:.0f} s", flush=True)
    write_results(found)


if __name__ == "__main__":
    main()
