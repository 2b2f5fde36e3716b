"""What clients may rely on: requests that are counted once, roles, TLS, and headers that come back."""

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from onsphere import HCMRegressor, InvalidInputError, MissingExtraError
from onsphere.export.deployed import open_deployed
from onsphere.service import Settings, create_app, hash_key, make_key, metrics, serve
from onsphere.service.metrics import start_tracing


def count_rows(service):
    service.service._live = (0.0, {})
    return service.http.get("/v1/live").json()["drift"]["rows_seen"]


# --- counted once ---


def test_a_request_that_is_sent_again_with_its_name_is_counted_once(running, helpers):
    service, named = running(), {"idempotency-key": "order 7".replace(" ", "-")}
    answers = [service.assess(helpers.row, headers=named).json() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert answers[0]["recorded"] is True
    assert count_rows(service) == 1
    wrong = service.assess(helpers.far, headers=named)
    assert wrong.status_code == 422
    assert "Idempotency-Key" in wrong.json()["detail"]
    assert count_rows(service) == 1
    assert service.assess(helpers.far, headers={"idempotency-key": "x" * 201}).status_code == 422


def test_a_request_may_ask_not_to_be_counted(running, helpers):
    service = running()
    answer = service.http.post("/v1/assess?record=false", json={"rows": [helpers.far]})
    assert (answer.json()["recorded"], answer.headers["x-recorded"]) == (False, "false")
    assert count_rows(service) == 0
    assert service.http.post("/v1/assess?record=maybe", json={"rows": [helpers.far]}).status_code == 422
    assert 'onsphere_rows_total{accepted="no"} 0.0' in service.http.get("/metrics").text


@pytest.mark.parametrize(
    ("query", "got"),
    [("recrod=false", "recrod"), ("record=false&record=true", "several"), ("Key=id", "Key"), ("key=", "least 1")],
)
def test_options_that_are_unknown_or_come_twice_are_rejected(shared, helpers, query, got):
    answer = shared.http.post(f"/v1/assess?{query}", json={"rows": [helpers.row]})
    assert answer.status_code == 422
    assert got in answer.json()["detail"]


def test_a_name_of_a_request_covers_its_options_and_belongs_to_its_client(running, helpers):
    first, second = make_key(), make_key()
    service = running(api_keys=(f"one {hash_key(first)}", f"two {hash_key(second)}"))
    named = {"idempotency-key": "a", "x-api-key": first}
    assert service.assess(helpers.row, headers=named).json()["recorded"] is True
    other = service.assess(helpers.row, headers=named, params={"coverage": 0.5})
    assert (other.status_code, "options" in other.json()["detail"]) == (422, True)
    assert service.assess(helpers.far, headers={**named, "x-api-key": second}).json()["recorded"] is True
    twice = service.assess(helpers.row, headers=[*named.items(), ("idempotency-key", "b")])
    assert (twice.status_code, "idempotency-key once" in twice.json()["detail"]) == (400, True)


def test_rows_without_a_threshold_are_neither_accepted_nor_rejected(running, logs, helpers):
    service = running("plain")
    assert service.assess([0.1, 0.2]).json()["rows"][0]["accepted"] is None
    text = service.http.get("/metrics").text
    assert 'onsphere_rows_total{accepted="yes"} 0.0' in text
    assert 'onsphere_rows_total{accepted="undecided"} 1.0' in text
    helpers.until(lambda: [line for line in logs if line.get("path") == "/v1/assess"])
    assert [line["accepted"] for line in logs if line.get("path") == "/v1/assess"] == [None]


def test_rows_that_are_sent_twice_are_known_by_their_keys(running, helpers):
    service = running()
    rows = [{**helpers.row, "id": number, "size": number / 10} for number in range(8)]
    for _ in range(5):
        service.assess(*rows, params={"key": "id"})
    assert count_rows(service) == 8
    service.assess({**rows[0], "size": 2.0}, params={"key": "id"})  # another row under a key that was there
    assert count_rows(service) == 9


def test_a_refit_with_the_same_seed_goes_on_with_the_same_monitor(url, tmp_path, open_store, helpers):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = X @ [1.0, 2.0] + 0.1 * rng.normal(size=120)
    facts = []
    for name in ("first", "second"):
        model = HCMRegressor(Ridge(), calibration="split", random_state=0).fit(X, y)
        path = model.save(tmp_path / f"{name}.onsphere", summary={"made": name})
        facts.append(open_deployed(path).facts)
    assert facts[0].sha256 != facts[1].sha256
    store = open_store(url)
    for each in facts:
        store.write([helpers.record(each, [0.1, 0.2])])
    assert store.read_live(facts[1])["drift"]["rows_seen"] == 4
    other = HCMRegressor(Ridge(), calibration="split", random_state=1).fit(X, y).save(tmp_path / "other.onsphere")
    assert store.read_live(open_deployed(other).facts)["drift"]["rows_seen"] == 0


def test_times_include_storing(url, facts, open_store, helpers):
    store = open_store(url)
    late = replace(helpers.record(facts, 0.1), started=helpers.record(facts, 0.1).started - 5.0)
    store.write([late])
    store.check()
    assert store.read_live(facts)["minute"]["seconds_median"] > 5.0


def test_the_time_of_the_alarm_is_kept(url, facts, open_store, helpers):
    store = open_store(url)
    store.write([helpers.record(facts, [0.1], at=1e9)])
    assert store.read_live(facts)["drift"]["alarm_time"] is None
    store.write([helpers.record(facts, [9.0] * 60, at=1e9 + 60)])
    assert store.read_live(facts)["drift"]["alarm_time"] == 1e9 + 60
    assert open_store(url).read_live(facts)["drift"]["alarm_time"] == 1e9 + 60
    store.reset(facts)
    assert store.read_live(facts)["drift"]["alarm_time"] is None


# --- who may do what ---


def test_a_key_may_do_what_its_role_says(running, helpers):
    assess, operate = make_key(), make_key()
    service = running(api_keys=(f"shop {hash_key(assess)} assess", f"boss {hash_key(operate)} operate"))
    for key, status in ((assess, 403), (operate, 200)):
        headers = {"authorization": f"Bearer {key}"}
        assert service.assess(helpers.row, headers=headers).status_code == 200
        for path in ("/v1/reload", "/v1/reset"):
            assert service.http.post(path, headers=headers).status_code == status
    assert service.http.post("/v1/reset").status_code == 401


def test_strangers_see_no_columns_and_no_reasons(running, helpers, tmp_path):
    key = make_key()
    service = running(api_keys=(hash_key(key),), store=str(tmp_path / "none" / "secret.sqlite"))
    shut, known = service.http.get("/readyz"), service.http.get("/readyz", headers={"x-api-key": key})
    assert (shut.status_code, shut.json()) == (503, {"ready": False})
    assert "unable to open" in known.json()["store"]
    assert "rooms" not in service.http.get("/openapi.json").text
    assert "rooms" in service.http.get("/openapi.json", headers={"x-api-key": key}).text


def test_keys_do_not_travel_without_tls(models):
    settings = {"host": "0.0.0.0", "port": 0, "api_keys": (hash_key(make_key()),)}
    with pytest.raises(InvalidInputError, match="Expected TLS"):
        serve(Settings(str(models["array"]), **settings))


def test_the_store_is_for_its_owner_alone(running, helpers):
    service = running()
    service.assess(helpers.row)
    for path in Path(service.service.settings.model).parent.glob("*.sqlite*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


# --- headers and figures ---


def test_names_of_requests_and_traces_come_back(shared, helpers):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = shared.assess(helpers.row, headers={"x-request-id": "order-7", "traceparent": trace})
    assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("order-7", trace)
    assert answer.headers["cache-control"] == "no-store"
    odd = shared.assess(helpers.row, headers={"x-request-id": "a b", "traceparent": "x"})
    assert len(odd.headers["x-request-id"]) == 32
    assert "traceparent" not in odd.headers


def test_requests_in_flight_are_counted(shared):
    assert "onsphere_requests_in_flight 1.0" in shared.http.get("/metrics").text


def test_columns_out_of_range_are_named(running, helpers):
    service = running()
    service.assess(helpers.row)
    assert service.http.get("/v1/live").json()["drift"]["outside"] == []
    service.assess({**helpers.row, "size": 1e6})
    service.service._live = (0.0, {})
    assert service.http.get("/v1/live").json()["drift"]["outside"] == ["size"]


def test_traces_need_their_extra(models, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.instrumentation.fastapi", None)
    with pytest.raises(MissingExtraError, match="telemetry"):
        create_app(Settings(str(models["array"]), store=str(tmp_path / "s.sqlite"), telemetry=True))


def test_the_variables_of_opentelemetry_say_where_traces_go(monkeypatch):
    trace = pytest.importorskip("opentelemetry.trace")
    chosen = []
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    monkeypatch.setattr(trace, "set_tracer_provider", chosen.append)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nowhere")
    with pytest.raises(InvalidInputError, match="nowhere"):
        start_tracing()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    start_tracing()
    chosen[0].shutdown()
    monkeypatch.setattr(metrics, "entry_points", lambda group, name: chosen.append(name) or [])
    for protocol, name in (("http/protobuf", "otlp_proto_http"), ("grpc", "otlp_proto_grpc")):
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        with pytest.raises(InvalidInputError, match="telemetry"):
            start_tracing()
        assert chosen[-1] == name


def test_a_service_writes_its_traces(models, tmp_path, helpers):
    pytest.importorskip("opentelemetry.instrumentation.fastapi")
    where = {"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "prices"}
    with helpers.process(models["array"], "--telemetry", "--store", str(tmp_path / "s.sqlite"), env=where) as run:
        assert run.http.post("/v1/assess", json={"rows": [[0.1, 0.2]]}).status_code == 200
        run.http.close()
        run.terminate()
        written = run.stdout.read()
    assert '"name": "POST /v1/assess"' in written
    assert '"service.name": "prices"' in written


def test_traces_are_sent_if_they_are_asked_for(running, helpers):
    pytest.importorskip("opentelemetry.instrumentation.fastapi")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    service = running(telemetry=True)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert service.assess(helpers.row, headers={"traceparent": parent}).status_code == 200
    helpers.until(lambda: [span for span in spans.get_finished_spans() if span.name == "POST /v1/assess"])
    (span,) = [span for span in spans.get_finished_spans() if span.name == "POST /v1/assess"]
    assert f"{span.context.trace_id:032x}" == parent.split("-")[1]
