"""The engine: running seeds, keeping them, writing results, and the errors."""

import errno
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from onsphere import InvalidInputError, MissingExtraError
from reproduction import EXPERIMENTS, PRESETS, Claim, experiment, reproduce
from reproduction.experiment import Deviation, choose_device, load_experiment, make_row


@pytest.fixture
def fake(monkeypatch):
    """An experiment that takes no time; `seen` lists what it was asked to measure."""

    def measure(settings, seed, *, data, device, checkpoints, on_progress):
        made.seen.append((settings, seed, data, device))
        on_progress(1, 2, "half-way")
        return {"score": settings["start"] + seed, "pair": (1, 2)}

    def draw(runs):
        figure, ax = plt.subplots()
        ax.plot([run["score"] for run in runs])
        return {"scores": figure}

    made = SimpleNamespace(
        TITLE="A title",
        ABOUT="\nWhat was done.\n",
        DEVIATIONS=[Deviation("one way", "another", "no time")],
        PRESETS={name: {"n_seeds": 2, "start": start} for name, start in (("quick", 1.0), ("cpu", 10.0))},
        measure=measure,
        tabulate=lambda runs: [make_row(1.5, [run["score"] for run in runs], method="HCM", of="|x|"), {"more": None}],
        check_claims=lambda runs: [Claim("It grows", True, "1 to 2"), Claim("It falls", False, "1 to 2")],
        draw=draw,
        seen=[],
    )
    monkeypatch.setattr(experiment, "load_experiment", lambda name: made)
    return made


def seeds_of(made):
    return [seed for _, seed, _, _ in made.seen]


# --- written results ---


def test_a_run_writes_table_facts_and_figures(fake, tmp_path):
    result = reproduce("toy", out=tmp_path / "new" / "folder")
    assert [path.name for path in result.files] == ["toy.md", "toy.json", "toy-scores.png"]
    assert all(path.parent == result.folder and path.stat().st_size > 0 for path in result.files)
    assert result.files[2].read_bytes().startswith(b"\x89PNG")
    facts = json.loads(result.files[1].read_bytes())
    assert facts["command"] == "python -m reproduction toy --preset quick --seeds 2"
    assert facts["settings"] == {"start": 1.0}
    assert facts["rows"] == result.rows
    assert facts["claims"][1] == {"text": "It falls", "holds": False, "figures": "1 to 2", "ours": False}
    assert facts["figures"] == ["toy-scores.png"]
    assert facts["versions"]["torch"] == torch.__version__
    kept = [json.loads((result.folder / name).read_bytes()) for name in facts["runs"]]
    assert kept == result.runs
    assert [run["score"] for run in kept] == [1.0, 2.0]


def test_the_markdown_can_be_read(fake, tmp_path):
    text = reproduce("toy", out=tmp_path).files[0].read_text(encoding="utf-8")
    assert text.startswith("# A title\n\nWhat was done.\n\n![toy-scores.png](toy-scores.png)\n")
    assert "- **holds**: It grows (1 to 2)\n- **does not hold**: It falls (1 to 2)\n" in text
    assert "| method | of | paper | ours | ± (seeds) | agrees? | more |\n| --- |" in text
    assert "| HCM | \\|x\\| | 1.5 | 1.5 | 0.5 | yes | – |\n| – | – | – | – | – | – | – |" in text
    assert "`python -m reproduction toy --preset quick --seeds 2`; 2 seed(s)" in text


def test_a_given_encoder_is_a_setting(fake, tmp_path):
    fake.PRESETS["quick"]["encoder"] = "words"
    reproduce("text", n_seeds=1, encoder=tmp_path, out=tmp_path)
    assert fake.seen[0][0]["encoder"] == str(tmp_path)
    assert f"--seeds 1 --encoder {tmp_path}`" in (tmp_path / "text.md").read_text()


def test_what_is_written_has_the_rights_of_any_file(fake, tmp_path):
    mask = os.umask(0o022)
    try:
        result = reproduce("toy", out=tmp_path)
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in result.files} == {0o644}


def test_figures_are_not_left_open(fake, tmp_path):
    plt.close("all")
    reproduce("toy", out=tmp_path)
    assert plt.get_fignums() == []


