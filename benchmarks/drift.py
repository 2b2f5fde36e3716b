"""Delay of the drift alarm beside a windowed Kolmogorov–Smirnov test, on streams of UCI rows with noise added late."""

import os

import matplotlib.pyplot as plt
import numpy as np
from _record import RESULTS, record
from rich.progress import track
from sklearn.ensemble import ExtraTreesRegressor

from onsphere import HCMRegressor
from onsphere.drift import DriftMonitor
from reproduction.data import UCI_NAMES, load_uci

QUICK = bool(os.environ.get("ONSPHERE_QUICK"))  # a trial of the script; its numbers mean nothing
ALPHA, HORIZON = 0.05, 10_000
N_QUIET, N_STREAMS = (20, 10) if QUICK else (200, 40)
CHANGES, FOLLOWING = (500, 5000), 2000
# Standard deviations of the noise on standardised features; the last is N(0, 5I).
NOISES = {"0.1": 0.1, "0.25": 0.25, "0.5": 0.5, "√5": 5**0.5}
WINDOWS = (50, 200)
MAX_CALIBRATION = 500


def scores_of(model, rows):
    found = model.assess(rows)
    return np.column_stack([found.uncertainty, found.anchor_residual])


def pools(name):
    """Return the scores (u, a) of rows that were not trained on: as they are, and with noise of each size."""
    X, y = load_uci(name)
    rng = np.random.default_rng(0)
    train, held = np.split(rng.permutation(len(y)), [int(0.6 * len(y))])
    Z = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    backbone = ExtraTreesRegressor(100, min_samples_leaf=2, random_state=0)
    model = HCMRegressor(backbone, random_state=0).fit(Z[train], y[train])
    noised = {}
    for label, size in NOISES.items():
        rows = Z[rng.choice(held, 4000)]
        noised[label] = scores_of(model, rows + size * rng.normal(size=rows.shape))
    return scores_of(model, Z[held]), noised


def capital_on_u(calibration, stream, seed):
    return DriftMonitor(calibration[:, 0], random_state=seed).update(stream[:, 0]).log_capital


def capital_on_both(calibration, stream, seed):
    monitor = DriftMonitor(calibration[:, 0], anchor_residuals=calibration[:, 1], random_state=seed)
    return monitor.update(stream[:, 0], anchor_residual=stream[:, 1]).log_capital


def distances(calibrations, streams, window):
    """Return the Kolmogorov–Smirnov distance of the last `window` scores from the calibration; 0 before."""
    n_streams, n_rows = streams.shape
    ranked = np.sort(calibrations, axis=1)
    n = ranked.shape[1]
    # Below, the distance just before each calibration score and at it: with equal scores both are needed.
    below = np.array([np.searchsorted(row, new, side="left") for row, new in zip(ranked, streams, strict=True)])
    upto = np.array([np.searchsorted(row, new, side="right") for row, new in zip(ranked, streams, strict=True)])
    before, at = (
        np.array([np.searchsorted(row, row, side=side) for row in ranked], dtype=np.float32) / n
        for side in ("left", "right")
    )
    # Scores at or below the calibration score i are those with `below` ≤ i, and strictly below it those with
    # `upto` ≤ i; counts of both are kept by their steps.
    steps_at, steps_before = (np.zeros((n_streams, n + 1), dtype=np.float32) for _ in range(2))
    every, result = np.arange(n_streams), np.zeros((n_streams, n_rows), dtype=np.float32)
    for row in range(n_rows):
        steps_at[every, below[:, row]] += 1
        steps_before[every, upto[:, row]] += 1
        if row >= window:
            steps_at[every, below[:, row - window]] -= 1
            steps_before[every, upto[:, row - window]] -= 1
        if row >= window - 1:
            gap_at = np.abs(steps_at[:, :-1].cumsum(axis=1) / window - at).max(axis=1)
            gap_before = np.abs(steps_before[:, :-1].cumsum(axis=1) / window - before).max(axis=1)
            result[:, row] = np.maximum(gap_at, gap_before)
    return result


def draw_streams(rng, clean, n_streams, n_rows):
    """Draw calibrations and streams from the same rows: exchangeable, as long as no noise is added."""
    n_calibration = min(len(clean) // 2, MAX_CALIBRATION)
    return rng.choice(clean, (n_streams, n_calibration)), rng.choice(clean, (n_streams, n_rows))


def find_first_alarms(curves, level):
    reached = np.asarray(curves) >= level
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, np.iinfo(np.int64).max)


def compute_curves(method, calibrations, streams):
    if isinstance(method, int):
        return distances(calibrations[..., 0], streams[..., 0], method)
    return np.array([method(*pair, seed) for seed, pair in enumerate(zip(calibrations, streams, strict=True))])


METHODS = {"monitor u": capital_on_u, "monitor u, a": capital_on_both} | {f"KS {size}": size for size in WINDOWS}


