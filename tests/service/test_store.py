"""The store: records, the alarm that workers share, and a database that is down."""

from dataclasses import replace

import numpy as np
import pytest

from onsphere.calibration import Calibration
from onsphere.drift import DriftMonitor
from onsphere.service import monitor_state
from onsphere.service import store as store_module
from onsphere.service.labels import Label, name_key


@pytest.mark.parametrize("rows_between", [7, 5_000])
def test_two_workers_raise_the_alarm_that_one_monitor_would(url, facts, monkeypatch, rows_between, open_store, helpers):
    monkeypatch.setattr(monitor_state, "_ROWS_BETWEEN", rows_between)
    rng = np.random.default_rng(0)
    scores = [rng.choice(facts.calibration, 3) for _ in range(50)]
    missed = [rng.choice(facts.missed, 3) + (0.3 if step > 30 else 0.0) for step in range(50)]
    workers = [open_store(url), open_store(url)]
    for step, (values, novel) in enumerate(zip(scores, missed, strict=True)):
        workers[rng.integers(2)].write([helpers.record(facts, values, str(step), missed=novel)])
    rows = Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed)
    alone = DriftMonitor(rows, alpha=0.01)
    alone.update(np.concatenate(scores), missed=np.concatenate(missed))
    for worker in [*workers, open_store(url)]:
        drift = worker.read_live(facts)["drift"]
        assert drift["log_capital"] == alone.log_capital
        assert (drift["alarmed_at"], drift["rows_seen"]) == (alone.alarmed_at, 150)
        assert drift["alarmed_by"] == alone.alarmed_by == "novelty"
        assert drift["watched"] == ["uncertainty", "novelty"]
        worker.close()


def test_a_large_request_is_watched_in_slices_with_the_same_result(url, facts, monkeypatch, open_store, helpers):
    monkeypatch.setattr(monitor_state, "_ROWS_OF_SLICE", 40)
    rng = np.random.default_rng(0)
    sizes = [0, 3, 100, 40, 0, 37, 200]
    scores = [rng.choice(facts.calibration, size) for size in sizes]
    missed = [rng.choice(facts.missed, size) + (0.3 if step == 6 else 0.0) for step, size in enumerate(sizes)]
    first, second = open_store(url), open_store(url)
    first.catch_up(facts)
    for step, (values, novel) in enumerate(zip(scores, missed, strict=True)):
        given = helpers.record(facts, values, str(step), at=1e9 + step)
        first.write([replace(given, missed=novel)])
    alone = DriftMonitor(Calibration(facts.calibration, np.zeros(len(facts.calibration)), missed=facts.missed))
    after = np.append(
        alone.log_capital, alone.update(np.concatenate(scores), missed=np.concatenate(missed)).log_capital
    )
    seen = []
    while not first.catch_up(facts):
        seen.append(first._monitor._monitor.n_seen)
    assert seen == [40, 80, 120, 160, 200, 240, 280, 320, 360]
    for store in (first, second):
        while not store.catch_up(facts):
            pass
        live = store.read_live(facts)
        assert live["drift"]["log_capital"] == alone.log_capital
        assert (live["drift"]["alarmed_at"], live["drift"]["alarm_time"]) == (alone.alarmed_at, 1e9 + 6)
        assert [point["log_capital"] for point in live["points"]] == after[np.cumsum(sizes)].tolist()


def test_a_monitor_passes_over_requests_of_another_model(url, facts, other_facts, open_store, helpers):
    first, second = open_store(url), open_store(url)
    first.catch_up(facts)
    second.write([helpers.record(other_facts, 0.1)])
    assert first.catch_up(facts)
    assert first.read_live(facts)["drift"]["rows_seen"] == 0


def test_a_reset_in_the_middle_of_a_request_forgets_all_of_it(url, facts, monkeypatch, open_store, helpers):
    monkeypatch.setattr(monitor_state, "_ROWS_OF_SLICE", 40)
    store = open_store(url)
    store.write([helpers.record(facts, np.full(100, 0.1))])
    assert not store.catch_up(facts)
    store.reset(facts)
    assert store.catch_up(facts)
    store.write([helpers.record(facts, [0.1, 0.2])])
    assert store.read_live(facts)["drift"]["rows_seen"] == 2


def test_the_monitor_of_a_model_without_an_input_frame_watches_its_uncertainty(url, facts, open_store, helpers):
    store, plain = open_store(url), replace(facts, missed=None, sha256="plain")
    store.write([helpers.record(plain, [9.0] * 50)])
    live = store.read_live(plain)
    assert live["drift"]["alarmed_by"] == "uncertainty"
    assert live["drift"]["watched"] == ["uncertainty"]
    assert live["points"][0]["missed"] is None


