import operator
import os
import posixpath
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onsphere.errors import InvalidInputError, MissingExtraError
from onsphere.scale import engines
from onsphere.scale.engines import check_engine, connect, run_jobs


@pytest.mark.parametrize("n_workers", [1, 2])
def test_every_job_is_answered_once(n_workers):
    found = dict(run_jobs(operator.mul, range(9), -1, n_workers=n_workers))
    assert found == {number: -number for number in range(9)}


def test_an_interrupt_does_not_wait_for_the_jobs_of_others():
    # Each job waits for a signal that never comes, for some seconds.
    jobs = run_jobs(signal.sigtimedwait, [[] for _ in range(20)], 0.7, n_workers=2)
    assert next(jobs) == ([], None)
    with pytest.raises(KeyboardInterrupt):
        jobs.throw(KeyboardInterrupt)
    assert list(jobs) == []


def test_a_worker_watches_its_parent_and_keeps_what_jobs_share(monkeypatch):
    seen = []
    monkeypatch.setattr(engines, "exit_with_parent", lambda: seen.append("watch"))
    monkeypatch.setattr(engines, "_shared", [])
    engines._start_worker(-1)
    assert [engines._work_with_shared(operator.mul, job) for job in (2, 3)] == [-2, -3]
    assert seen == ["watch"]


# Work for processes that import the script which holds it; two jobs wait for each of the others.
SCRIPT = """
import os, sys, time
from pathlib import Path
from onsphere.scale.engines import run_jobs

IS_FIRST = __name__ == "__main__"

def wait_for_others(job, place):
    place = Path(place)
    while IS_FIRST and len(list(place.iterdir())) < 5:
        time.sleep(0.01)
    (place / str(job)).touch()
    return IS_FIRST

def say_pid_and_sleep(job, place):
    Path(place, str(os.getpid())).touch()
    time.sleep(600)

def sleep_elsewhere(job, place):
    if os.environ["FIRST"] == str(os.getpid()):
        time.sleep(0.01)
    else:
        say_pid_and_sleep(job, place)

if __name__ == "__main__":
    os.environ["FIRST"] = str(os.getpid())
    options = {"engine": sys.argv[4], "n_workers": 2}
    for job, answer in run_jobs(globals()[sys.argv[1]], range(int(sys.argv[3])), sys.argv[2], **options):
        print(job, answer)
"""


def start(tmp_path, work, n_jobs, engine="local"):
    (tmp_path / "run.py").write_text(SCRIPT)
    (tmp_path / "pids").mkdir()
    command = [sys.executable, str(tmp_path / "run.py"), work, str(tmp_path / "pids"), str(n_jobs), engine]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_this_process_works_too_and_keeps_nobody_waiting(tmp_path):
    said, _ = start(tmp_path, "wait_for_others", 40).communicate()  # of which this one does none before they did 5
    found = [line.split() for line in said.splitlines()]
    assert sorted(int(job) for job, _ in found) == list(range(40))
    assert found[0] == ["2", "True"]


def test_a_worker_that_is_killed_is_an_error_that_names_its_job():
    message = rf"killed, at one of {re.escape(str(os._exit))}\. .* use fewer workers.*__main__"
    with pytest.raises(InvalidInputError, match=message):
        list(run_jobs(operator.call, [os._exit, *[abs] * 8], 7, n_workers=2))  # this process never takes the first job


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_run_that_is_stopped_does_not_wait_for_the_files_of_others(tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray")
    process = start(tmp_path, "sleep_elsewhere", 100_000, engine)
    while not list((tmp_path / "pids").iterdir()):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)  # not the 600 seconds of a job
    assert said.endswith("KeyboardInterrupt\n")


def test_workers_end_with_the_process_that_started_them(tmp_path):
    driver = start(tmp_path, "say_pid_and_sleep", 2)
    while len(list((tmp_path / "pids").iterdir())) < 2:  # one job for each
        assert driver.poll() is None
        time.sleep(0.05)
    driver.kill()
    driver.communicate()
    for path in (tmp_path / "pids").iterdir():
        while is_running(int(path.name)):  # until the time limit of the test
            time.sleep(0.05)


def is_running(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "spark"}, "engine"),
        ({"n_workers": -1}, "n_workers"),
        ({"n_workers": "2"}, "n_workers"),
        ({"address": "ray-head:6379"}, "Expected no address with the engine local"),
    ],
)
def test_what_says_where_the_work_is_done_is_checked(options, message):
    with pytest.raises(InvalidInputError, match=message):
        check_engine("fit_head", **({"engine": "local", "n_workers": None, "address": None} | options))


def test_a_new_cluster_is_on_this_machine_whatever_the_environment_says(monkeypatch):
    ray = pytest.importorskip("ray")
    seen = []
    monkeypatch.setattr(ray, "init", lambda **options: seen.append(options["address"]))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        for each in (None, address, f"ray://{address}", "auto"):
            with connect(each):
                pass
    assert seen == ["local", address, f"ray://{address}", "auto"]
    with (
        pytest.raises(InvalidInputError, match=f"Expected a Ray cluster at {address}. Got: .*refused"),
        connect(address),
    ):
        pass


def test_ray_may_be_started_by_any_thread(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **_: None)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(engines._initialize, ray, None, 1).result()


@pytest.mark.filterwarnings("default")
def test_a_new_cluster_works_with_this_process_and_is_closed_in_the_end():
    ray = pytest.importorskip("ray")

    def is_elsewhere(job, pid):
        while (
            os.getpid() == pid and job and not ray.is_initialized()
        ):  # or all would be done before the cluster is there
            time.sleep(0.01)
        time.sleep(0.01)
        return os.getpid() != pid

    on_end = signal.getsignal(signal.SIGTERM)
    found = dict(run_jobs(is_elsewhere, range(40), os.getpid(), engine="ray", n_workers=2))
    assert sorted(found) == list(range(40))
    assert not found[0]  # done while the cluster started
    assert set(found.values()) == {True, False}
    assert not ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) == on_end  # and not that of Ray, another function each time


def test_a_new_cluster_for_one_worker_works_alone(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(engines, "_run_on_cluster", lambda *given: given[2:])
    assert run_jobs(posixpath.join, "abc", "x", engine="ray", n_workers=1) == ("x", 1, None)


def test_an_error_while_a_cluster_starts_is_not_lost(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **options: time.sleep(0.1))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "put", lambda shared: shared)
    with pytest.raises(ZeroDivisionError):
        list(run_jobs(operator.truediv, [1], 0, engine="ray", n_workers=2))


def test_ray_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        next(run_jobs(operator.mul, [1], 2, engine="ray"))
