"""The child process: what it does is run here in a thread, and what its parent does with a real one."""

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from onsphere import InvalidInputError
from onsphere.export.deployed import Facts, open_deployed
from onsphere.service import Settings, child, served_model
from onsphere.service.answers import FaultError, RequestError
from onsphere.service.assess import AssessRequest, assess_requests
from onsphere.service.rows import JSON
from onsphere.service.served_model import ServedModel, open_model, replace_calibration

SETTINGS = Settings("m.onsphere", max_rows=100)


def make_child(path):
    return child.Child(open_model, path, path.read_bytes(), SETTINGS, start_timeout=300.0, timeout=300.0)


@pytest.fixture
def talk(monkeypatch):
    """Run a child in a thread, and return what it sends: first of all the facts, or what is wrong with the model."""
    monkeypatch.setattr(child, "_limit", lambda gives_way: None)  # which would hold for all tests
    started = []

    def talk(path, *messages, calibration=None):
        ours, theirs = multiprocessing.Pipe()
        arguments = (theirs, open_model, (path, path.read_bytes(), SETTINGS), False)
        thread = threading.Thread(target=child.run_child, args=arguments)
        thread.start()
        started.append((ours, theirs, thread))
        found = [ours.recv()]
        for message in messages:
            request = AssessRequest(message, JSON, JSON, 0.9, "r", time.perf_counter())
            change = None if calibration is None else (replace_calibration, calibration)
            ours.send((change, assess_requests, (SETTINGS, [request])))
            found += ours.recv()
        return found

    yield talk
    for ours, theirs, thread in started:
        ours.close()
        thread.join()
        theirs.close()


def test_it_answers_until_its_parent_is_gone(models, talk):
    body = json.dumps({"rows": [[0.5, 1.0], [0.1, 0.2]]}).encode()
    facts, reply, error = talk(models["array"], body, b"{")
    assert isinstance(facts, Facts)
    assert len(json.loads(reply.body)) == 2
    assert isinstance(error, RequestError)


def test_it_takes_the_calibration_that_labels_have_changed(models, talk):
    other, body = open_deployed(models["array"]).model, b'{"rows": [[0.5, 1.0]]}'
    plain, wide = (
        json.loads(talk(models["array"], body, calibration=given)[1].body)[0]
        for given in (None, other.update([[0.0, 0.0]] * 20, [9.0] * 20).calibration_)
    )
    assert wide["upper"] - wide["lower"] > plain["upper"] - plain["lower"]


def test_a_file_that_cannot_be_loaded_or_fails_is_told(models, talk, tmp_path, monkeypatch):
    (tmp_path / "broken.onsphere").write_bytes(b"broken")
    (error,) = talk(tmp_path / "broken.onsphere")
    assert isinstance(error, InvalidInputError)
    monkeypatch.setattr(served_model, "make_trial_row", lambda facts: 1 / 0)
    (error,) = talk(models["array"])
    assert "fails on one row: division by zero" in str(error)
    monkeypatch.setattr(served_model, "open_deployed", lambda *_, **__: 1 / 0)
    (error,) = talk(models["array"])
    assert "Got an error: ZeroDivisionError" in str(error)


@pytest.mark.parametrize(
    ("parents", "are_alive"),
    [
        ([7, 7, 1], None),
        ([7, 7, 1], [True]),
        ([1, 1, 1], [True, False]),
    ],  # the last was killed while the process started
)
def test_a_process_ends_when_its_parent_is_gone(monkeypatch, parents, are_alive):
    found, ended = iter(parents), threading.Event()
    starter = are_alive and SimpleNamespace(is_alive=iter(are_alive).__next__)
    monkeypatch.setattr("onsphere._internal.processes.parent_process", lambda: starter)
    monkeypatch.setattr(os, "getppid", lambda: next(found))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    child.exit_with_parent()
    assert ended.wait(60)


def test_a_task_that_fails_says_why_and_the_next_one_runs(monkeypatch):
    monkeypatch.setattr(child, "_limit", lambda gives_way: None)
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=child.run_child, args=(theirs, lambda: ({}, "ready"), (), False))
    thread.start()
    assert ours.recv() == "ready"
    ours.send(((dict.update, {"a": 1}), dict.pop, ("b",)))
    error = ours.recv()
    assert isinstance(error, FaultError)
    assert (str(error), "child.py:" in error.place) == ("KeyError: 'b'", True)
    ours.send((None, dict.pop, ("a",)))
    assert ours.recv() == 1
    ours.close()
    thread.join()
    theirs.close()


def test_what_cannot_be_opened_says_why():
    ours, theirs = multiprocessing.Pipe()
    child.run_child(theirs, lambda: 1 / 0, (), False)
    assert str(ours.recv()) == "ZeroDivisionError: division by zero"