def test_rows_without_a_score_are_not_watched(url, facts, open_store, helpers):
    store = open_store(url)
    store.write([helpers.record(facts, [0.1, np.nan, 0.1], missed=[0.2, 0.2, np.nan])])
    live = store.read_live(facts)
    assert live["drift"]["rows_seen"] == 1
    assert (live["points"][0]["uncertainty"], live["points"][0]["missed"]) == (0.1, 0.2)


def test_tables_of_an_older_version_get_their_new_columns(url, facts, open_store, helpers):
    open_store(url).check()
    helpers.query(url, "ALTER TABLE onsphere_assessments DROP COLUMN missed")
    helpers.query(url, "ALTER TABLE onsphere_monitors DROP COLUMN alarm_time")
    store = open_store(url)
    store.write([helpers.record(facts, 0.1)])
    assert store.read_live(facts)["points"][0]["missed"] is not None


def test_the_log_is_bounded(url, facts, monkeypatch, open_store, helpers):
    monkeypatch.setattr(monitor_state, "_ROWS_BETWEEN", 5)
    store = open_store(url, keep=10)
    for step in range(40):
        store.write([helpers.record(facts, 0.1, str(step))])
        store.catch_up(facts)
    requests = [int(name) for (name,) in helpers.query(url, "SELECT request FROM onsphere_assessments ORDER BY id")]
    assert requests[-10:] == list(range(30, 40))
    assert len(requests) <= 10 + 5
    assert store.read_live(facts)["drift"]["rows_seen"] == 40


def test_rows_with_and_without_keys_are_written_together(url, facts, open_store, helpers):
    store = open_store(url)
    keyed = {"answers": [("A1", 0.9, "{}", None)]}
    store.write([helpers.record(facts, 0.1, "1", **keyed), helpers.record(facts, 0.2, "2")])
    store.write([helpers.record(facts, 0.1, "3", **keyed), helpers.record(facts, 0.2, "4")])
    assert store.read_live(facts)["drift"]["rows_seen"] == 3  # that of A1 once


def test_a_request_that_is_sent_again_is_written_once(url, facts, open_store, helpers):
    store, named = open_store(url), {"idempotency": ("a", "code")}
    assert store.write([helpers.record(facts, 0.1, **named), helpers.record(facts, 0.1, **named)]) == [True, True]
    again, other = store.write(
        [helpers.record(facts, 0.1, **named), helpers.record(facts, 0.1, idempotency=("a", "another"))]
    )
    assert again is True
    assert other.status == 422
    assert store.read_live(facts)["drift"]["rows_seen"] == 1


def test_a_model_without_calibration_has_no_monitor(url, facts, open_store, helpers):
    store, plain = open_store(url), replace(facts, calibration=None, missed=None, sha256="plain")
    assert store.write([helpers.record(plain, 0.1)]) == [True]
    assert store.catch_up(plain)
    store.reset(plain)
    live = store.read_live(plain)
    assert (live["drift"], len(live["points"])) == (None, 1)


def test_labels_are_read_by_whole_requests(url, facts, monkeypatch, open_store, helpers):
    monkeypatch.setattr(store_module, "_LABELS_READ", 3)
    store = open_store(url)
    answers = [(name_key(key), 0.9, "[[1.0], [0.0], [2.0]]", "[]") for key in range(4)]
    store.write([helpers.record(facts, np.full(4, 0.1), answers=answers)])
    for request, keys in (("first", [0, 1]), ("second", [2, 3])):
        labels = [Label(key, name_key(key), [1.5]) for key in keys]
        assert len(store.write_labels(store.match_labels(labels), request)["taken"]) == 2
    first = store.read_labels(facts.sha256, 0)
    assert [request for _, request, *_ in first] == ["first"] * 2
    assert [request for _, request, *_ in store.read_labels(facts.sha256, first[-1][0])] == ["second"] * 2
    others = store.match_labels([Label(9, name_key(9), [1.0]), Label(0, name_key(0), [1.0])])
    assert [reason for _, reason, _ in others] == ["unknown", "labelled_already"]


def test_a_reset_reaches_all_workers(url, facts, open_store, helpers):
    first, second = open_store(url), open_store(url)
    first.write([helpers.record(facts, [9.0] * 50)])
    assert first.read_live(facts)["drift"]["alarm"]
    second.reset(facts)
    first.write([helpers.record(facts, 0.01)])
    live = first.read_live(facts)
    assert live["drift"]["rows_seen"] == 1
    # What led to the alarm that was ended is drawn no more.
    assert [point["log_capital"] is None for point in live["points"]] == [True, False]


def test_each_model_has_a_monitor_of_its_own(url, facts, other_facts, open_store, helpers):
    store = open_store(url)
    store.write([helpers.record(facts, [9.0] * 50), helpers.record(other_facts, 0.1), helpers.record(facts, 9.0)])
    assert store.read_live(facts)["drift"]["rows_seen"] == 51
    assert store.read_live(other_facts)["drift"]["rows_seen"] == 1
    assert not store.read_live(other_facts)["drift"]["alarm"]
    assert open_store(url, alpha=0.5).read_live(facts)["drift"]["rows_seen"] == 0


