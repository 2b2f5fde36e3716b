"""Run one function on many jobs: on the cores of this machine, or on a Ray cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from queue import SimpleQueue
from typing import Any, TypeVar

from onsphere._internal.processes import exit_with_parent
from onsphere._internal.validation import check_number, check_option, missing_extra_error
from onsphere.errors import InvalidInputError

__all__ = ["check_engine", "connect", "run_locally", "run_on_ray"]

ENGINES = ("local", "ray")
_WAITING = 2  # jobs for each worker that are handed out at once
_RETRIES = 5  # of a job whose node was lost

Job = TypeVar("Job")
Answer = TypeVar("Answer")


def check_engine(owner: str, engine: str, n_workers: int | None, address: str | None) -> None:
    """Check what says where the work is done."""
    check_option(owner, "engine", engine, ENGINES)
    if n_workers is not None:
        check_number(owner, "n_workers", n_workers, above=1, closed="left", whole=True)
    if address is not None and engine != "ray":
        raise InvalidInputError(f"Expected no address with the engine {engine}. Got {address}. Pass engine='ray'.")


def run_locally(
    work: Callable[[Job], Answer], jobs: Iterable[Job], *, n_workers: int | None = None
) -> Iterator[tuple[Job, Answer]]:
    """Yield each job with its answer, in the order in which they are done, from processes on this machine.

    This process is one of the workers: it has imported all that they need, so it begins while the others start.
    """
    n_workers, left = n_workers or os.cpu_count() or 1, deque(jobs)
    if n_workers == 1:
        yield from ((job, work(job)) for job in left)
        return
    n_others, running, done = n_workers - 1, dict[Future[Answer], Job](), SimpleQueue[Future[Answer]]()
    with ProcessPoolExecutor(n_others, get_context("spawn"), exit_with_parent) as pool:

        def hand_out() -> None:
            # Towards the end nobody gets a job that another one could begin at once.
            n_each = _WAITING if len(left) > _WAITING * n_workers else 1
            while left and sum(not future.done() for future in list(running)) < n_each * n_others:
                job = left.popleft()
                future = pool.submit(work, job)
                running[future] = job
                future.add_done_callback(finish)

        def finish(future: Future[Answer]) -> None:
            # In a thread of the pool, so that the others need not wait until this process has done its own job.
            if not future.cancelled() and future.exception() is None:
                with suppress(RuntimeError, IndexError):  # the pool is closed, or this process was quicker
                    hand_out()
            done.put(future)

        try:
            hand_out()
            while left or running:
                own = [left.popleft()] if left else []
                yield from ((job, work(job)) for job in own)
                while running and not (own and done.empty()):
                    future = done.get()
                    answer = future.result()
                    yield running.pop(future), answer
        except BrokenProcessPool:
            names = ", ".join(str(job) for job in list(running.values())[:n_others])
            raise InvalidInputError(
                f"Expected worker processes that live until their work is done. Got one that was killed, at one of "
                f"{names}. If there was too little memory, use fewer workers. If a script calls this, put the call "
                "below `if __name__ == '__main__':`, since workers import the script. Then run this again: what is "
                "done is kept."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_on_ray(
    work: Callable[[Job, Any], Answer],
    jobs: Iterable[Job],
    shared: Any,
    *,
    n_workers: int | None = None,
    address: str | None = None,
) -> Iterator[tuple[Job, Answer]]:
    """Yield each job with its answer, in the order in which they are done, from tasks on a Ray cluster.

    Ray runs a job again if its node is lost.

    Parameters
    ----------
    work : function of a job and of `shared`
    jobs : iterable
    shared : any
        Sent to each node once.
    n_workers : int, optional
        How many jobs run at once; by default one for each processor of the cluster.
    address : str, optional
        Of a cluster; by default the one that this process is connected to, or a new one on this machine.
    """
    with connect(address) as ray:
        n_at_once = n_workers or _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Ray takes functions only, and `work` may be a partial one.
        remote: Any = ray.remote(num_cpus=1, max_retries=_RETRIES)(lambda job, given: work(job, given))
        reference = ray.put(shared)
        left, running = iter(jobs), dict[Any, Job]()
        while True:
            for job in left:
                running[remote.remote(job, reference)] = job
                if len(running) >= n_at_once:
                    break
            if not running:
                return
            for done in ray.wait(list(running), num_returns=1)[0]:
                yield running.pop(done), ray.get(done)


@contextmanager
def connect(address: str | None) -> Generator[Any]:
    """Yield Ray, connected to the cluster at an address, to that of this process, or to a new one on this machine."""
    try:
        import ray
    except ImportError:
        raise missing_extra_error("The engine ray", "ray", "scale") from None
    is_ours = not ray.is_initialized()
    if is_ours:
        _initialize(ray, address)
    elif address not in (None, found := ray.get_runtime_context().gcs_address):
        raise InvalidInputError(
            f"Expected the address of the Ray cluster that this process is connected to, {found}. Got {address}. Leave "
            "it out, or call ray.shutdown() first."
        )
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


def _initialize(ray: Any, address: str | None) -> None:
    try:
        ray.init(address=address or "local", log_to_driver=False, include_dashboard=None if address else False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InvalidInputError(
            f"Expected a Ray cluster at {address}. Got: {' '.join(str(error).split())[:200]}. Start one with "
            "`ray start --head`, or leave the address out to use this machine."
        ) from None
