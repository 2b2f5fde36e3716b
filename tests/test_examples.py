"""The examples run as they are, on less data, and show what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # the tests run beside each other, one per core

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plain_loop_finds_the_noise(capsys):
    found = example("plain_loop").main(n=800, n_epochs=30)
    assert found["noisy"] > found["quiet"]
    assert "never seen" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Lightning warns of workers, and of torch
def test_a_lightning_module():
    value, uncertainty = example("lightning_module").main(max_epochs=20)
    assert value.shape == (20, 3)
    assert bool((uncertainty >= 0).all())
    assert float(value[:, 0].mean()) == pytest.approx(178.6, abs=15)  # the mean weight, in pounds


@pytest.mark.filterwarnings("ignore")  # the Trainer warns of torch
def test_a_hugging_face_trainer(capsys):
    accuracy, uncertainty = example("huggingface_trainer").main(n=256, max_steps=80)
    assert "replaced the layer 'classifier'" in capsys.readouterr().out
    assert accuracy > 0.9
    assert uncertainty < 0.2


def test_a_frozen_network(tmp_path, monkeypatch):
    monkeypatch.setenv("ONSPHERE_DATA", str(tmp_path))  # random weights
    accuracy, known, strange = example("frozen_resnet").main(n=120)
    assert accuracy > 0.9
    assert strange > known


def test_two_processes_equal_one():
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "two_processes.py")], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.split()[-1]) < 1e-6
