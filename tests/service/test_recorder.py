"""The process that writes records."""

import asyncio
import os
import pickle
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from onsphere.export.deployed import make_trial_row
from onsphere.service import Settings
from onsphere.service import recorder as recorder_module
from onsphere.service.answers import FaultError, StoreError
from onsphere.service.child import ChildError
from onsphere.service.recorder import OpenStore, Recorder, open_store


@asynccontextmanager
async def start(facts, url, *, before=lambda recorder: None, **given):
    """Start a recorder on a store; it is stopped at the end."""
    given = {"store_timeout": 60.0, "trial_timeout": 300.0, **given}
    recorder = Recorder(Settings("m.onsphere", store=url, **given))
    recorder.watch([facts])
    before(recorder)
    await recorder.start()
    try:
        yield recorder
    finally:
        await recorder.stop()


def write(recorder, record):
    return recorder.write(pickle.dumps(record), record.facts.sha256)


@pytest.fixture
def records(facts, helpers):
    """Make a record, whose facts the process of the store knows."""
    return lambda scores=0.1: helpers.record(facts, scores)


async def until(true):
    end = time.monotonic() + 120
    while not true():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.02)


def pause(recorder):
    """Stop the process of the store, and return what lets it go on."""
    number = recorder._child._process.pid
    os.kill(number, signal.SIGSTOP)
    return lambda: os.kill(number, signal.SIGCONT)


def test_waiting_records_share_a_transaction(tmp_path, facts, records):
    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}") as recorder:
            calls, plain = [], recorder._child.run

            async def count(task, *arguments, **options):
                if task is OpenStore.write:
                    calls.append(len(arguments[0]))
                return await plain(task, *arguments, **options)

            recorder._child.run = count
            assert set(await asyncio.gather(*(write(recorder, records()) for _ in range(300)))) == {True}
            assert calls == [200, 100]
            return await recorder.do(OpenStore.read_live)

    assert asyncio.run(run())["drift"]["rows_seen"] == 300


def test_records_that_were_handed_over_before_the_stop_are_written(tmp_path, facts, records, helpers):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"

    async def run():
        async with start(facts, url) as recorder:
            written = [asyncio.create_task(write(recorder, records())) for _ in range(5)]
            await asyncio.sleep(0)
        assert await asyncio.gather(*written) == [True] * 5
        assert await write(recorder, records()) is False  # later

    asyncio.run(run())
    assert helpers.query(url, "SELECT COUNT(*) FROM onsphere_assessments") == [(5,)]


def test_a_store_that_is_down_is_tried_again(tmp_path, facts, records):
    folder = tmp_path / "later"

    async def run():
        async with start(facts, f"sqlite:///{folder / 's.sqlite'}") as recorder:
            assert "unable to open" in recorder.trouble
            assert await write(recorder, records()) is False
            with pytest.raises(StoreError, match="unable to open"):
                await recorder.do(OpenStore.catch_up)
            folder.mkdir()
            await until(lambda: recorder.trouble is None)
            assert await write(recorder, records()) is True

    asyncio.run(run())


def test_records_beyond_the_queue_fail(tmp_path, facts, records, monkeypatch):
    monkeypatch.setattr(recorder_module, "_MAX_WAITING", 20)

    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}") as recorder:
            found = await asyncio.gather(*(write(recorder, records()) for _ in range(21)))
            assert found == [True] * 20 + [False]

    asyncio.run(run())


def test_tables_with_unknown_content_are_reported(tmp_path, facts, records, open_store, helpers):
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    open_store(url).write([records()])
    helpers.query(url, "UPDATE onsphere_monitors SET state = '{}'")

    async def run():
        async with start(facts, url) as recorder:
            assert await write(recorder, records()) is False
            assert "cannot be read: Expected a state" in recorder.trouble

    asyncio.run(run())


def test_a_task_that_fails_is_survived(tmp_path, facts, records):
    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}") as recorder:
            with pytest.raises(StoreError, match="cannot be read") as caught:
                await recorder.do(OpenStore.run, len)  # a store has no length
            assert isinstance(caught.value.__cause__, FaultError)
            await until(lambda: recorder.trouble is None)
            assert await write(recorder, records()) is True

    asyncio.run(run())


