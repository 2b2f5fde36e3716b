"""A real cluster of several nodes on one machine."""

import posixpath
import signal
import threading
from collections import deque
from contextlib import nullcontext

import pytest
from pyarrow import parquet

from onsphere import FrozenHead
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.scale import Assessor, assess_dataset, calibrate_dataset, engines, fit_head
from onsphere.scale.engines import run_jobs
from tests.scale.conftest import make_rows, read_bytes

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own

N_ROWS = 1_000  # of each of eight files


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(8):
        parquet.write_table(make_rows(N_ROWS, seed=number), folder / f"{number}.parquet")
    return folder


def test_a_lost_node_loses_and_doubles_no_row(cluster, model_path, files, tmp_path):
    second = next(node for node in cluster.list_all_nodes() if node != cluster.head_node)
    lost = []

    def lose_a_node(n_rows, share):
        if n_rows and not lost:
            lost.append(threading.Thread(target=cluster.remove_node, args=(second,), kwargs={"allow_graceful": False}))
            lost[0].start()

    summary = assess_dataset(model_path, files, tmp_path / "ray", engine="ray", on_progress=lose_a_node)
    lost[0].join()
    assert len(cluster.list_all_nodes()) == 1
    assert summary == assess_dataset(model_path, files, tmp_path / "local", n_workers=1)
    assert read_bytes(tmp_path / "ray") == read_bytes(tmp_path / "local")


def test_the_callable_serves_ray_data(cluster, model_path, files):
    rows = ray.data.read_parquet(str(files))
    options = {"fn_constructor_args": (str(model_path),), "batch_format": "pyarrow", "concurrency": 1}
    answers = rows.map_batches(Assessor, **options).to_pandas().set_index("id").sort_index()
    expected = Assessor(model_path)(make_rows(N_ROWS, seed=3)).to_pandas().set_index("id").sort_index()
    assert len(answers) == 8 * N_ROWS
    assert answers.loc[expected.index, "upper"].to_numpy() == pytest.approx(expected["upper"].to_numpy())


def test_a_head_is_fitted_and_calibrated_from_sums_of_the_nodes(cluster, tmp_path):
    rows = make_rows(600).drop_columns(["id", "city"]).to_pandas()
    rows["price"] = rows["size"] * rows["age"]
    for number in range(3):
        rows[number::3].to_parquet(tmp_path / f"{number}.parquet")
    head = FrozenHead("kernel", n_landmarks=50, frames=("target", "input"), random_state=0)
    found, expected = fit_head(head, tmp_path, "price", engine="ray"), head.fit(rows[["size", "age"]], rows["price"])
    calibrate_dataset(found, tmp_path, "price", engine="ray")
    expected.calibrate(rows[["size", "age"]], rows["price"])
    found, expected = (each.assess(rows[["size", "age"]]) for each in (found, expected))
    for name in ("value", "uncertainty", "novelty", "lower", "upper"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-10, abs=1e-10)


def test_a_model_that_a_node_cannot_read_is_an_error_of_each_file(cluster, model_path, files, tmp_path, monkeypatch):
    newer = tmp_path / "newer.onsphere"
    newer.write_bytes(model_path.read_bytes())
    assessor = Assessor(model_path)
    monkeypatch.setattr("onsphere.scale.dataset.Assessor", lambda *args, **options: assessor)  # of the driver alone
    newer.write_bytes(b"a file of a later version")
    with pytest.raises(OnsphereError, match=r"\d\.parquet: Expected a file written by save"):
        assess_dataset(newer, files, tmp_path / "out", engine="ray")


def test_tasks_do_all_jobs(node):
    found = dict(run_jobs(posixpath.join, "abcde", "x", engine="ray", n_workers=1))
    assert found == {name: f"{name}/x" for name in "abcde"}


def test_an_interrupt_does_not_wait_for_the_tasks(node, monkeypatch):
    monkeypatch.setattr(engines, "_work_meanwhile", lambda work, left: nullcontext([]))
    # The cluster is there already. Each job waits for a signal that never comes, for some seconds.
    jobs = engines._run_on_new_cluster(signal.sigtimedwait, deque([[] for _ in range(20)]), 0.7, 2)
    assert next(jobs) == ([], None)
    with pytest.raises(KeyboardInterrupt):
        jobs.throw(KeyboardInterrupt)
    assert list(jobs) == []


def test_another_cluster_than_that_of_the_process_is_refused(cluster, model_path, files, tmp_path):
    with pytest.raises(InvalidInputError, match=r"that this process is connected to.* Got 127\.0\.0\.1:1"):
        assess_dataset(model_path, files, tmp_path / "out", engine="ray", address="127.0.0.1:1")


def test_an_address_that_nobody_answers_is_named(model_path, files, tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InvalidInputError, match=r"Expected a Ray cluster at 127\.0\.0\.1:1"):
        assess_dataset(model_path, files, tmp_path / "out", engine="ray", address="127.0.0.1:1")
