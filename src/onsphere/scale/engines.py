"""Run one function on many jobs: on the cores of this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import active_children, get_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from onsphere._internal.processes import exit_with_parent
from onsphere._internal.validation import check_number, check_option, missing_extra_error
from onsphere.errors import InvalidInputError

__all__ = ["check_engine", "connect", "run_jobs"]

ENGINES = ("local", "ray")
_WAITING = 2  # jobs for each worker that are handed out at once
_RETRIES = 5  # of a job whose node was lost
_SECONDS_TO_ANSWER = 5.0  # for a cluster that is there

Job = TypeVar("Job")
Answer = TypeVar("Answer")


def check_engine(owner: str, engine: str, n_workers: int | None, address: str | None) -> None:
    """Check the options that say where the work is done."""
    check_option(owner, "engine", engine, ENGINES)
    if n_workers is not None:
        check_number(owner, "n_workers", n_workers, above=1, closed="left", whole=True)
    if address is not None and engine != "ray":
        raise InvalidInputError(f"Expected no address with the engine {engine}. Got {address}. Pass engine='ray'.")


def run_jobs(
    work: Callable[[Job, Any], Answer],
    jobs: Iterable[Job],
    shared: Any,
    *,
    engine: str = "local",
    n_workers: int | None = None,
    address: str | None = None,
) -> Iterator[tuple[Job, Answer]]:
    """Yield each job with its answer, in the order in which they are done.

    Parameters
    ----------
    work : function of a job and of `shared`
    jobs : iterable
    shared : any
        Sent to each process or node once.
    engine, n_workers, address :
        As in `check_engine`; by default one worker on each core of this machine or of the cluster. Without an address,
        Ray runs on the cluster that this process is connected to, or on a new one on this machine.
    """
    left, n_here = deque(jobs), n_workers or os.cpu_count() or 1
    if engine == "local":
        return _run_locally(work, left, shared, n_here)
    if address is None and n_here > 1 and not _import_ray().is_initialized():
        return _run_on_new_cluster(work, left, shared, n_here)
    return _run_on_cluster(work, left, shared, n_workers, address)


class _Team(Generic[Job, Answer]):
    """This process and others, which share the jobs that are left.

    Parameters
    ----------
    submit : function
        Gives a job to the others.
    left : deque
        The jobs.
    n_others : int
    """

    def __init__(self, submit: Callable[[Job], Future[Answer]], left: deque[Job], n_others: int) -> None:
        self._submit, self._left, self._n_others = submit, left, n_others
        self.running, self._done = dict[Future[Answer], Job](), SimpleQueue[Future[Answer]]()

    def hand_out(self) -> None:
        """Give the others as many jobs as keep them busy."""
        # Towards the end no job waits for a worker while another one is idle.
        n_each = _WAITING if len(self._left) > _WAITING * (self._n_others + 1) else 1
        with suppress(IndexError):  # this process was quicker
            while self._left and sum(not each.done() for each in list(self.running)) < n_each * self._n_others:
                job = self._left.popleft()
                future = self._submit(job)
                self.running[future] = job
                future.add_done_callback(self._finish)

    def _finish(self, future: Future[Answer]) -> None:
        # In a thread of the pool, so that the others need not wait until this process has done its own job.
        if not future.cancelled() and future.exception() is None:
            with suppress(RuntimeError):  # the pool is closed
                self.hand_out()
        self._done.put(future)

    def run(self, work: Callable[[Job], Answer]) -> Iterator[tuple[Job, Answer]]:
        """Yield each job with its answer; those that the others leave are done here."""
        while self._left or self.running:
            own = [self._left.popleft()] if self._left else []
            yield from ((job, work(job)) for job in own)
            while self.running and not (own and self._done.empty()):
                future = self._done.get()
                answer = future.result()
                yield self.running.pop(future), answer


def _run_locally(
    work: Callable[[Job, Any], Answer], left: deque[Job], shared: Any, n_workers: int
) -> Iterator[tuple[Job, Answer]]:
    """Share jobs with other processes on this machine.

    This process is one of the workers: it has imported all that they need, so it begins while the others start.
    """
    if n_workers == 1:
        yield from ((job, work(job, shared)) for job in left)
        return
    others = set(active_children())
    with ProcessPoolExecutor(n_workers - 1, get_context("spawn"), _start_worker, (shared,)) as pool:
        team = _Team[Job, Answer](lambda job: pool.submit(_work_with_shared, work, job), left, n_workers - 1)
        try:
            team.hand_out()
            yield from team.run(lambda job: work(job, shared))
        except BrokenProcessPool:
            names = ", ".join(str(job) for job in list(team.running.values())[: n_workers - 1])
            raise InvalidInputError(
                f"Expected worker processes that live until their work is done. Got one that was killed, at one of "
                f"{names}. If there was too little memory, use fewer workers. If a script calls this, put the call "
                "below `if __name__ == '__main__':`, since workers import the script. Then run this again: what is "
                "done is kept."
            ) from None
        except KeyboardInterrupt:  # not only after their files, which may be long
            for process in set(active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_shared: list[Any] = []  # of a worker: what is the same for all of its jobs


def _start_worker(shared: Any) -> None:
    exit_with_parent()
    _shared.append(shared)


def _work_with_shared(work: Callable[[Job, Any], Answer], job: Job) -> Answer:
    return work(job, _shared[0])


def _run_on_new_cluster(
    work: Callable[[Job, Any], Answer], left: deque[Job], shared: Any, n_workers: int
) -> Iterator[tuple[Job, Answer]]:
    """Share jobs with tasks on a new Ray cluster on this machine; this process works while that starts, and after."""

    is_over = threading.Event()

    def work_here(job: Job) -> Answer:
        return work(job, shared)

    def work_there(ray: Any, submit: Callable[[Job], Any], job: Job) -> Answer:
        task = submit(job)
        while not is_over.is_set() and not ray.wait([task], timeout=0.5)[0]:
            pass
        return ray.get(task, timeout=0)

    with ExitStack() as stack:
        with _work_meanwhile(work_here, left) as begun:
            ray = stack.enter_context(connect(None, n_cores=n_workers - 1))
            submit = _make_submit(ray, work, shared)
            pool = ThreadPoolExecutor(_WAITING * (n_workers - 1))
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            team = _Team[Job, Answer](lambda job: pool.submit(work_there, ray, submit, job), left, n_workers - 1)
            team.hand_out()
        yield from begun
        try:
            yield from team.run(work_here)
        except KeyboardInterrupt:  # not only after the files of the tasks, which may be long
            is_over.set()
            raise


@contextmanager
def _work_meanwhile(work: Callable[[Job], Answer], left: deque[Job]) -> Generator[list[tuple[Job, Answer]]]:
    """Do jobs in a thread until the block ends; yield the list that gets them with their answers."""
    done, is_over = list[tuple[Job, Answer]](), threading.Event()

    def go() -> None:
        with suppress(IndexError):  # none are left
            while not is_over.is_set():
                job = left.popleft()
                done.append((job, work(job)))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(go)
        try:
            yield done
        finally:
            is_over.set()
    future.result()  # or its error


def _run_on_cluster(
    work: Callable[[Job, Any], Answer], left: deque[Job], shared: Any, n_workers: int | None, address: str | None
) -> Iterator[tuple[Job, Answer]]:
    """Let tasks on a Ray cluster do all jobs."""
    with connect(address, n_cores=n_workers) as ray:
        n_at_once = n_workers or _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
        submit = _make_submit(ray, work, shared)
        running = dict[Any, Job]()
        while left or running:
            while left and len(running) < n_at_once:
                job = left.popleft()
                running[submit(job)] = job
            for done in ray.wait(list(running), num_returns=1)[0]:
                yield running.pop(done), ray.get(done)


def _make_submit(ray: Any, work: Callable[[Job, Any], Answer], shared: Any) -> Callable[[Job], Any]:
    """Return a function that makes a task of a job, which Ray runs again if its node is lost."""
    # Ray takes functions only, and `work` may be a partial one.
    remote: Any = ray.remote(num_cpus=1, max_retries=_RETRIES)(lambda job, given: work(job, given))
    reference = ray.put(shared)
    return lambda job: remote.remote(job, reference)


@contextmanager
def connect(address: str | None, *, n_cores: int | None = None) -> Generator[Any]:
    """Yield Ray, connected to the cluster at an address, to that of this process, or to a new one on this machine.

    A new one has `n_cores`; by default all that there are.
    """
    ray = _import_ray()
    is_ours = not ray.is_initialized()
    if is_ours:
        _initialize(ray, address, n_cores)
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


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise missing_extra_error("The engine ray", "ray", "scale") from None
    return ray


def _initialize(ray: Any, address: str | None, n_cores: int | None) -> None:
    new = {} if address else {"num_cpus": n_cores, "include_dashboard": False}
    on_end = signal.getsignal(signal.SIGTERM)
    try:
        _check_answers(address)
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **new)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInputError(
            f"Expected a Ray cluster at {address}. Got: {' '.join(str(error).split())[:200].rstrip('.')}. Start one "
            "with `ray start --head`, or leave the address out to use this machine."
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_end)  # that of Ray ends the process with a trace of the stack


def _check_answers(address: str | None) -> None:
    """Check that somebody answers at a host and a port, since Ray would wait for minutes; leave other words to Ray."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or "")
    if found:
        socket.create_connection((found[1], int(found[2])), _SECONDS_TO_ANSWER).close()