def test_a_silent_store_keeps_answers_waiting_once(tmp_path, facts, records):
    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}", store_timeout=0.3) as recorder:
            await until(lambda: recorder.trouble is None)
            go_on = pause(recorder)
            first, second = (asyncio.create_task(write(recorder, records())) for _ in range(2))
            assert [await first, await second] == [False, False]
            assert recorder.trouble == "The store has not answered for 0.3 s."
            assert await write(recorder, records()) is False  # at once
            go_on()
            await until(lambda: recorder.trouble is None)
            assert await write(recorder, records()) is True

    asyncio.run(run())


def test_a_store_that_does_not_come_back_is_started_again(tmp_path, facts, records, monkeypatch):
    monkeypatch.setattr(recorder_module, "_STORE_SECONDS", 0.5)

    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}", store_timeout=0.3) as recorder:
            await until(lambda: recorder.trouble is None)
            assert await write(recorder, records()) is True
            before = recorder._child._process.pid
            pause(recorder)
            with pytest.raises(StoreError, match="was late") as caught:
                await recorder.do(OpenStore.read_live)
            assert isinstance(caught.value.__cause__, ChildError)
            await until(lambda: recorder.trouble is None)
            assert recorder._child._process.pid != before
            await until(lambda: recorder.trouble is None)
            return await recorder.do(OpenStore.read_live)  # of the model that it was told of again

    assert asyncio.run(run())["drift"]["rows_seen"] == 1


def test_the_end_does_not_wait_for_a_store_that_does_not_come_back(tmp_path, facts, monkeypatch):
    monkeypatch.setattr(recorder_module, "_STORE_SECONDS", 0.2)

    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}", store_timeout=0.1) as recorder:
            pause(recorder)
        assert recorder._child._process is None

    asyncio.run(run())


def test_rows_have_their_turn_while_the_monitor_catches_up(tmp_path, facts, records):
    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}") as recorder:
            assert await write(recorder, records(np.full(2_250, 0.1)))
            order = []
            while not await recorder.do(OpenStore.catch_up):
                order.append("slice")
                if len(order) == 2:
                    asyncio.create_task(write(recorder, records())).add_done_callback(lambda _: order.append("row"))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
            assert order == ["slice", "slice", "row", "slice", "slice"]
            return await recorder.do(OpenStore.read_live)

    assert asyncio.run(run())["drift"]["rows_seen"] == 2_251


def test_a_task_has_longer_than_an_answer_waits(tmp_path, facts, records):
    async def run():
        async with start(facts, f"sqlite:///{tmp_path / 's.sqlite'}", store_timeout=0.05) as recorder:
            await until(lambda: recorder.trouble is None)
            go_on = pause(recorder)
            task = asyncio.create_task(recorder.do(OpenStore.catch_up))
            await until(lambda: recorder.trouble is not None)
            assert await write(recorder, records()) is False  # at once
            assert not task.done()
            go_on()
            assert await task is True
            await until(lambda: recorder.trouble is None)

    asyncio.run(run())


def test_an_answer_waits_a_limited_time_for_its_record(running, helpers):
    service = running(store_timeout=0.3)
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])
    go_on = pause(service.service.recorder)
    assert service.assess(helpers.row).json()["recorded"] is False
    assert service.http.get("/readyz").status_code == 503
    assert service.http.get("/v1/live").json()["store"]["reason"] == "The store has not answered for 0.3 s."
    go_on()
    helpers.until(lambda: service.assess(helpers.row).json()["recorded"])


def test_the_process_answers_as_its_parent_asks(tmp_path, facts, records):
    opened, about = open_store(Settings("m.onsphere", store=f"sqlite:///{tmp_path / 's.sqlite'}"), 5.0)
    assert about is None
    opened.watch([facts])
    given = records(0.1)
    given.last_rows, given.facts = {**make_trial_row(facts), "size": np.array([1e6])}, None
    assert opened.write([(pickle.dumps(given), facts.sha256)]) == [True]
    assert opened.catch_up()
    assert opened.read_live()["drift"]["outside"] == ["size"]
    opened.reset()
    assert opened.read_live()["drift"]["outside"] == []
    opened.watch([replace(facts, calibration=None)])
    assert opened.write([(pickle.dumps(records()), facts.sha256)]) == [True]
    assert opened.read_live()["drift"] is None
    assert opened.run(lambda store, number: number, 7) == 7
    opened.run(lambda store: store.close())