@pytest.mark.parametrize(
    ("paper", "ours", "agrees"),
    [
        (None, [1.0], "–"),
        (1.0, [1.09, 1.09], "yes"),
        (1.0, [1.11, 1.11], "no"),
        (-1.0, [-0.95], "yes"),
        (1.0, [1.0, 2.0], "unclear"),
        (0.0, [0.1], "no"),
    ],
)
def test_agreement_is_ten_percent_and_unclear_within_two_deviations(paper, ours, agrees):
    row = make_row(paper, ours, method="HCM")
    assert row == {
        "method": "HCM",
        "paper": paper,
        "ours": pytest.approx(np.mean(ours)),
        "± (seeds)": pytest.approx(np.std(ours)),
        "agrees?": agrees,
    }


def test_agreement_within_so_many_points():
    assert make_row(90.0, [87.5], within=3.0)["agrees?"] == "yes"
    assert make_row(90.0, [86.5], within=3.0)["agrees?"] == "no"


# --- kept seeds ---


def test_what_is_done_is_not_done_again(fake, tmp_path):
    first = reproduce("toy", out=tmp_path)
    told = []
    second = reproduce("toy", n_seeds=3, out=tmp_path, on_progress=lambda *what: told.append(what))
    assert seeds_of(fake) == [0, 1, 2]
    assert second.runs[:2] == first.runs
    assert told == [
        (1, 3, "seed 0 was run before"),
        (2, 3, "seed 1 was run before"),
        (2, 3, "seed 2: starts"),
        (2.5, 3, "seed 2: half-way"),
        (3, 3, "written"),
    ]
    assert len(reproduce("toy", n_seeds=1, out=tmp_path).runs) == 1


def test_a_stopped_run_continues(fake, tmp_path):
    measure = fake.measure

    def stop(settings, seed, **options):
        if seed == 1:
            raise KeyboardInterrupt
        return measure(settings, seed, **options)

    fake.measure = stop
    with pytest.raises(KeyboardInterrupt):
        reproduce("toy", out=tmp_path)
    fake.measure = measure
    assert len(reproduce("toy", out=tmp_path).runs) == 2
    assert seeds_of(fake) == [0, 1]


