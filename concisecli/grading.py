"""GraderPool: `answers.check` in worker processes, with a deadline that the parent holds.

math-verify's own limit is `signal.alarm`: it raises off the main thread (Math-Verify#50) and any `except Exception` on
the way swallows it. Here the parent kills and replaces a worker that overruns, dies or outgrows its memory, wherever
`grade` is called from: main thread, other threads, executors. pebble's pool was looked at first: it has such deadlines,
but starts workers by fork or by importing the caller's main module, has no memory limit and no lifeline to a killed
parent, and sends one task at a time.

- The clock of an item starts when a worker takes it (verifiers#831: waiting in a queue is no one's fault); imports of
  a worker and of its parsers never count.
- What text alone decides never leaves the parent; equal questions are asked once.
- Workers are separate interpreters that load no torch and not the caller's main module. They end when the parent
  does, however it ends: at the end of their input when idle, by a signal from a pipe that closes with the parent when
  busy, and by a timer of their own at last.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from concisecli import answers
from concisecli.config import GraderConfig
from concisecli.extraction import extract
from concisecli.normalize import key
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
    """A verdict and the seconds its worker spent on it (0 where text decided, or an equal question was asked before)."""

    verdict: Verdict
    seconds: float


_Task = tuple[Any, ...]  # ("judge", answer, gold, gold_list) | ("custom", name, response, gold) | ("equivalent", a, b)
_Reply = tuple[str, str, float, str]  # outcome, rule, seconds, traceback


@dataclass(eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    lifeline: int
    ready: bool = False
    tasks: deque[int] = field(default_factory=deque)  # indices of what it was sent and has not answered
    clock: float | None = None  # when the item at hand was taken; None while it does not count
    since: float = field(default_factory=time.monotonic)  # when it was started or last heard of
    buffer: bytearray = field(default_factory=bytearray)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        with contextlib.suppress(OSError):
            os.close(self.lifeline)
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError, BrokenPipeError):
                if stream is not None:
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)


class GraderPool:
    """A context manager around worker processes, which start when the first question needs one.

    `counts` adds up all verdicts by outcome; their sum is always the number of items graded."""

    def __init__(self, config: GraderConfig) -> None:
        self.config = config
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.first_traceback = ""
        self._size = config.workers or len(os.sched_getaffinity(0))
        self._workers: list[_Worker] = []
        self._memo: dict[Any, _Reply] = {}
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._pid)
        if config.custom:
            answers.load_custom(config.custom)  # a name that does not load is a usage error, found at once

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers. The pool may be used again; it starts new ones."""
        with self._lock:
            _end_all(self._workers, self._pid)

    def warm(self) -> None:
        """Start all workers and wait until they are ready; what follows is then as fast as it gets."""
        with self._lock:
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
                tasks: list[_Task] = []
                for problem, queue in enumerate(queues):
                    if queue:
                        spelling = queue.popleft()
                        text = answers_per_problem[problem][places[problem][spelling][0]] or ""
                        asked.append((problem, spelling, text, list(range(len(tasks), len(tasks) + len(heads[problem])))))
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

    # --- from items to questions --------------------------------------------------------------------------------------

    def _grade(self, items: Sequence[GradeItem]) -> list[Timed]:
        done: list[Timed | None] = [None] * len(items)
        open_tasks: dict[Any, list[int]] = {}
        tasks: list[_Task] = []
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

    def _ask(self, tasks: Sequence[_Task], start: int = 0) -> list[_Reply]:
        """Replies in order. Questions answered before come from the memo; timeouts and errors are not kept, since they
        may be the machine's."""
        replies: list[_Reply | None] = [None] * len(tasks)
        marks = [None if task[0] == "custom" else _mark(task) for task in tasks]
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
                _end_all(self._workers, self._pid)
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

    def _run(self, tasks: Sequence[_Task], waiting: list[int], replies: list[_Reply | None], start: int) -> None:
        if os.getpid() != self._pid:  # a forked copy must not talk to its parent's workers
            self._workers[:] = []
            self._pid = os.getpid()
        todo = deque(waiting)
        left = len(waiting)
        chunk = max(1, min(CHUNK, len(waiting) // (4 * self._size)))
        want = max(start, min(self._size, (len(waiting) + chunk - 1) // chunk))
        while len(self._workers) < want:
            self._workers.append(_start(self.config))
        failures = 0
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            while left:
                for worker in list(self._workers):
                    if todo and worker.ready and not worker.tasks:
                        batch = [todo.popleft() for _ in range(min(chunk, len(todo)))]
                        worker.tasks.extend(batch)
                        worker.clock, worker.since = None, time.monotonic()
                        with contextlib.suppress(BrokenPipeError, OSError):  # a dead one is noticed by its output
                            _send(worker.process.stdin, [tasks[i] for i in batch])
                for event, _ in selector.select(self._patience()):
                    worker = event.data
                    try:
                        data = os.read(event.fd, 1 << 16)
                    except OSError:
                        data = b""
                    if not data:
                        if not worker.ready:
                            failures += 1
                        if failures > 3:
                            raise ConciseError("grader workers end while they start; is math-verify installed beside concise?")
                        left -= self._replace(selector, worker, todo, replies, ("error", "worker-died", _died(worker)))
                        continue
                    left -= self._receive(worker, data, replies)
                now = time.monotonic()
                for worker in list(self._workers):
                    if worker.clock is not None and worker.tasks and now - worker.clock > self.config.deadline_s:
                        left -= self._replace(selector, worker, todo, replies, ("timeout", "deadline", ""))
                    elif worker.clock is None and (worker.tasks or not worker.ready) and now - worker.since > START_LIMIT_S:
                        left -= self._replace(selector, worker, todo, replies, ("error", "worker-silent", "a grader worker did not answer"))

    def _patience(self) -> float:
        """Seconds until the next deadline."""
        now = time.monotonic()
        clocks = [w.clock for w in self._workers if w.clock is not None and w.tasks]
        return max(0.0, min([c + self.config.deadline_s - now for c in clocks], default=1.0)) + 0.001

    def _receive(self, worker: _Worker, data: bytes, replies: list[_Reply | None]) -> int:
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
            if message == "ready":
                worker.ready = True
            elif message == "start":
                worker.clock = now
            elif message == "pause":
                worker.clock = None
            elif worker.tasks:
                replies[worker.tasks.popleft()] = message
                worker.clock = now if worker.tasks else None
                answered += 1
        return answered

    def _replace(
        self, selector: selectors.BaseSelector, worker: _Worker, todo: deque[int], replies: list[_Reply | None], verdict: tuple[str, str, str]
    ) -> int:
        """End a worker, settle the item it was at, give the others back, and start the next worker at once."""
        selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        spent = time.monotonic() - worker.clock if worker.clock is not None else 0.0
        worker.end()
        self._workers.remove(worker)
        answered = 0
        if worker.tasks:
            replies[worker.tasks.popleft()] = (verdict[0], verdict[1], spent, verdict[2])
            answered = 1
        todo.extendleft(reversed(worker.tasks))
        fresh = _start(self.config)
        self._workers.append(fresh)
        selector.register(fresh.process.stdout, selectors.EVENT_READ, fresh)  # type: ignore[arg-type]
        return answered


def _mark(task: _Task) -> Any:
    return (task[0], task[1], json.dumps(task[2], default=repr), *task[3:])


def _died(worker: _Worker) -> str:
    code = worker.process.poll()
    return f"a grader worker ended with exit code {code} while it judged an answer"


def _end_all(workers: list[_Worker], pid: int) -> None:
    if os.getpid() == pid:
        for worker in workers:
            worker.end()
    workers[:] = []


def _send(stream: Any, message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    stream.write(struct.pack("!I", len(data)) + data)
    stream.flush()


def _start(config: GraderConfig) -> _Worker:
    """A fresh interpreter with the same import path; nothing of the caller's main module is run."""
    read_end, write_end = os.pipe()
    settings = {
        "path": [os.getcwd() if p == "" else p for p in sys.path],
        "lifeline": read_end,
        "memory_mb": config.memory_mb,
        "deadline_s": config.deadline_s,
        "parent": os.getpid(),
    }
    code = "import json,sys; s=json.loads(sys.argv[1]); sys.path[:]=s['path']; from concisecli.grading import serve; serve(s)"
    threads = {n: "1" for n in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(read_end,),
            bufsize=0,
            env={**os.environ, **threads},
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return _Worker(process, write_end)


# --- the worker -------------------------------------------------------------------------------------------------------


def serve(settings: dict[str, Any]) -> None:
    """What a worker process runs until its input ends."""
    import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    _hold_lifeline(settings["lifeline"], settings["parent"])
    logging.disable(logging.CRITICAL)
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    silent = os.open(os.devnull, os.O_RDWR)
    os.dup2(silent, 0)
    os.dup2(silent, 1)  # a parser that prints must not write into the answers

    from concisecli import equivalence

    equivalence.same_value(("num", equivalence.Fraction(1)), ("fn", "sqrt", [("num", equivalence.Fraction(2))]))  # loads mpmath
    _limit_memory(settings["memory_mb"])

    def load_second_reader() -> None:
        if "math_verify" not in sys.modules:
            _send(sink, "pause")
            _alarm(START_LIMIT_S)
            _load_math_verify(settings["memory_mb"])
            _alarm(settings["deadline_s"] + 2)
            _send(sink, "start")

    equivalence.before_second_reader = load_second_reader
    try:
        _send(sink, "ready")
        while True:
            tasks = _next(source, settings)
            if tasks is None:
                return
            _send(sink, "start")
            for task in tasks:
                _alarm(settings["deadline_s"] + 2)
                reply = _reply(task)
                _alarm(0)
                _send(sink, reply)
    except (BrokenPipeError, EOFError):
        return


def _alarm(seconds: float) -> None:
    """A last resort that needs neither the parent nor the interpreter: the kernel ends the process."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _hold_lifeline(fd: int, parent: int) -> None:
    """The parent holds the other end of this pipe and never writes; when it is gone, however it went, the kernel sends
    SIGIO, whose default is to end the process, even inside one long C call."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    if os.getppid() != parent:
        os._exit(1)


def _limit_memory(megabytes: int) -> None:
    """Address space beyond what is mapped now."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + megabytes * 2**20, hard))


def _load_math_verify(megabytes: int) -> None:
    """The second reader; its own memory is not counted."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        from math_verify import LatexExtractionConfig, parse

        parse("\\boxed{1}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)  # type: ignore[arg-type]
    finally:
        _limit_memory(megabytes)


def _next(source: Any, settings: dict[str, Any]) -> Any:
    """The next chunk, None at the end of input or of the parent. After a quiet second the second reader is loaded,
    so that the first answer that needs it does not wait."""
    import select

    while not select.select([source], [], [], 1.0)[0]:
        if os.getppid() != settings["parent"]:
            return None
        if "math_verify" not in sys.modules:
            with contextlib.suppress(ImportError):
                _load_math_verify(settings["memory_mb"])
    head = _exactly(source, 4)
    if head is None:
        return None
    data = _exactly(source, struct.unpack("!I", head)[0])
    return None if data is None else pickle.loads(data)


def _exactly(source: Any, size: int) -> bytes | None:
    parts, left = [], size
    while left:
        part = source.read(min(left, 1 << 20))
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _reply(task: _Task) -> _Reply:
    began = time.perf_counter()
    outcome, rule, trace = "error", "exception", ""
    try:
        if task[0] == "judge":
            verdict = answers.judge(task[1], task[2], gold_list=task[3])
            outcome, rule = verdict.outcome, verdict.rule
        elif task[0] == "equivalent":
            outcome, rule = ("match" if answers.equivalent(task[1], task[2]) else "mismatch"), "equivalent"
        else:
            verdict = answers.custom_verdict(answers.load_custom(task[1]), task[2], task[3])
            outcome, rule = verdict.outcome, verdict.rule or "custom"
    except MemoryError:
        outcome, rule = "timeout", "memory"  # like time: a limit the answer ran into, not a fault of the grader
    except Exception:
        trace = traceback.format_exc(limit=-12)
    return outcome, rule, time.perf_counter() - began, trace
