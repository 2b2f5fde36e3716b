"""Check the documentation: code blocks run and print what is shown, and the site builds strictly."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "results" not in path.relative_to(DOCS).parts)
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
# Shell commands that pages show and a test cannot run.
NOT_RUN = ("pip install", "make ")


def find_blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def strip_numbers(text: str) -> str:
    """Return text without numbers, spaces and table borders, which differ between machines and screen widths."""
    return re.sub(r"[-\d.,%\s─━┏┓┗┛┡┩┳┻╇┴└┘┃│]+", " ", text).strip()


def run_python(code: str, page: Path, namespace: dict[str, object]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, page.name, "exec"), namespace)
    return output.getvalue()


def run_shell(code: str) -> str:
    from typer.testing import CliRunner

    from onsphere.cli import app

    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith(NOT_RUN):
            continue
        program, *arguments = shlex.split(line, comments=True)
        assert program == "onsphere", f"the tests cannot run this command: {line}"
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
        assert result.exit_code == 0, f"{line}: {result.output}"
        printed += result.output
    return printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    printed = ""
    for language, code in find_blocks(page):
        match language:
            case "python":
                printed = run_python(code, page, namespace)
            case "bash":
                printed = run_shell(code)
            case "text":  # the output of the block before, or a part of it
                assert strip_numbers(code) in strip_numbers(printed), f"shown:\n{code}\nprinted:\n{printed}"
            case "py":  # a recipe for another engine, which tests/scale/test_recipes.py runs
                continue
            case _:
                pytest.fail(f"{page.name} has a block in {language or 'no language'}, which the tests cannot check")


def test_options_on_the_pages_exist():
    from typer.main import get_command

    from onsphere.cli import app

    group = get_command(app)
    known = {
        option
        for name in group.list_commands(None)
        for parameter in group.get_command(None, name).params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for page in [*PAGES, ROOT / "README.md"]:
        shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text()))
        assert shown <= known | {"--help"}, page


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_site_builds_strictly_with_all_pages(site):
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        assert (site / "benchmarks" / f"{path.stem}.html").is_file()


def test_site_needs_no_network(site):
    loaded = re.compile(r"""<(?:script|img|iframe|link(?=[^>]*stylesheet))[^>]*(?:src|href)=["']?(?:https?:)?//""")
    styled = re.compile(r"""(?:url\(|@import )["']?(?:https?:)?//""")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not styled.search(sheet.read_text()), sheet


def test_links_in_the_site_point_to_files(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r"""(?:href|src)=["']?([^"' >]+)""", page.read_text()):
            if re.match(r"[a-z]+:|#|data:", link):
                continue
            target = (page.parent / link.split("#")[0].split("?")[0]).resolve()
            assert target.exists(), f"{page.relative_to(site)} links to {link}"


def test_every_public_name_is_in_the_reference(site):
    import onsphere

    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    for name in set(onsphere.__all__) - {"__version__"}:
        assert re.search(rf'id="?onsphere[\w.]*\.{name}"?[ >]', text), name


def test_pictures_have_both_variants_and_a_script():
    shown = {name for page in PAGES for name in re.findall(r"pictures/([\w-]+)-(?:light|dark)\.png", page.read_text())}
    assert shown
    for name in shown:
        for file in (f"{name}-light.png", f"{name}-dark.png", f"{name.removesuffix('-narrow')}.py"):
            assert (DOCS / "pictures" / file).is_file(), file


class TestPicturesShowWhatPagesSay:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _import_scripts(cls):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(DOCS / "pictures"))
            for path in (DOCS / "pictures").glob("*.py"):
                patch.delitem(sys.modules, path.stem, raising=False)
            yield

    @pytest.fixture(scope="class")
    @classmethod
    def network(cls):
        import example

        return example.fit_network()

    @pytest.mark.parametrize("backbone", ["forest", "network"])
    def test_front_page(self, backbone, network):
        import example
        import problem

        model, x = network if backbone == "network" else example.fit_forest(), problem.GRID
        result = model.assess(x[:, None])
        width = result.upper - result.lower
        quiet, noisy = (x > 0) & (x < 2), (x > 3.5) & (x < 5)
        beyond = (x < example.DOMAIN[0] - 0.5) | (x > example.DOMAIN[1] + 0.5)
        assert width[noisy].mean() > 2 * width[quiet].mean()
        assert width[beyond].min() > 3 * width[quiet].max()  # nowhere beyond the data is the band narrow for a moment
        assert width[beyond].mean() > 1.5 * width[noisy].mean()
        assert not result.accepted[beyond].any()
        assert result.accepted[quiet].all()

        # docs/guide/calibration.md quotes this coverage; another processor may train a slightly different network.
        x, y = example.make_rows(20_000, seed=1)
        result = model.assess(x[:, None])
        inside = (result.lower <= y) & (y <= result.upper)
        noisy = (x > example.NOISY[0]) & (x < example.NOISY[1])
        coverage = [100 * inside[rows].mean() for rows in (slice(None), ~noisy, noisy)]
        page = " ".join((DOCS / "guide" / "calibration.md").read_text().split())
        quoted = re.search(rf"of the {backbone} hold (\d+) % .*?: (\d+) % in the quiet .*? (\d+) % in the noisy", page)
        assert coverage == pytest.approx([float(share) for share in quoted.groups()], abs=1.5)

    def test_total(self, network):
        import example
        import total

        measured, x = total.measure_frames(network), total.GRID
        within = (x > example.DOMAIN[0] + 0.2) & (x < example.DOMAIN[1] - 0.2)
        beyond = (x < example.DOMAIN[0] - 0.5) | (x > example.DOMAIN[1] + 0.5)
        noise = example.noise(x)
        assert abs(np.log(measured["noise"] / noise))[within].mean() < 0.2
        assert abs(np.log(measured["target"] / noise))[within].mean() > 0.2
        assert (measured["novelty"][within] == 0).all()
        assert measured["novelty"][beyond].min() > 0.5
        # Doubt begins before novelty does: 13 % of the training rows, those near the edges, get a little of it.
        assert (measured["total"][within] >= measured["noise"][within] * (1 - 1e-9)).all()
        assert np.isclose(measured["total"], measured["noise"])[within].mean() > 0.8
        assert measured["total"][beyond].min() > 2

    def test_novelty(self):
        import novelty

        rows = novelty.make_rows()
        frame, _ = novelty.fit_input_frame(rows)
        page = (DOCS / "guide" / "method.md").read_text()
        assert f"{len(frame.landmarks)} are enough for the picture" in page
        between = np.array([[0.5, 0.25]])  # the crescents
        assert novelty.compute_novelty(frame.measure(between), frame.ordinary)[0] == 0
        assert novelty.compute_novelty(frame.measure(between + 9), frame.ordinary)[0] > 0.99

    def test_lift(self):
        import lift

        shares = {name: lift.recover_sigma(embedding, n=5000) for name, embedding in lift.EMBEDDINGS.items()}
        assert abs(shares["Lift"] - 1).max() < 0.03
        assert shares["Duplicate"][-1] < 0.01

    def test_calibration(self):
        import calibration

        plain, calibrated = calibration.measure_coverage(calibration.compute_ratios(4000))
        alone, _ = calibration.measure_coverage(calibration.compute_ratios(4000, frames="target"))
        assert abs(calibrated - calibration.REQUESTED).max() < 0.06
        assert abs(plain - calibration.REQUESTED).max() < 0.12
        assert abs(alone - calibration.REQUESTED).max() > 0.2


def test_citation_has_the_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= set(citation)
    from onsphere import __version__

    assert citation["version"] == __version__