@pytest.mark.parametrize("content", [b"", b'{"score": 1', b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"score": 1}'])
def test_a_broken_run_is_run_again(fake, tmp_path, content):
    good = reproduce("toy", out=tmp_path).runs
    (tmp_path / "runs/toy/quick/seed-1.json").write_bytes(content)
    assert reproduce("toy", out=tmp_path).runs == good
    assert seeds_of(fake) == [0, 1, 1]


def test_other_settings_are_run_and_replace_the_old(fake, tmp_path):
    reproduce("toy", out=tmp_path)
    fake.PRESETS["quick"]["start"] = 5.0
    assert [run["score"] for run in reproduce("toy", out=tmp_path).runs] == [5.0, 6.0]
    assert seeds_of(fake) == [0, 1, 0, 1]


def test_presets_and_experiments_are_kept_apart(fake, tmp_path):
    for name, preset in (("toy", "quick"), ("toy", "cpu"), ("uci", "quick")):
        reproduce(name, preset=preset, n_seeds=1, out=tmp_path)
    assert len(fake.seen) == 3


def test_settings_that_json_changes_are_still_the_same(fake, tmp_path):
    fake.PRESETS["quick"]["sizes"] = (20, 20)
    first, second = reproduce("toy", out=tmp_path), reproduce("toy", out=tmp_path)
    assert len(fake.seen) == 2
    assert first.runs == second.runs
    assert first.runs[0]["pair"] == [1, 2], "a fresh run is told of as it would be read back"


def test_a_run_cannot_forge_its_settings(fake, tmp_path):
    fake.measure = lambda settings, seed, **_: {"score": 1.0, "settings": "mine", "seed": 7}
    run = reproduce("toy", n_seeds=1, out=tmp_path).runs[0]
    assert (run["seed"], run["settings"]) == (0, {"start": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_cannot_hold_is_not_written(fake, tmp_path, value):
    fake.measure = lambda settings, seed, **_: {"score": value}
    with pytest.raises(ValueError, match="JSON"):
        reproduce("toy", out=tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- files that cannot be written ---


def test_a_full_disk_leaves_no_half_file_and_keeps_what_was_finished(fake, tmp_path, monkeypatch):
    write = Path.write_bytes

    def full(path, content):
        if "seed-1" in path.name:
            write(path, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InvalidInputError, match=r"seed-1\.json\. Got: No space left on device\. Nothing there was"):
        reproduce("toy", out=tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["seed-0.json"]
    monkeypatch.undo()
    monkeypatch.setattr(experiment, "load_experiment", lambda name: fake)
    assert len(reproduce("toy", out=tmp_path).runs) == 2
    assert seeds_of(fake) == [0, 1, 1]


def test_a_file_where_a_folder_should_be(fake, tmp_path):
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(InvalidInputError, match=r"Expected to write .*seed-0\.json"):
        reproduce("toy", out=tmp_path)


def test_a_folder_where_a_run_should_be(fake, tmp_path):
    (tmp_path / "runs/toy/quick/seed-0.json").mkdir(parents=True)
    with pytest.raises(InvalidInputError, match=r"Expected to write .*seed-0\.json"):
        reproduce("toy", out=tmp_path)
    assert [path.name for path in (tmp_path / "runs/toy/quick").iterdir()] == ["seed-0.json"]


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_out_that_is_a_file(fake, tmp_path, out):
    (tmp_path / "file").write_text("something of value")
    with pytest.raises(InvalidInputError, match=r"Expected a folder to write to as 'out'\. Got .*Choose another\."):
        reproduce("toy", out=tmp_path / out)
    assert fake.seen == []
    assert (tmp_path / "file").read_text() == "something of value"


def test_out_without_the_right_to_write_is_found_before_the_work(fake, tmp_path, monkeypatch):
    def reject(**_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", reject)
    with pytest.raises(InvalidInputError, match=r"Permission denied\. Choose another\."):
        reproduce("toy", out=tmp_path)
    assert fake.seen == []


# --- arguments ---


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"name": "tois"}, r"The 'name' parameter of reproduce must be one of 'toy', .*Got 'tois' instead\."),
        ({"name": None}, r"'name' parameter"),
        (
            {"preset": "fast"},
            r"The 'preset' parameter of reproduce must be one of 'quick', 'cpu', 'paper'\. Got 'fast'",
        ),
        ({"n_seeds": 0}, r"The 'n_seeds' parameter of reproduce must be an int in \[1, inf\)\. Got 0 instead\."),
        ({"n_seeds": 1.5}, r"'n_seeds' parameter"),
        ({"n_seeds": True}, r"'n_seeds' parameter"),
        (
            {"device": "abacus"},
            r"The 'device' parameter of reproduce must be 'auto' or a device .*Got 'abacus' instead",
        ),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_done(fake, tmp_path, asked, message):
    with pytest.raises(InvalidInputError, match=message):
        reproduce(**{"name": "toy", "out": tmp_path / "out", **asked})
    assert fake.seen == []
    assert not (tmp_path / "out").exists()


def test_devices(monkeypatch):
    assert choose_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"


def test_data_and_device_reach_the_experiment(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path / "from-environment"))
    reproduce("toy", n_seeds=1, device="cpu", out=tmp_path)
    reproduce("toy", preset="cpu", n_seeds=1, device="cpu", data=str(tmp_path / "given"), out=tmp_path)
    assert [(data.name, device) for _, _, data, device in fake.seen] == [("from-environment", "cpu"), ("given", "cpu")]


@pytest.mark.parametrize("package", ["torch", "skorch", "matplotlib"])
def test_a_missing_package_is_named_before_the_work(monkeypatch, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'toy' needs {package}\. .* pip install -e '\.\[reproduction\]'"):
        reproduce("toy", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- every experiment ---


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_run_by_the_engine(name):
    module = load_experiment(name)
    assert module.TITLE
    assert module.ABOUT.strip()
    assert tuple(module.PRESETS) == PRESETS
    for settings in module.PRESETS.values():
        assert settings["n_seeds"] >= 1
        json.dumps(settings, allow_nan=False)
    assert module.PAPER
    assert all(callable(getattr(module, step)) for step in ("measure", "tabulate", "check_claims", "draw"))
