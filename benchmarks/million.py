"""One million rows calibrated and turned into intervals and decisions, against numpy sorting as many numbers."""

import time

import numpy as np
from _record import record

from onsphere import AcceptShare
from onsphere.calibration import RegressionCalibration

rng = np.random.default_rng(0)
N = 1_000_000
value, sigma = rng.normal(size=(N, 1)), rng.exponential(size=(N, 1))
residual, uncertainty = sigma * rng.normal(size=(N, 1)), sigma[:, 0] ** 2
spread = np.ones(1)


def sort():
    np.sort(residual[:, 0])


def calibrate_and_decide():
    calibration = RegressionCalibration.measure(residual, sigma, uncertainty, spread)
    calibration.interval(value, sigma, coverage=0.9)
    _ = uncertainty <= AcceptShare(0.95).threshold(calibration)


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


pairs = np.array([(seconds(sort), seconds(calibrate_and_decide)) for _ in range(15)])
ratio = float(np.median(pairs[:, 1] / pairs[:, 0]))

record(
    "million",
    about="One million rows, one output, from what a backbone has predicted: calibrate, intervals at 90 % and "
    "accept/reject, against `numpy.sort` of one million numbers; alternating, median of 15. The goal is a ratio of at "
    "most 2.",
    rows=[
        {"what": "numpy.sort", "ms": 1000 * float(np.median(pairs[:, 0]))},
        {"what": "calibrate, intervals, decisions", "ms": 1000 * float(np.median(pairs[:, 1]))},
    ],
    ratio=ratio,
    goal_met="yes" if ratio <= 2 else "NO",
)