def test_a_process_watches_its_parent(monkeypatch):
    seen = []
    monkeypatch.setattr(child, "exit_with_parent", lambda: seen.append("watch"))
    monkeypatch.setattr(child, "run_child", lambda *arguments: seen.append(arguments))
    child._run_process(1, 2)
    assert seen == ["watch", (1, 2)]


def test_a_file_that_is_being_loaded_is_not_loaded_again(models, tmp_path):
    served = ServedModel(Settings(str(shutil.copy(models["array"], tmp_path)), trial_timeout=300.0))

    async def reload_twice():
        first = asyncio.create_task(served.reload(None))
        await asyncio.sleep(0)
        with pytest.raises(InvalidInputError, match="which is being loaded"):
            await served.reload(None)
        assert await first is None
        return await served.reload(None)

    assert asyncio.run(reload_twice()) is None
    served.live.close()


def test_a_file_that_cannot_be_read_for_long_is_told(models, tmp_path, monkeypatch):
    path = shutil.copy(models["array"], tmp_path)
    served, plain = ServedModel(Settings(str(path), trial_timeout=300.0)), served_model.read_content
    served._settings = Settings(str(path), trial_timeout=0.05)
    monkeypatch.setattr(served_model, "read_content", lambda path: (time.sleep(0.5), plain(path))[1])

    async def reload():
        task = asyncio.create_task(served.reload(None))
        await asyncio.sleep(0.25)
        assert "Got nothing for 0.05 s" in served.trouble
        return await task

    assert asyncio.run(reload()) is None
    assert served.trouble is None
    monkeypatch.setattr(served_model, "read_content", lambda path: 1 / 0)
    with pytest.raises(InvalidInputError, match="Got an error: ZeroDivisionError"):
        asyncio.run(served.reload(None))
    served.live.close()


def test_a_task_whose_process_is_closed_says_so(models):
    process = make_child(models["array"])
    process.start()
    process.wait()

    async def ask():
        os.kill(process._process.pid, signal.SIGSTOP)
        task = asyncio.create_task(process.run(assess_requests, SETTINGS, []))
        while not process.seconds_busy:
            await asyncio.sleep(0.01)
        process.close()
        with pytest.raises(child.ChildError, match="closed"):
            await task

    asyncio.run(ask())


def test_a_process_that_is_closed_while_it_starts_ends(models, monkeypatch):
    process = make_child(models["array"])
    plain = child.Child.wait
    monkeypatch.setattr(child.Child, "wait", lambda self: (plain(self), setattr(self, "_is_over", True)))
    with pytest.raises(child.ChildError, match="closed"):
        asyncio.run(process.run(assess_requests, SETTINGS, []))
    assert process._process is None


@pytest.mark.parametrize("gives_way", [False, True])
def test_memory_has_a_limit(monkeypatch, gives_way):
    limits, nice = [], []
    monkeypatch.setattr(os, "nice", nice.append)
    monkeypatch.setattr(child.resource, "setrlimit", lambda which, limit: limits.append(limit))
    child._limit(gives_way)
    ((soft, hard),) = limits
    assert soft == hard > 2 * 2**30
    assert len(nice) == gives_way


def test_a_model_that_fails_in_one_of_its_processes_leaves_none(models, monkeypatch):
    closed, plain, close = [], child.Child.wait, child.Child.close
    monkeypatch.setattr(child.Child, "wait", lambda self: 1 / 0 if self._opening[2] else plain(self))
    monkeypatch.setattr(child.Child, "close", lambda self: (closed.append(self), close(self)))
    with pytest.raises(ZeroDivisionError):
        ServedModel(Settings(str(models["array"]), trial_timeout=300.0))
    assert [each._process for each in closed] == [None, None]


def test_an_answer_that_nobody_waits_for_is_not_taken_for_the_next(models):
    process = make_child(models["array"])
    process.start()
    process.wait()

    async def ask():
        os.kill(process._process.pid, signal.SIGSTOP)
        first = asyncio.create_task(process.run(assess_requests, SETTINGS, []))
        while not process.seconds_busy:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        request = AssessRequest(b'{"rows": [[0.5, 1.0]]}', JSON, JSON, 0.9, "r", 0.0)
        found = await process.run(assess_requests, SETTINGS, [request])
        process.close()
        return found

    (reply,) = asyncio.run(ask())
    assert len(json.loads(reply.body)) == 1


def test_a_plain_script_may_start_a_service(models, tmp_path):
    """Without a guard around its main part, which a child process would run again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from fastapi.testclient import TestClient\n"
        "from onsphere.service import Settings, create_app\n"
        "app = create_app(Settings(sys.argv[1], trial_timeout=300.0))\n"
        "with TestClient(app, base_url='http://localhost') as client:\n"
        "    print(client.post('/v1/assess', json={'rows': [[0.5, 1.0]]}).status_code)\n"
    )
    model = shutil.copy(models["array"], tmp_path / "model.onsphere")
    done = subprocess.run([sys.executable, str(script), str(model)], capture_output=True, text=True, check=False)
    assert done.stdout == "200\n", done.stderr
