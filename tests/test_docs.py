"""The documentation: every block of code runs, what is shown is what comes out, and the site builds strictly."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "results" not in path.relative_to(DOCS).parts)
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
# Commands of a shell that are shown and cannot be run in a test.
NOT_RUN = ("pip install", "make ")


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def skeleton(text: str) -> str:
    """Text without its numbers, spaces and rules: these differ between machines and widths of screens."""
    return re.sub(r"[-\d.,%\s─━┏┓┗┛┡┩┳┻╇┴└┘┃│]+", " ", text).strip()


def run_python(code: str, page: Path, namespace: dict[str, object]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, page.name, "exec"), namespace)
    return said.getvalue()


def run_shell(code: str) -> str:
    from typer.testing import CliRunner

    from onsphere.cli import app

    said = ""
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith(NOT_RUN):
            continue
        program, *arguments = shlex.split(line, comments=True)
        assert program == "onsphere", f"a command that the tests cannot run: {line}"
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
        assert result.exit_code == 0, f"{line}: {result.output}"
        said += result.output
    return said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    said = ""
    for language, code in blocks(page):
        match language:
            case "python":
                said = run_python(code, page, namespace)
            case "bash":
                said = run_shell(code)
            case "text":  # what the block before it prints, or a part of it
                assert skeleton(code) in skeleton(said), f"shown:\n{code}\nprinted:\n{said}"
            case _:
                pytest.fail(f"{page.name} has a block of {language or 'no language'}, which the tests do not know")


def test_options_on_the_pages_exist():
    from typer.main import get_command

    from onsphere.cli import app

    known = {
        option
        for command in get_command(app).commands.values()
        for it in command.params
        for option in (*it.opts, *it.secondary_opts)
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


def test_links_in_the_site_lead_somewhere(site):
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        for link in re.findall(r"""(?:href|src)=["']?([^"' >]+)""", page.read_text()):
            if re.match(r"[a-z]+:|#|data:", link):
                continue
            goal = (page.parent / link.split("#")[0].split("?")[0]).resolve()
            assert goal.exists(), f"{page.relative_to(site)} links to {link}"


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


class TestPicturesShowWhatIsSaid:
    @pytest.fixture(autouse=True)
    def _scripts(self, monkeypatch):
        monkeypatch.syspath_prepend(str(DOCS / "pictures"))
        for name in ("style", "example", "problem", "lift", "calibration"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    def test_first_page(self):
        import problem

        said, x = problem.answer(), problem.GRID
        width = said.upper - said.lower
        quiet, noisy = (x > 0) & (x < 2), (x > 3.5) & (x < 5)
        beyond = x > problem.DOMAIN[1] + 1
        assert width[noisy].mean() > 2 * width[quiet].mean()
        assert width[beyond].mean() > 2 * width[noisy].mean()
        assert not said.accepted[beyond].any()
        assert said.accepted[quiet].all()

    def test_lift(self):
        import lift

        shares = {name: lift.recovered(embedding, n=5000) for name, embedding in lift.EMBEDDINGS.items()}
        assert abs(shares["Lift"] - 1).max() < 0.03
        assert shares["Duplicate"][-1] < 0.01

    def test_calibration(self):
        import calibration

        plain, calibrated = calibration.plain_and_calibrated(calibration.ratios(4000))
        assert abs(calibrated - calibration.ASKED).max() < 0.06
        assert abs(plain - calibration.ASKED).max() > 0.2


def test_citation():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= set(cited)
    from onsphere import __version__

    assert cited["version"] == __version__
