"""Settings from the environment, and API keys."""

import pytest

from onsphere import InvalidInputError
from onsphere.service import hash_key, make_key
from onsphere.service.settings import Keys, Settings, is_loopback


def test_keys_come_from_a_file_too(tmp_path):
    first, second = make_key(), make_key()
    path = tmp_path / "keys"
    path.write_text(f"# whom they are for\n\nshop={hash_key(first)}\n{hash_key(second)}\n")
    keys = Keys(file=path)
    assert keys
    assert keys.find_name(first) == "shop"
    assert keys.find_name(second) == "key 2"
    assert keys.find_name("onsphere-other") is None
    assert keys.find_name(None) is None
    assert keys.find_name("\ud800") is None
    assert not Keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, "No such file"), ("# nobody\n", "has none"), ("onsphere-secret", "not the key itself")],
)
def test_a_bad_keys_file_is_reported_without_quoting_it(tmp_path, text, expected):
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=expected) as caught:
        Keys(file=path)
    assert "secret" not in str(caught.value)


def test_settings_survive_the_environment():
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
def test_bad_settings_are_reported(environment, expected):
    with pytest.raises(InvalidInputError, match=expected):
        Settings.from_environment(environment)


def test_loopback_addresses_are_recognised():
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
