"""The coverage of groups: by class, by predicted value, by time, by the calibration and by every column."""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.testing import assert_allclose
from scipy import stats

from onsphere.report.formatting import format_percent
from onsphere.report.group_coverage import measure_group_coverage, show_group_coverage
from onsphere.report.measured_rows import Feature
from onsphere.report.row_groups import rank_columns


def show(measured, names=None):
    return show_group_coverage(measured, measure_group_coverage(measured, rank_columns(measured), names))


def list_low(measured, names=None):
    return [str(group) for group in measure_group_coverage(measured, rank_columns(measured), names).low]


def test_a_group_with_low_coverage_is_found_but_noise_is_not(rows):
    n, rng = 600, np.random.default_rng(0)
    frame = pd.DataFrame({"tool": np.repeat(["a", "b", "c"], [60, 240, 300]), "noise": rng.normal(size=n)})
    covered = rng.uniform(size=n) < 0.9
    fair = rows(rng.exponential(size=n), rng.uniform(size=n), covered=covered, frame=frame)
    says = show(fair).paragraphs[1]
    assert says.startswith("None of 7 groups is covered less often than chance allows")
    covered[:60] = np.arange(60) % 2
    unfair = rows(fair.error, fair.assessment.uncertainty, covered=covered, frame=frame)
    section = show(unfair)
    assert section.paragraphs[1].startswith("Covered too rarely, by more than chance: tool: a (50\u202f%).")
    assert [picture.title for picture in section.pictures] == ["tool", "noise"]
    assert "not by chance" in section.pictures[0].reading


def test_numbers_are_grouped_by_what_is_predicted_first(rows):
    n, rng = 600, np.random.default_rng(0)
    value = np.arange(float(n))
    covered = (value < 450) | (value % 10 < 6)
    frame = pd.DataFrame({"x": rng.normal(size=n)})
    plain = rows(rng.exponential(size=n), rng.uniform(size=n), covered=covered, frame=frame)
    measured = replace(plain, assessment=replace(plain.assessment, value=value))
    assert show(measured).pictures[0].title == "predicted value"
    assert list_low(measured) == ["predicted value: > 449"]


def test_groups_that_were_calibrated_are_tabulated_and_told_once(rows):
    n, rng = 600, np.random.default_rng(0)
    codes = np.repeat([0, 1], [200, 400])
    frame = pd.DataFrame({"tool": np.array(["a", "b"])[codes]})
    covered = np.r_[np.arange(200) % 2 == 0, np.ones(400, dtype=bool)]
    groups = [{"group": name, "calibration rows": 70, "calibrated by": "its own rows"} for name in ("a", "b", "c")]
    plain = rows(rng.exponential(size=n), rng.uniform(size=n), covered=covered, frame=frame)
    measured = replace(plain, groups=groups, group_codes=codes)
    section = show(measured)
    assert [picture.title for picture in section.pictures] == ["tool"]
    assert list_low(measured) == ["tool: a"]
    by_others = replace(measured, frame=pd.DataFrame({"x": np.zeros(n)}))
    assert list_low(by_others) == ["calibrated group: a"]
    (table,) = section.tables
    assert [cells[-2:] for cells in table.rows] == [
        ["200", format_percent(0.5)],
        ["400", format_percent(1.0)],
        ["0", "–"],
    ]


def test_the_coverage_of_each_group_by_hand(several):
    assessment, Y = several.model.assess(several.X), several.y.to_numpy()
    covered = ((assessment.lower <= Y) & (assessment.upper >= Y)).all(axis=1)
    assert f"for {format_percent(covered.mean(), decimals=1)} of the rows, all targets lie inside" in several.text
    for place, name in enumerate(["x1", "x0"], start=1):
        table, column = several.table(f"coverage-{place}-{name}.csv"), several.X[:, int(name[1])]
        group = np.searchsorted(np.quantile(column, [0.25, 0.5, 0.75], method="inverted_cdf"), column)
        counts = pd.Series(covered).groupby(group).agg(["sum", "count"]).to_numpy()
        assert_allclose(table["share covered"], counts[:, 0] / counts[:, 1], rtol=1e-6)
        exact = [stats.binomtest(k, n).proportion_ci(0.95, method="exact") for k, n in counts.tolist()]
        assert_allclose(np.column_stack([table["from"], table["to"]]), exact, rtol=1e-5)


def test_named_columns_are_the_only_ones(rows):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"noise {index}": rng.normal(size=60) for index in range(3)})
    measured = rows(rng.exponential(size=60), rng.uniform(size=60), frame=frame)
    assert [picture.title for picture in show(measured, ["noise 2"]).pictures] == ["noise 2"]
    assert show(measured, []).paragraphs == ["No column splits these rows into groups."]


def test_every_group_counts_even_if_it_is_not_shown(rows):
    """Eight columns have a group that is covered in half of its rows; six are shown, and all are named."""
    n, rng = 2_000, np.random.default_rng(0)
    is_bad = {f"c{index}": rng.uniform(size=n) < 0.12 for index in range(8)}
    frame = pd.DataFrame({name: np.where(bad, "bad", "fine") for name, bad in is_bad.items()})
    covered = ~np.any(list(is_bad.values()), axis=0) | (rng.uniform(size=n) < 0.5)
    measured = rows(rng.exponential(size=n), rng.uniform(size=n), covered=covered, frame=frame)
    found = measure_group_coverage(measured, rank_columns(measured), None)
    assert len(found.shown) == 6
    assert {str(group) for group in found.low} >= {f"{name}: bad" for name in is_bad}
    assert "and 6 more" in show(measured).paragraphs[1]
    for group in found.low:
        here = (frame[group.column] == group.label).to_numpy()
        assert group.n_rows == here.sum()
        assert_allclose(group.share, covered[here].mean())


def test_each_output_is_grouped_by_what_is_predicted_for_it(rows):
    n, rng = 600, np.random.default_rng(0)
    value = np.column_stack([rng.permutation(n), np.arange(n), np.zeros(n)]).astype(float)
    plain = rows(rng.exponential(size=n), rng.uniform(size=n), covered=(value[:, 1] < 450) | (np.arange(n) % 10 < 6))
    plain = replace(plain, frame=pd.DataFrame({"x": rng.normal(size=n)}), output_names=["mass", "length", "constant"])
    measured = replace(plain, assessment=replace(plain.assessment, value=value))
    assert [picture.title for picture in show(measured).pictures] == ["predicted mass", "predicted length", "x"]
    assert list_low(measured) == ["predicted length: > 449"]


def test_times_that_are_no_column_make_groups_too(rows):
    n, rng = 600, np.random.default_rng(0)
    times = Feature("day", "number", np.arange(float(n)))
    covered = (np.arange(n) < 450) | (np.arange(n) % 2 == 0)
    plain = rows(rng.exponential(size=n), rng.uniform(size=n), covered=covered, frame=pd.DataFrame({"x": np.zeros(n)}))
    assert list_low(replace(plain, times=times)) == ["day: > 449"]
    assert list_low(replace(plain, times=times._replace(values=np.zeros(n)))) == []
    # A column is grouped anyway.
    as_column = replace(plain, frame=plain.frame.assign(day=times.values), times=times)
    assert list_low(as_column) == ["day: > 449"]
