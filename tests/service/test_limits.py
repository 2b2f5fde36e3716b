"""What one client can take: sizes, rates, times and memory, on real sockets."""

import json
import socket
import threading
import time

import httpx
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st
from uvicorn.protocols.http.h11_impl import H11Protocol

from onsphere import InvalidInputError
from onsphere.service import hashed, new_key
from onsphere.service.keys import Keys
from onsphere.service.limits import Rates
from onsphere.service.protocol import TimedProtocol
from onsphere.service.settings import Settings, is_loopback

HEAD = b"POST /v1/assess HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d"


def connected(service):
    return socket.create_connection(("127.0.0.1", service.port), timeout=120)


def all_of(connection):
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def test_a_body_that_says_it_is_too_large_is_refused(running):
    service = running(max_body=1000)
    answer = service.http.post("/v1/assess", content=b"x" * 1001, headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert "1,000 bytes" in answer.json()["detail"]


def test_a_body_that_turns_out_too_large_is_refused(running):
    service = running(max_body=1000)
    parts = (b" " * 100 for _ in range(1000))
    answer = service.http.post("/v1/assess", content=parts, headers={"content-type": "application/json"})
    assert answer.status_code == 413


def test_a_gigabyte_is_answered_and_not_held(running, given):
    import resource

    service, before = running(read_timeout=300.0), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = b" " * 2**20
    answer = service.http.post(
        "/v1/assess", content=(part for _ in range(1024)), headers={"content-type": "application/json"}, timeout=300
    )
    assert answer.status_code == 413
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB
    assert service.assess(given.row).status_code == 200


def test_a_client_that_asks_before_it_sends_is_told_at_once(running):
    service = running(max_body=1000, read_timeout=60.0)
    with connected(service) as connection:
        connection.sendall(HEAD % 5000 + b"\r\nExpect: 100-continue\r\n\r\n")
        started = time.monotonic()
        assert b" 413 " in all_of(connection)
    assert time.monotonic() - started < 50


def test_large_bodies_share_one_memory(running, given):
    service = running(max_body=1000, read_timeout=60.0)
    waiting = [connected(service) for _ in range(8)]
    for connection in waiting:
        connection.sendall(HEAD % 1000 + b"\r\n\r\n" + b" " * 990)
    given.until(lambda: service_held(service) >= 8 * 990)
    answer = service.http.post("/v1/assess", content=b" " * 300, headers={"content-type": "application/json"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    for connection in waiting:
        connection.close()
    given.until(lambda: service_held(service) == 0)
    assert service.assess(given.row).status_code == 200


def service_held(service):
    """Bytes of bodies that the limits count."""
    layer = service.app.middleware_stack
    while not hasattr(layer, "_held"):
        layer = getattr(layer, "_app", None) or layer.app
    return layer._held


def test_a_body_that_does_not_come_is_not_waited_for(running):
    service = running(read_timeout=0.5)
    with connected(service) as connection:
        connection.sendall(HEAD % 50 + b"\r\n\r\n{")
        assert b" 408 " in all_of(connection)


def test_headers_without_end_are_cut_off(running, given):
    assert issubclass(TimedProtocol, H11Protocol)  # also where httptools is installed, which would take them all
    service = running()
    with connected(service) as connection, pytest.raises(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000_000)
    assert service.assess(given.row).status_code == 200


def test_headers_that_do_not_come_are_not_waited_for(running, given):
    service = running(read_timeout=0.5)
    with connected(service) as silent, connected(service) as slow, connected(service) as second:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        second.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b'"ok"' not in received:
            received += second.recv(65536)
        second.sendall(b"GET /hea")  # of the next request on the same connection
        for connection in (silent, slow, second):
            with pytest.raises((ConnectionResetError, AssertionError)):  # closed, by a reset or an end
                assert connection.recv(1)
    assert service.assess(given.row).status_code == 200


def test_a_client_that_goes_away_is_no_fault(running, given, logs):
    service = running()
    with connected(service) as connection:
        connection.sendall(HEAD % 50 + b"\r\n\r\n{")
        time.sleep(0.2)
    given.until(lambda: [line for line in logs if line.get("status") == 408])
    assert not [line for line in logs if line["event"] == "fault"]


def test_an_answer_that_is_not_taken_is_given_up(running, given):
    service = running(read_timeout=3.0)
    rows = json.dumps({"rows": [given.row] * 20_000}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", service.port))
        connection.sendall(HEAD % len(rows) + b"\r\n\r\n" + rows)
        connections = service.server.server_state.connections
        given.until(lambda: service.service.metrics.rows.labels("yes")._value.get() == 20_000)
        given.until(lambda: not connections)
    assert service.assess(given.row).status_code == 200


def test_an_answer_that_is_taken_slowly_is_given(running, given):
    service = running(read_timeout=3.0)
    rows = json.dumps({"rows": [given.row] * 20_000}).encode()
    with connected(service) as connection:
        connection.sendall(HEAD % len(rows) + b"\r\nConnection: close\r\n\r\n" + rows)
        given.until(lambda: service.service.metrics.rows.labels("yes")._value.get() == 20_000)
        received = 0
        while part := connection.recv(2**17):
            received += len(part)
            time.sleep(0.1)
    assert received > 2_000_000


def test_a_client_may_not_ask_too_often(running, given):
    key = new_key()
    service = running(rate=2.0, api_keys=(hashed(key),))
    with_key = {"x-api-key": key}
    found = [service.assess(given.row, headers=with_key).status_code for _ in range(5)]
    assert found[:4] == [200] * 4
    answer = service.assess(given.row, headers=with_key)
    if answer.status_code != 429:  # a slow machine refills in between
        answer = next(
            a for a in (service.assess(given.row, headers=with_key) for _ in range(50)) if a.status_code == 429
        )
    assert answer.headers["retry-after"] == "1"
    assert service.http.get("/v1/model").status_code == 401  # another client has a bucket of its own
    assert service.http.get("/healthz").status_code == 200


def test_no_more_is_worked_on_than_allowed(running, given, monkeypatch):
    service, go_on = running(max_concurrent=1), threading.Event()
    plain = service.service.served.engine.assess

    def slow(rows, *, coverage):
        go_on.wait(120)
        return plain(rows, coverage=coverage)

    monkeypatch.setattr(service.service.served.engine, "assess", slow)
    first = []
    thread = threading.Thread(
        target=lambda: first.append(httpx.post(f"{service.url}/v1/assess", json={"rows": [given.row]}, timeout=120))
    )
    thread.start()
    given.until(lambda: service.service._n_working == 1)
    assert service.assess(given.row).status_code == 503
    go_on.set()
    thread.join()
    assert first[0].status_code == 200


@drawn(
    rate=st.floats(0.1, 100),
    gaps=st.lists(st.floats(0, 2), min_size=1, max_size=60),
)
def test_no_stretch_of_time_has_more_than_the_rate(rate, gaps):
    rates, now, passed = Rates(rate), 0.0, []
    for gap in gaps:
        now += gap
        if rates.wait("a", now=now) == 0:
            passed.append(now)
    size = max(1.0, 2 * rate)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= size + rate * (passed[last] - passed[first]) + 1e-6


def test_waiting_as_long_as_told_is_enough():
    rates = Rates(4.0)
    now = 0.0
    for _ in range(20):
        wait = rates.wait("a", now=now)
        if wait:
            now += wait + 1e-9
            assert rates.wait("a", now=now) == 0


def test_clients_are_forgotten_when_there_are_too_many():
    rates = Rates(1.0)
    for client in range(20_000):
        rates.wait(str(client), now=0.0)
    assert len(rates._buckets) == 10_000
    assert Rates(0.0).wait("a", now=0.0) == 0.0


# --- keys and settings ---


def test_keys_come_from_a_file_too(tmp_path):
    first, second = new_key(), new_key()
    path = tmp_path / "keys"
    path.write_text(f"# whom they are for\n\nshop={hashed(first)}\n{hashed(second)}\n")
    keys = Keys(file=path)
    assert keys
    assert keys.name_of(first) == "shop"
    assert keys.name_of(second) == "key 2"
    assert keys.name_of("onsphere-other") is None
    assert keys.name_of(None) is None
    assert keys.name_of("\ud800") is None
    assert not Keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "No such file"), ("# nobody\n", "has none"), ("onsphere-secret", "not the key itself")],
)
def test_a_bad_file_of_keys_is_told_without_repeating_it(tmp_path, text, expected):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=expected) as caught:
        Keys(file=path)
    assert "secret" not in str(caught.value)


def test_settings_go_through_the_environment():
    settings = Settings("m.onsphere", api_keys=("a", "b"), open=True, timeout=2.5, port=1, store="x.sqlite")
    assert Settings.from_environment(settings.to_environment()) == settings
    assert Settings.from_environment({"ONSPHERE_PORT": "7"}, model="m", port=8, timeout=None).port == 8


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "Expected a model"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_PORT": "x"}, "a whole number in ONSPHERE_PORT"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_TIMEOUT": "x"}, "a number in ONSPHERE_TIMEOUT"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_OPEN": "maybe"}, "true or false in ONSPHERE_OPEN"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_WORKERS": "0"}, "'workers' parameter"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_PORT": "70000"}, "'port' parameter"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_ALPHA": "2"}, "'alpha' parameter"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_TIMEOUT": "0"}, "'timeout' parameter"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_RATE": "-1"}, "'rate' parameter"),
    ],
)
def test_bad_settings_are_told(environment, expected):
    with pytest.raises(InvalidInputError, match=expected):
        Settings.from_environment(environment)


def test_addresses_that_only_this_machine_reaches():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