def measure(name):
    rng = np.random.default_rng(1)
    clean, noised = pools(name)
    quiet = draw_streams(rng, clean, N_QUIET, HORIZON)
    levels, false_alarms = {}, {}
    for label, method in METHODS.items():
        curves = compute_curves(method, *quiet)
        highest = curves.max(axis=1)
        levels[label] = -np.log(ALPHA)
        if isinstance(method, int):
            # The test gets the lowest level that a share alpha of these very streams reaches, at most.
            levels[label] = np.nextafter(np.quantile(highest, 1 - ALPHA, method="lower"), np.float32(2))
        false_alarms[label] = float(np.mean(highest >= levels[label]))
    rows, pictured = [], {}
    for change in CHANGES:
        for noise, pool in noised.items():
            calibrations, streams = draw_streams(rng, clean, N_STREAMS, change + FOLLOWING)
            streams[:, change:] = rng.choice(pool, (N_STREAMS, FOLLOWING))
            row = {"set": name, "calibration rows": calibrations.shape[1], "change after": change, "noise": noise}
            for label, method in METHODS.items():
                curves = compute_curves(method, calibrations, streams)
                alarms = find_first_alarms(curves, levels[label])
                delay = float(np.median(alarms[alarms > change] - change))
                row[label] = int(delay) if delay <= FOLLOWING else f"> {FOLLOWING}"
                if label == "monitor u":
                    pictured[change, noise] = curves
            rows.append(row)
            print(row, flush=True)
    return rows, false_alarms, pictured


def measure_small_shifts():
    """Measure how calibration size and time of the change affect a small shift, of normal scores by 0.5."""
    rng = np.random.default_rng(2)
    found = {}
    for n_calibration in (50, 200, 1000):
        for change in (0, *CHANGES):
            curves = []
            for seed in range(N_STREAMS):
                stream = rng.normal(size=change + FOLLOWING)
                stream[change:] += 0.5
                curves.append(
                    DriftMonitor(rng.normal(size=n_calibration), random_state=seed).update(stream).log_capital
                )
            delays = find_first_alarms(curves, -np.log(ALPHA)) - change
            delays = delays[delays > 0]
            share = np.mean(delays <= FOLLOWING)
            median = np.median(delays)
            found[f"normal scores shifted by 0.5, {n_calibration} calibration rows, change after {change}"] = (
                f"median delay {f'{median:.0f}' if median <= FOLLOWING else f'> {FOLLOWING}'}, found within "
                f"{FOLLOWING} rows in {share:.0%}"
            )
    return found


def draw_picture(curves, rows):
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    change = CHANGES[-1]
    steps = np.arange(-200, 400)
    for noise in NOISES:
        left.plot(steps, np.median(curves[change, noise], axis=0)[change - 200 : change + 400], label=noise)
    left.axhline(-np.log(ALPHA), color="black", linestyle="--", linewidth=1)
    left.text(-195, -np.log(ALPHA) + 0.3, f"alarm at log(1/{ALPHA})", fontsize=8)
    left.set(ylim=(-4, 15), xlabel=f"rows since the change, after {change} quiet ones", ylabel="log capital (median)")
    left.set_title("power_plant")
    left.legend(title="noise", fontsize=8)
    shown = [row for row in rows if row["change after"] == change and row["noise"] == "0.5"]
    for index, label in enumerate(METHODS):
        delays = [row[label] if isinstance(row[label], int) else FOLLOWING for row in shown]
        right.bar(np.arange(len(shown)) + 0.2 * index, delays, width=0.2, label=label)
    right.set_xticks(np.arange(len(shown)) + 0.3, [row["set"] for row in shown], rotation=20)
    right.set(yscale="log", ylabel="median delay (rows)", title=f"noise 0.5 after {change} quiet rows")
    right.legend(fontsize=8)
    figure.savefig(RESULTS / "drift.png", dpi=130)


rows, false_alarms, pictured = [], {}, {}
for name in track(UCI_NAMES, "drift"):
    found, false_alarms[name], curves = measure(name)
    rows += found
    if name == "power_plant":
        pictured = curves
RESULTS.mkdir(exist_ok=True)
draw_picture(pictured, rows)
record(
    "drift",
    about=f"Median delay, in rows, from the change to the alarm, over {N_STREAMS} streams each; streams that alarmed "
    "before the change are left out. A forest, HCMRegressor(ExtraTreesRegressor(100, min_samples_leaf=2)), is trained "
    "on 60 % of the rows; calibration (at most 500 rows) and stream are drawn with replacement from the others, and "
    "from some row on noise of this standard deviation is added to the standardised features (√5 is N(0, 5I)). The "
    "monitor watches the uncertainty u, or u and the anchor residual a. KS is the two-sample Kolmogorov–Smirnov "
    "distance between the last 50 or 200 uncertainties and those of the calibration, looked at after every row. The "
    f"monitor alarms at alpha = {ALPHA}. KS alarms above the level that at most {ALPHA:.0%} of {N_QUIET} quiet streams "
    f"of {HORIZON} rows of the same set reach. This favours KS: its level has to be simulated, for rows and a "
    "horizon that are known before, and holds for no longer stream, while the monitor's holds for all time.",
    rows=rows,
    **{
        f"false alarms in {HORIZON} quiet rows, {label}": ", ".join(
            f"{name} {found[label]:.3f}" for name, found in false_alarms.items()
        )
        for label in METHODS
    },
    **measure_small_shifts(),
    picture="drift.png",
)
