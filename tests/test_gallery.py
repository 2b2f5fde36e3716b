"""The gallery: its pages are made from the recorded figures, and its pictures are small."""

import json
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "gallery"
RESULT = json.loads((ROOT / "benchmarks" / "results" / "gallery.json").read_text())


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gallery

    return gallery


def test_pages_are_made_from_the_figures(gallery):
    made = gallery.write_pages(RESULT)
    assert {path.name: path.read_text() for path in PAGES.glob("*.md")} == made, "Run benchmarks/gallery.py pages."


def test_pictures_are_there_and_small(gallery):
    shown = {name for page in PAGES.glob("*.md") for name in re.findall(r"\]\(([\w-]+\.png)\)", page.read_text())}
    assert shown == {path.name for path in PAGES.glob("*.png")}
    assert max((PAGES / name).stat().st_size for name in shown) < 250_000


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = next(entry["Gallery"] for entry in yaml.safe_load(text)["nav"] if "Gallery" in entry)
    assert {path for page in pages for path in page.values()} == {f"gallery/{path.name}" for path in PAGES.glob("*.md")}


def test_promises_are_judged_by_chance(gallery):
    def judge(coverage, groups=()):
        figures = {"coverage": coverage, "coverage_by_chance": [0.85, 0.95]}
        return gallery.judge_coverage({"figures": figures, "groups": groups})

    assert "**the promise of 90 % does not hold on these rows**" in judge(0.8)
    assert "the promise of 90 % holds." in judge(0.9)
    assert "holds, and more than that" in judge(0.99)
    small = {"group": "Yes", "calibration rows": "12", "calibrated by": "all rows", "covered": "0.25"}
    assert "Yes has 12 calibration rows, too few" in judge(0.9, [small])
