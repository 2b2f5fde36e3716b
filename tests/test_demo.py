"""The demo prints what it should."""

import importlib
import sys

import pytest

from onsphere import MissingExtraError, demo


def test_the_demo_shows_that_the_error_falls(capsys):
    demo.main()
    shown = capsys.readouterr().out
    for words in ("Diabetes", "Digits", "Keep only the rows", "The five least trusted predictions", "90 % interval"):
        assert words in shown
    errors = [float(line.split("│")[3]) for line in shown.splitlines() if "█" in line and "%" not in line.split("│")[3]]
    assert len(errors) == 6
    assert errors[-1] < 0.85 * errors[0]


def test_without_rich_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingExtraError, match=r"onsphere\.demo needs rich\. Install it with"):
        importlib.reload(demo)
