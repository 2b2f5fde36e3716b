import operator
import os
import posixpath
import sys

import pytest

from onsphere.errors import InvalidInputError, MissingExtraError
from onsphere.scale.engines import run_locally, run_on_ray


@pytest.mark.parametrize("n_workers", [1, 2])
def test_every_job_is_answered_once(n_workers):
    found = dict(run_locally(operator.neg, range(9), n_workers=n_workers))
    assert found == {number: -number for number in range(9)}


def test_a_worker_that_is_killed_is_an_error_that_names_its_jobs():
    with pytest.raises(InvalidInputError, match=r"one that was killed, at one of 7, 8; .* Use fewer workers"):
        list(run_locally(os._exit, [7, 8], n_workers=2))


@pytest.mark.filterwarnings("default")
def test_a_cluster_of_its_own_is_closed_in_the_end(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert dict(run_on_ray(posixpath.join, "abc", "x", n_workers=1)) == {"a": "a/x", "b": "b/x", "c": "c/x"}
    assert not ray.is_initialized()


def test_ray_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match="ray"):
        next(run_on_ray(operator.mul, [1], 2))
