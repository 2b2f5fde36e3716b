"""Settings from the environment, and API keys."""

import inspect

import pytest

from onsphere import InvalidInputError
from onsphere.service import hash_key, make_key
from onsphere.service.settings import Settings, is_loopback, read_keys


def test_keys_come_from_a_file_too(tmp_path):
    first, second = make_key(), make_key()
    path = tmp_path / "keys"
    path.write_text(f"# whom they are for\n\nshop={hash_key(first)} assess\n{hash_key(second)}\n")
    assert read_keys(file=path) == {hash_key(first): ("shop", "assess"), hash_key(second): ("key 2", "operate")}
    assert hash_key("\ud800") not in read_keys(file=path)
    assert read_keys() == {}
    path.write_text(f"shop {hash_key(first)}", encoding="utf-8-sig")  # as editors on Windows write it
    assert list(read_keys(file=path)) == [hash_key(first)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "No such file"), ("# nobody\n", "has none"), ("onsphere-secret", "not the key itself")],
)
def test_a_bad_keys_file_is_reported_without_quoting_it(tmp_path, text, expected):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=expected) as caught:
        read_keys(file=path)
    assert "secret" not in str(caught.value)


def test_settings_survive_the_environment(monkeypatch):
    settings = Settings("m.onsphere", api_keys=("a", "b"), open=True, timeout=2.5, port=1, store="x.sqlite")
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings
    assert Settings("m", port=8, timeout=None) != settings
    assert (Settings(port=8).port, Settings(port=None).port, Settings(timeout=None).timeout) == (8, 1, 2.5)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "Expected a model"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_PORT": "x"}, "a valid integer.*ONSPHERE_PORT"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_TIMEOUT": "x"}, "a valid number.*ONSPHERE_TIMEOUT"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_OPEN": "maybe"}, "a valid boolean.*ONSPHERE_OPEN"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_WORKERS": "0"}, "valid 'workers'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_PORT": "70000"}, "valid 'port'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_ALPHA": "2"}, "valid 'alpha'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_TIMEOUT": "0"}, "valid 'timeout'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_WATCH": "-1"}, "valid 'watch'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_GRACE": "inf"}, "valid 'grace'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_FORWARDED_ALLOW_IPS": "10.0.0.1,nginx"}, "Got 'nginx'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_STORE_TIMEOUT": "inf"}, "valid 'store_timeout'"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_READ_TIMOUT": "5"}, "Got ONSPHERE_READ_TIMOUT.*write ONSPHERE_READ_TIMEOUT"),
        ({"ONSPHERE_MODEL": "m", "ONSPHERE_API_KEYS_FILE": "k"}, "Got ONSPHERE_API_KEYS_FILE"),
    ],
)
def test_bad_settings_are_reported(environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInputError, match=expected):
        Settings()


def test_every_option_has_the_name_of_its_variable(monkeypatch):
    from onsphere.cli.serve import serve

    options = {"open" if name == "open_to_all" else name for name in inspect.signature(serve).parameters}
    assert options - {"engine", "address"} == set(Settings.model_fields) - {"api_keys"}
    monkeypatch.setenv("ONSPHERE_KEYS_FILE", "k")
    monkeypatch.setenv("ONSPHERE_ENGINE", "local")
    assert Settings("m").keys_file == "k"


@pytest.mark.parametrize("store", [":memory:", "postgres:/user:secret@host/x", "a?b.sqlite"])
def test_a_store_that_would_be_read_as_another_is_rejected(store):
    with pytest.raises(InvalidInputError, match="Expected a store such as") as caught:
        Settings("m", store=store).store_url  # noqa: B018
    assert "secret" not in str(caught.value)


def test_proxies_are_addresses_networks_or_all():
    assert Settings("m", forwarded_allow_ips="10.0.0.1, 172.28.0.0/16,*").forwarded_allow_ips[-1] == "*"


def test_loopback_addresses_are_recognised():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