def test_a_worker_that_is_behind_does_not_write_over_another(url, facts, other_facts, monkeypatch, open_store, helpers):
    behind, ahead = open_store(url), open_store(url)
    behind.write([helpers.record(facts, 0.1)])
    monkeypatch.setattr(monitor_state, "_ROWS_BETWEEN", 1)
    ahead.write([helpers.record(facts, 0.1), helpers.record(facts, 0.1)])
    behind.write([helpers.record(other_facts, 0.1)])
    assert open_store(url).read_live(facts)["drift"]["rows_seen"] == 3
    behind.write([helpers.record(facts, 0.1)])
    assert behind.read_live(facts)["drift"]["rows_seen"] == 4


def test_rows_without_a_score_are_kept_but_not_monitored(url, facts, open_store, helpers):
    store = open_store(url)
    store.write([helpers.record(facts, [np.nan, np.inf, 0.1]), helpers.record(facts, [np.nan])])
    live = store.read_live(facts)
    assert live["drift"]["rows_seen"] == 2
    assert [point["uncertainty"] for point in live["points"]] == [0.1, None]


def test_a_failed_write_keeps_nothing_and_leaves_the_monitor(url, facts, open_store, helpers):
    store = open_store(url)
    store.write([helpers.record(facts, 0.1)])
    with pytest.raises(ValueError, match="serialize"):
        store.write([helpers.record(facts, 0.1), helpers.record(facts, 0.1, rejected=[{"a": object()}])])
    with pytest.raises(AttributeError):
        store.reset(None)
    store.write([helpers.record(facts, 0.1)])
    assert len(store.read_live(facts)["points"]) == 2
    assert store.read_live(facts)["drift"]["rows_seen"] == 2


def test_the_last_minute_is_counted(url, facts, open_store, helpers):
    store, now = open_store(url), 1e9
    store.write([helpers.record(facts, [0.1, 0.2], at=now - age) for age in (0.5, 1.0, 30.5, 59.0, 100.0)])
    minute = store.read_live(facts, now=now)["minute"]
    assert minute["requests_per_second"] == pytest.approx(2 / 10)  # of the last ten seconds
    assert minute["rows_per_second"] == pytest.approx(4 / 10)
    assert minute["accepted"] == 1.0
    assert minute["requests"][-1] == 1.0
    assert sum(minute["requests"]) * 2 == 4
    assert store.read_live(facts, now=now + 1000)["minute"]["accepted"] is None


def test_times_are_written_while_requests_come(url, facts, monkeypatch, open_store, helpers):
    monkeypatch.setattr(store_module, "_MAX_UNTIMED", 2)
    store, late = open_store(url), helpers.record(facts, 0.1)
    for _ in range(2):
        store.write([replace(late, started=late.started - 5.0)])
    before = helpers.query(url, "SELECT seconds FROM onsphere_assessments ORDER BY id")
    store.write([late])
    after = helpers.query(url, "SELECT seconds FROM onsphere_assessments ORDER BY id")
    assert all(then[0] < now[0] for then, now in zip(before, after, strict=False))


def test_only_the_latest_of_many_requests_are_counted(url, facts, monkeypatch, open_store, helpers):
    monkeypatch.setattr(store_module, "_MAX_COUNTED", 4)
    store, now = open_store(url), 1e9
    store.write([helpers.record(facts, 0.1, at=now - age) for age in (5.0, 4.0, 3.0, 2.0, 1.0)])
    minute = store.read_live(facts, now=now)["minute"]
    assert minute["requests_per_second"] == pytest.approx(1.0)
    assert len(minute["requests"]) == 2


def test_a_database_that_is_down_does_not_stop_answers(postgres, running, helpers):
    service = running(store=postgres.url)
    assert service.assess(helpers.row).json()["recorded"] is True
    postgres.stop()
    try:
        assert service.assess(helpers.row).json()["recorded"] is False
        ready = service.http.get("/readyz")
        assert ready.status_code == 503
        assert "PostgreSQL" in ready.json()["store"]
        live = service.http.get("/v1/live").json()
        assert live["store"]["working"] is False
        assert service.http.post("/v1/reset").status_code == 503
        assert "onsphere_store_working 0.0" in service.http.get("/metrics").text
        late = running(store=postgres.url)
        assert late.assess(helpers.row).json()["recorded"] is False
    finally:
        postgres.start()
    for each in (service, late):
        helpers.until(lambda each=each: each.http.get("/readyz").status_code == 200)
        assert each.assess(helpers.row).json()["recorded"] is True
