import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from onsphere.export import export_onnx
from onsphere.table import fit_table


def make_rows(n_rows, *, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    size, age = scale * rng.normal(size=(2, n_rows))
    city = rng.choice(["Rome", "Oslo"], n_rows)
    ids = pa.array([f"{seed}-{row}" for row in range(n_rows)], pa.string())
    return pa.table({"id": ids, "size": size, "age": age, "city": pa.array(city, pa.string())})


@pytest.fixture(scope="session")
def table_fit():
    frame = make_rows(1200).to_pandas()
    price = frame["size"] * frame["age"] + (frame["city"] == "Rome") + 0.1 * np.random.default_rng(1).normal(size=1200)
    return fit_table(frame.assign(price=price), ["price"], backbone="kernel", keys=["id"])


@pytest.fixture(scope="session")
def model_path(table_fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.onsphere"
    table_fit.model.save(path, summary=table_fit.summary())
    return path


@pytest.fixture(scope="session")
def graph_path(table_fit, tmp_path_factory):
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    export_onnx(table_fit.model, path, summary=table_fit.summary())
    return path


@pytest.fixture(scope="session", autouse=True)
def settings_of_ray():
    """Set what Ray reads only once in a process, so that no test depends on the one before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(sys.path))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")  # a busy machine takes longer than 5 seconds
        yield


@pytest.fixture(scope="session")
def head():
    """Start a real cluster of one node, once for all tests."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    often = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}  # to find soon that a node is lost
    options = {"num_cpus": 2, "include_dashboard": False, "_system_config": often}
    found = Cluster(initialize_head=True, head_node_args=options)
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def node(head):
    """Connect this process to a cluster of one node."""
    import ray

    ray.init(address=head.address, log_to_driver=False)
    yield head
    ray.shutdown()


@pytest.fixture(scope="module")
def cluster(node):
    """Connect this process to a cluster of two nodes, of which a test may lose the second."""
    second = node.add_node(num_cpus=1)
    yield node
    if second in node.list_all_nodes():
        node.remove_node(second)


@pytest.fixture
def source(tmp_path):
    """Four files in two partitions, one of them without rows."""
    folder = tmp_path / "in"
    for year, names in {2023: "ab", 2024: "cd"}.items():
        (folder / f"year={year}").mkdir(parents=True)
        for name in names:
            rows = make_rows(0 if name == "c" else 50, seed=ord(name))
            parquet.write_table(rows, folder / f"year={year}" / f"{name}.parquet")
    return folder


def read_bytes(folder):
    """Return the content of every file, by its path; the lock has none."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def to_frame(folder):
    return pd.concat([pd.read_parquet(path) for path in sorted(folder.rglob("*.parquet"))], ignore_index=True)
