"""How many files one array visits on its way through fit, calibrate and assess."""

import sys
from pathlib import Path

import numpy as np
import pytest

import onsphere
from onsphere import HCMRegressor

ROOT = str(Path(onsphere.__file__).parent)


def list_files(work):
    """Return the files of onsphere whose functions run."""
    files = set()

    def remember(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ROOT):
            files.add(frame.f_code.co_filename.removeprefix(ROOT))

    before = sys.getprofile()
    sys.setprofile(remember)
    try:
        work()
    finally:
        sys.setprofile(before)
    return files


FRAMES = {
    *("/models/frames.py", "/models/noise.py", "/models/novelty.py", "/sphere/kernel.py", "/sphere/scores.py"),
    "/calibration/shape.py",
}


@pytest.mark.parametrize("frames", ["target", "all"])
@pytest.mark.parametrize("step", ["fit", "calibrate", "assess"])
def test_a_step_visits_at_most_eight_files_and_six_for_the_other_frames(step, frames):
    X = np.random.default_rng(0).normal(size=(100, 2))
    model = HCMRegressor(random_state=0, frames=frames).fit(X[:60], X[:60, 0]).calibrate(X[60:], X[60:, 0])
    arguments = (X,) if step == "assess" else (X + 1, X[:, 0])
    files = list_files(lambda: getattr(model, step)(*arguments))
    assert "/models/base.py" in files
    assert len(files - FRAMES) <= 8, sorted(files)
