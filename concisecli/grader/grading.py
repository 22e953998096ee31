"""GraderPool: `answers.check` in worker processes, with a deadline that the parent holds.

math-verify's own limit is `signal.alarm`: it raises off the main thread (Math-Verify#50) and any `except Exception` on
the way swallows it. Here the parent kills and replaces a worker that overruns, dies or outgrows its memory, wherever
`grade` is called from: main thread, other threads, executors. pebble's pool was looked at first: it has such deadlines,
but starts workers by fork or by importing the caller's main module, has no memory limit and no lifeline to a killed
parent, and sends one task at a time.

- The clock of an item starts when a worker takes it (verifiers#831: waiting in a queue is no one's fault); imports of
  a worker and of its parsers never count.
- What text alone decides never leaves the parent; equal questions are asked once.
- Workers load no torch and not the caller's main module (`grading_worker`). None outlives the parent, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from concisecli.config import GraderConfig
from concisecli.grader import answers
from concisecli.grader.extraction import extract
from concisecli.grader.grading_worker import COMMAND, Reply, Task, send
from concisecli.grader.normalize import key
from concisecli.launchers import cores_of_a_rank
from concisecli.records import ConciseError, Outcome, Verdict

OUTCOMES: tuple[Outcome, ...] = ("match", "mismatch", "no_answer", "timeout", "error")
START_LIMIT_S = 180.0  # for an interpreter and its imports on a busy machine
CHUNK = 32  # items sent to a worker at once; each keeps its own deadline
MEMO_ITEMS = 200_000
JUDGED_AT_LEAST = 100  # items over which the share of errors is taken


@dataclass(frozen=True, slots=True)
class GradeItem:
    """A response with its gold answer (any JSON value). `think_open`: the prompt ended in an open <think>."""

    response: str
    gold: Any
    think_open: bool = False


@dataclass(frozen=True, slots=True)
class Timed:
    """A verdict and the seconds its worker spent on it; 0 where text decided or an equal question was asked before."""

    verdict: Verdict
    seconds: float


@dataclass(eq=False)
class _Worker:
    requests: Any
    replies: int
    pid: int = 0  # 0 until it says that it is ready
    tasks: deque[int] = field(default_factory=deque)  # indices of what it was sent and has not answered
    clock: float | None = None  # when the item at hand was taken; None while it does not count
    since: float = field(default_factory=time.monotonic)  # when it was started or last heard of
    buffer: bytearray = field(default_factory=bytearray)
    spent: bool = False  # it met its memory limit, answered and ends


@dataclass(eq=False)
class _Processes:
    """The nursery and its workers, as the parent sees them."""

    config: GraderConfig
    reward: str | None = None
    owner: int = field(default_factory=os.getpid)
    workers: list[_Worker] = field(default_factory=list)
    nursery: subprocess.Popen[bytes] | None = None
    line: socket.socket | None = None
    loaded: bool = False  # whether the nursery was told to load math-verify

    def start(self) -> _Worker:
        if self.nursery is None or self.nursery.poll() is not None:
            self._start_nursery()
        assert self.line is not None
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        worker = _Worker(os.fdopen(ours_out, "wb", buffering=0), ours_in)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionError):  # noticed by the end of its replies
                socket.send_fds(self.line, [COMMAND.pack(b"F", 0)], [theirs_in, theirs_out])
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self.workers.append(worker)
        return worker

    def _start_nursery(self) -> None:
        self.line, theirs = socket.socketpair()
        self.loaded = False
        settings = {
            "path": [os.getcwd() if p == "" else p for p in sys.path],
            "socket": theirs.fileno(),
            "memory_mb": self.config.memory_mb,
            "custom": self.config.custom,
            "reward": self.reward,
            "parent": os.getpid(),
        }
        code = (
            "import json,sys; s=json.loads(sys.argv[1]); sys.path[:]=s['path']; "
            "from concisecli.grader.grading_worker import nursery; nursery(s)"
        )
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            self.nursery = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **threads},
            )
        finally:
            theirs.close()

    def load(self) -> None:
        """Let the nursery load math-verify, once, so that workers started from now on have it."""
        if self.nursery is None or self.nursery.poll() is not None:
            self._start_nursery()
        if not self.loaded and self.line is not None:
            self.loaded = True
            with contextlib.suppress(OSError):
                self.line.sendall(COMMAND.pack(b"L", 0))

    def end(self, worker: _Worker) -> None:
        """Kill one worker; the nursery reaps it, so that its pid cannot have gone to someone else before."""
        if worker.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                if self.line is not None:
                    self.line.sendall(COMMAND.pack(b"R", worker.pid))
        self._close(worker)
        self.workers.remove(worker)

    def _close(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):
            worker.requests.close()
        with contextlib.suppress(OSError):
            os.close(worker.replies)

    def end_all(self) -> None:
        """End everything and wait for it. In a forked copy only the copies of the pipes are closed."""
        ours = os.getpid() == self.owner
        for worker in self.workers:
            if ours and worker.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(worker.pid, signal.SIGKILL)
            self._close(worker)
        self.workers.clear()
        if self.line is not None:
            self.line.close()
            self.line = None
        if self.nursery is not None and ours:
            try:
                self.nursery.wait(timeout=1)
            except subprocess.TimeoutExpired:  # still importing: it has no workers yet
                self.nursery.kill()
                self.nursery.wait()
        self.nursery = None
        self.owner = os.getpid()


class GraderPool:
    """A context manager around worker processes, which start when the first question needs one. `reward` names the
    function that `rewards` will be asked for, so that its module is loaded off the clock.

    `counts` adds up all verdicts by outcome; their sum is always the number of items graded."""

    def __init__(self, config: GraderConfig, reward: str | None = None) -> None:
        self.config = config
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.first_traceback = ""
        self._size = config.workers or cores_of_a_rank()
        self._processes = _Processes(config, reward)
        self._memo: dict[Any, Reply] = {}
        self._lock = threading.RLock()
        weakref.finalize(self, self._processes.end_all)
        if config.custom:
            answers.load_custom(config.custom)  # a name that does not load is a usage error, found at once
        if reward:
            answers.load_custom(reward, "reward.custom")

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. The pool may be used again; it starts new ones."""
        with self._lock:
            self._processes.end_all()

    def warm(self) -> None:
        """Start all workers with everything loaded and wait for them; what follows is then as fast as it gets."""
        with self._lock:
            if not self.config.custom:
                self._processes.end_all()
                self._processes.load()
            self._ask([("equivalent", f"{n}+1", f"1+{n}") for n in range(self._size)], start=self._size)

    def grade(self, items: Sequence[GradeItem]) -> list[Verdict]:
        """Verdicts in the order of the items."""
        return [timed.verdict for timed in self.grade_timed(items)]

    def grade_timed(self, items: Sequence[GradeItem]) -> list[Timed]:
        """`grade`, with the seconds spent on each item."""
        with self._lock:
            done = self._grade_custom(items) if self.config.custom else self._grade(items)
            self.counts.update(t.verdict.outcome for t in done)
            self._stop_on_errors()
            return done

    def cluster(self, answers_per_problem: Sequence[Sequence[str | None]]) -> list[list[int]]:
        """For each problem the cluster of each answer: the first earlier cluster whose first answer is equivalent, else
        a new one; -1 for None. For majority votes (Cons@k)."""
        clusters: list[list[int]] = [[-1] * len(a) for a in answers_per_problem]
        heads: list[list[str]] = [[] for _ in answers_per_problem]  # the first answer of each cluster
        known: list[dict[str, int]] = [{} for _ in answers_per_problem]
        places: list[dict[str, list[int]]] = []
        for given in answers_per_problem:
            spelled: dict[str, list[int]] = {}
            for i, text in enumerate(given):
                if text is not None:
                    spelled.setdefault(key(text) or text, []).append(i)
            places.append(spelled)
        queues = [deque(spelled) for spelled in places]
        with self._lock:
            while any(queues):
                asked: list[tuple[int, str, str, list[int]]] = []
                tasks: list[Task] = []
                for problem, queue in enumerate(queues):
                    if queue:
                        spelling = queue.popleft()
                        text = answers_per_problem[problem][places[problem][spelling][0]] or ""
                        asked.append(
                            (problem, spelling, text, list(range(len(tasks), len(tasks) + len(heads[problem]))))
                        )
                        tasks.extend(("equivalent", head, text) for head in heads[problem])
                replies = self._ask(tasks)
                for problem, spelling, text, numbers in asked:
                    hit = next((n for n, at in enumerate(numbers) if replies[at][0] == "match"), None)
                    if hit is None:
                        hit = len(heads[problem])
                        heads[problem].append(text)
                    known[problem][spelling] = hit
        for problem, spelled in enumerate(places):
            for spelling, at in spelled.items():
                for i in at:
                    clusters[problem][i] = known[problem][spelling]
        return clusters

    def rewards(self, name: str, groups: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """What the user's function `name` ("module:function") makes of each group, under the same deadline and memory
        limit as a verdict: a reply's rule is a JSON list of numbers where its outcome is `match`."""
        with self._lock:
            return self._ask([("reward", name, group) for group in groups])

    # --- from items to questions --------------------------------------------------------------------------------------

    def _grade(self, items: Sequence[GradeItem]) -> list[Timed]:
        done: list[Timed | None] = [None] * len(items)
        open_tasks: dict[Any, list[int]] = {}
        tasks: list[Task] = []
        texts: dict[int, str] = {}
        profile, gold_list = self.config.profile, self.config.gold_list
        for i, item in enumerate(items):
            found = extract(item.response, profile=profile, think_open=item.think_open)
            if found is None:
                done[i] = Timed(Verdict("no_answer", None, "no-answer"), 0.0)
                continue
            quick = answers.quick_judge(found.text, item.gold, gold_list=gold_list)
            if quick is not None:
                done[i] = Timed(quick, 0.0)
                continue
            texts[i] = found.text
            task = ("judge", found.text, item.gold, gold_list)
            mark = _mark(task)
            if mark not in open_tasks:
                open_tasks[mark] = []
                tasks.append(task)
            open_tasks[mark].append(i)
        replies = self._ask(tasks)
        for at, reply in zip(open_tasks.values(), replies, strict=True):
            for n, i in enumerate(at):
                done[i] = Timed(Verdict(reply[0], texts[i], reply[1]), reply[2] if n == 0 else 0.0)  # type: ignore[arg-type]
        return done  # type: ignore[return-value]

    def _grade_custom(self, items: Sequence[GradeItem]) -> list[Timed]:
        replies = self._ask([("custom", self.config.custom, item.response, item.gold) for item in items])
        return [Timed(Verdict(r[0], None, r[1]), r[2]) for r in replies]  # type: ignore[arg-type]

    def _stop_on_errors(self) -> None:
        total, errors = sum(self.counts.values()), self.counts["error"]
        if errors and errors > self.config.max_error_share * max(total, JUDGED_AT_LEAST):
            raise ConciseError(
                f"the grader itself failed on {errors} of {total} responses, more than max_error_share "
                f"{self.config.max_error_share:g} allows; the first failure:\n{self.first_traceback.rstrip()}"
            )

    # --- asking workers -----------------------------------------------------------------------------------------------

    def _ask(self, tasks: Sequence[Task], start: int = 0) -> list[Reply]:
        """Replies in order. Questions answered before come from the memo; timeouts and errors are not kept, since they
        may be the machine's."""
        replies: list[Reply | None] = [None] * len(tasks)
        marks = [None if task[0] in ("custom", "reward") else _mark(task) for task in tasks]
        waiting = []
        for i, mark in enumerate(marks):
            if mark is not None and mark in self._memo:
                replies[i] = self._memo[mark]
            else:
                waiting.append(i)
        if waiting:
            try:
                self._run(tasks, waiting, replies, start)
            except BaseException:  # Ctrl-C included: no worker stays behind with half a chunk
                self._processes.end_all()
                raise
        if len(self._memo) > MEMO_ITEMS:
            self._memo.clear()
        for i in waiting:
            reply = replies[i]
            if reply is not None and marks[i] is not None and reply[0] in ("match", "mismatch"):
                self._memo[marks[i]] = (reply[0], reply[1], 0.0, "")
            if reply is not None and reply[0] == "error" and not self.first_traceback:
                self.first_traceback = reply[3]
        return replies  # type: ignore[return-value]

    def _run(self, tasks: Sequence[Task], waiting: list[int], replies: list[Reply | None], start: int) -> None:
        processes = self._processes
        if os.getpid() != processes.owner:  # a forked copy must not talk to its parent's workers
            processes.end_all()
        todo = deque(waiting)
        left = len(waiting)
        chunk = max(1, min(CHUNK, len(waiting) // (4 * self._size)))
        want = max(start, min(self._size, (len(waiting) + chunk - 1) // chunk))
        while len(processes.workers) < want:
            processes.start()
        failures = 0
        with selectors.DefaultSelector() as selector:
            for worker in processes.workers:
                selector.register(worker.replies, selectors.EVENT_READ, worker)
            while left:
                for worker in processes.workers:
                    if todo and worker.pid and not worker.tasks:
                        batch = [todo.popleft() for _ in range(min(chunk, len(todo)))]
                        worker.tasks.extend(batch)
                        worker.clock, worker.since = None, time.monotonic()
                        with contextlib.suppress(OSError):  # a dead one is noticed by the end of its replies
                            send(worker.requests, [tasks[i] for i in batch])
                for event, _ in selector.select(self._patience()):
                    worker = event.data
                    data = os.read(event.fd, 1 << 16)
                    if data:
                        left -= self._receive(worker, data, replies)
                        continue
                    failures += worker.clock is None and not worker.spent
                    if failures > 3:
                        raise ConciseError(
                            "grader processes end while they start; is math-verify installed beside concise?"
                        )
                    trace = "a grader process ended while it judged an answer"
                    left -= self._replace(selector, worker, todo, replies, ("error", "worker-died", trace))
                now = time.monotonic()
                for worker in list(processes.workers):
                    if worker.clock is not None and worker.tasks and now - worker.clock > self.config.deadline_s:
                        left -= self._replace(selector, worker, todo, replies, ("timeout", "deadline", ""))
                    elif (
                        worker.clock is None and (worker.tasks or not worker.pid) and now - worker.since > START_LIMIT_S
                    ):
                        failures += 1
                        if failures > 3:
                            raise ConciseError(
                                "grader processes do not start within three minutes; is the machine out of memory?"
                            )
                        left -= self._replace(selector, worker, todo, replies, ("error", "worker-silent", ""))

    def _patience(self) -> float:
        """Seconds until the next deadline."""
        now = time.monotonic()
        clocks = [w.clock for w in self._processes.workers if w.clock is not None and w.tasks]
        return max(0.0, min([c + self.config.deadline_s - now for c in clocks], default=1.0)) + 0.001

    def _receive(self, worker: _Worker, data: bytes, replies: list[Reply | None]) -> int:
        """Read what a worker sent; the number of items it answered."""
        worker.buffer += data
        answered = 0
        while len(worker.buffer) >= 4:
            (size,) = struct.unpack_from("!I", worker.buffer)
            if len(worker.buffer) < 4 + size:
                break
            message = pickle.loads(bytes(worker.buffer[4 : 4 + size]))  # from our own child
            del worker.buffer[: 4 + size]
            worker.since = now = time.monotonic()
            if message == "start":
                worker.clock = now
            elif message == "pause":  # it loads math-verify; later ones get it from the nursery
                worker.clock = None
                self._processes.load()
            elif message[0] == "ready":
                worker.pid = message[1]
            elif worker.tasks:
                replies[worker.tasks.popleft()] = message
                worker.spent = message[1] == "memory"
                worker.clock = now if worker.tasks and not worker.spent else None
                answered += 1
        return answered

    def _replace(
        self,
        selector: selectors.BaseSelector,
        worker: _Worker,
        todo: deque[int],
        replies: list[Reply | None],
        verdict: tuple[str, str, str],
    ) -> int:
        """End a worker, settle the item it was at, give the others back, and start the next worker at once."""
        selector.unregister(worker.replies)
        spent = time.monotonic() - worker.clock if worker.clock is not None else 0.0
        self._processes.end(worker)
        answered = 0
        if worker.tasks and worker.clock is not None:
            replies[worker.tasks.popleft()] = (verdict[0], verdict[1], spent, verdict[2])
            answered = 1
        todo.extendleft(reversed(worker.tasks))
        fresh = self._processes.start()
        selector.register(fresh.replies, selectors.EVENT_READ, fresh)
        return answered


def _mark(task: Task) -> Any:
    return (task[0], task[1], json.dumps(task[2], default=repr), *task[3:])
