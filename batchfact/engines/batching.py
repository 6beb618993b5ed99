"""Requests of many tasks become small batches for a model that computes in this process, in one thread of its own.

Requests flow in from the event loop, batches flow to `compute` in the thread, answers flow back. The lowest priority
number goes first, then the order of arrival; a batch holds requests of one kind and a bounded number of padded tokens.
It knows nothing of models.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any

from batchfact.engines.base import RequestError
from batchfact.errors import EngineDiedError, RunFailedError

FAILURES = (RuntimeError, ValueError, IndexError, KeyError, MemoryError)
"""What a model's code raises for requests that it cannot take; torch's errors are RuntimeErrors, out of memory too."""


CLOSE_S = 120.0
"""How long the batch at hand may take to end: generation looks after every token whether it still has to go on."""


class Job:
    """One request on its way; `is_abandoned` once nobody waits for its answer any more."""

    __slots__ = ("answer", "is_abandoned", "kind", "num_tokens", "request")

    def __init__(self, request: Any, kind: Hashable, num_tokens: int) -> None:
        self.request = request
        self.kind = kind
        self.num_tokens = num_tokens
        self.answer: Future[Any] = Future()
        self.is_abandoned = False


class Batcher:
    """One worker thread with a queue before it.

    Args:
        compute: answers a batch, in its order; runs in the thread. Where it raises RequestError or one of FAILURES
            the batch is halved, until the one request that cannot be answered is alone.
        max_jobs, max_tokens: bounds of a batch; tokens are those of its longest request, for each of its requests.
    """

    def __init__(self, compute: Callable[[Sequence[Job]], Sequence[Any]], *, max_jobs: int, max_tokens: int) -> None:
        self._compute = compute
        self._max_jobs = max_jobs
        self._max_tokens = max_tokens
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Job]] = []
        self._changed = threading.Condition()
        self._end: str | None = None
        self._computing: Sequence[Job] = ()
        self._thread = threading.Thread(target=self._work, name="batchfact-model", daemon=True)
        self._thread.start()

    async def ask(self, request: Any, *, kind: Hashable, num_tokens: int, priority: int) -> Any:
        """The answer to one request; cancelling takes it out of the queue.

        Raises: RequestError where it cannot be answered, EngineDiedError where the thread has ended.
        """
        job = Job(request, kind, num_tokens)
        with self._changed:
            if self._end is not None:
                raise EngineDiedError(self._end)
            heapq.heappush(self._waiting, (priority, next(self._numbers), job))
            self._changed.notify()
        try:
            return await asyncio.wrap_future(job.answer)
        finally:
            job.is_abandoned = True  # nothing to a job that is answered

    def close(self) -> None:
        """End the thread and wait for it; what is being computed is abandoned.

        Raises: RunFailedError where it does not end: a thread cannot be killed, and it holds the model.
        """
        self._stop("the engine was shut down")
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            raise RunFailedError(
                f"the engine's thread does not end within {CLOSE_S:.0f} s; finished rows are kept, run the same "
                "command again"
            )

    def _stop(self, why: str) -> None:
        with self._changed:
            self._end = self._end or why
            for job in (*self._computing, *(job for _, _, job in self._waiting)):
                job.is_abandoned = True
            self._changed.notify()

    def _work(self) -> None:
        try:
            while batch := self._take():
                self._answer(batch)
        except BaseException as error:  # noqa: BLE001  whatever it is: without the thread all tasks would wait for ever
            self._stop(f"the engine died ({type(error).__name__}: {error})")
        finally:
            self._fail_all()

    def _take(self) -> list[Job]:
        """The next batch, once there is one; an empty one at the end."""
        with self._changed:
            while True:
                self._computing = ()
                self._changed.wait_for(lambda: self._waiting or self._end is not None)
                if self._end is not None:
                    return []
                self._computing = batch = self._gather()
                if batch:
                    return batch

    def _gather(self) -> list[Job]:
        batch: list[Job] = []
        passed_over: list[tuple[int, int, Job]] = []
        longest = 0
        while self._waiting and len(batch) < self._max_jobs:
            entry = heapq.heappop(self._waiting)
            job = entry[2]
            longer = max(longest, job.num_tokens)
            if batch and (job.kind != batch[0].kind or longer * (len(batch) + 1) > self._max_tokens):
                passed_over.append(entry)
            elif job.answer.set_running_or_notify_cancel():
                batch.append(job)
                longest = longer
        for entry in passed_over:
            heapq.heappush(self._waiting, entry)
        return batch

    def _answer(self, batch: Sequence[Job]) -> None:
        try:
            answers = self._compute(batch)
        except (RequestError, *FAILURES) as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(_refusal(error))
                return
            middle = len(batch) // 2
            self._answer(batch[:middle])
            self._answer(batch[middle:])
        else:
            for job, answer in zip(batch, answers, strict=True):
                job.answer.set_result(answer)

    def _fail_all(self) -> None:
        with self._changed:
            waiting, self._waiting = self._waiting, []
        unanswered = [job for job in self._computing if not job.answer.done()]
        unanswered += [job for _, _, job in waiting if job.answer.set_running_or_notify_cancel()]
        for job in unanswered:
            job.answer.set_exception(EngineDiedError(self._end or "the engine ended"))


def _refusal(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    return RequestError(f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no reason given')}")
