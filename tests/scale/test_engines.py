import operator
import os
import posixpath
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onsphere.errors import InvalidInputError, MissingExtraError
from onsphere.scale.engines import check_engine, connect, run_locally, run_on_ray


@pytest.mark.parametrize("n_workers", [1, 2])
def test_every_job_is_answered_once(n_workers):
    found = dict(run_locally(operator.neg, range(9), n_workers=n_workers))
    assert found == {number: -number for number in range(9)}


def test_a_worker_that_is_killed_is_an_error_that_names_its_jobs():
    with pytest.raises(InvalidInputError, match=r"killed, at one of 7, 8\. .* use fewer workers.*__main__"):
        list(run_locally(os._exit, [7, 8], n_workers=2))


def test_workers_end_with_the_process_that_started_them(tmp_path):
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom onsphere.scale.engines import run_locally\n"
        "def say_pid_and_sleep(place):\n    Path(place).with_name(str(os.getpid())).touch()\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    list(run_locally(say_pid_and_sleep, [sys.argv[1] + '/0', sys.argv[1] + '/1'], n_workers=2))\n"
    )
    (tmp_path / "run.py").write_text(code)
    (tmp_path / "pids").mkdir()
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "pids")]
    driver = subprocess.Popen(command)
    while len(list((tmp_path / "pids").iterdir())) < 2:
        assert driver.poll() is None
        time.sleep(0.05)
    driver.kill()
    driver.wait()
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
    for address in (None, "ray-head:6379"):
        with connect(address):
            pass
    assert seen == ["local", "ray-head:6379"]


@pytest.mark.filterwarnings("default")
def test_a_cluster_of_its_own_is_closed_in_the_end(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert dict(run_on_ray(posixpath.join, "abc", "x", n_workers=1)) == {"a": "a/x", "b": "b/x", "c": "c/x"}
    assert not ray.is_initialized()


def test_ray_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        next(run_on_ray(operator.mul, [1], 2))
