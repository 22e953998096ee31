"""What runs in the grader's processes: a nursery that loads the parsers once, and workers forked from it.

The nursery is a fresh interpreter with the caller's import path; nothing of the caller's main module runs in it, and
it has one thread, so that forking it is safe. A worker is there in milliseconds with the imports done. math-verify and
sympy, a second of work that few answers need, are loaded at the first answer that does: by its worker, off the clock,
and by the nursery for all later ones. The nursery ends, and ends its workers, when the parent closes its socket or is
gone; workers end with the nursery (a signal from the kernel) and at the end of their input.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from typing import Any

from concisecli.grader import answers, second_reader

# ("judge", answer, gold, gold_list) | ("custom", name, response, gold) | ("equivalent", a, b) | ("reward", name, group)
Task = tuple[Any, ...]
Reply = tuple[str, str, float, str]  # outcome, rule, seconds, traceback

COMMAND = struct.Struct(
    "!cI"
)  # b"F", 0 with two file descriptors: fork a worker; b"R", pid: reap one that was ended; b"L", 0: load math-verify


def nursery(settings: dict[str, Any]) -> None:
    """Serve fork requests until the parent is gone."""
    import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    logging.disable(logging.CRITICAL)
    silent = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # a parser that prints must not disturb anyone
        os.dup2(silent, fd)
    line = socket.socket(fileno=settings["socket"])
    children: set[int] = set()
    try:
        _load(settings["custom"], settings["reward"])
        while True:
            while not select.select([line], [], [], 1.0)[0]:
                if os.getppid() != settings["parent"]:
                    return
            data, fds, _, _ = socket.recv_fds(line, COMMAND.size, 2)
            while data and len(data) < COMMAND.size:
                data += line.recv(COMMAND.size - len(data))
            if not data:
                return
            command, pid = COMMAND.unpack(data)
            if command == b"R":
                if pid in children:
                    children.discard(pid)
                    _end(pid)
                continue
            if command == b"L":
                _load_second_reader()
                continue
            gc.freeze()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    line.close()
                    _serve(fds[0], fds[1], settings)
                    status = 0
                finally:
                    os._exit(status)
            children.add(pid)
            for fd in fds:
                os.close(fd)
    finally:
        for pid in children:
            _end(pid)
        os._exit(0)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _load(custom: str | None, reward: str | None) -> None:
    """What every worker needs."""
    for name in filter(None, (custom, reward)):
        with contextlib.suppress(Exception):  # a worker meets the same error again and reports it
            answers.load_custom(name)
    if not custom:
        answers.judge("\\sqrt{2}x", "\\frac{2x}{\\sqrt{2}}")


def _load_second_reader() -> None:
    with contextlib.suppress(ImportError):
        from math_verify import LatexExtractionConfig, parse

        parse("\\boxed{\\frac{1}{2}}", extraction_config=[LatexExtractionConfig()], parsing_timeout=None)


def _serve(requests: int, replies: int, settings: dict[str, Any]) -> None:
    """A worker: chunks of tasks in, one reply a task out."""
    _die_with_nursery()
    source = os.fdopen(requests, "rb")
    sink = os.fdopen(replies, "wb", buffering=0)
    _limit_memory(settings["memory_mb"])

    def before_second_reader() -> None:
        if "math_verify" not in sys.modules:
            send(sink, "pause")
            _limit_memory(None)
            _load_second_reader()
            _limit_memory(settings["memory_mb"])
            send(sink, "start")

    second_reader.before_second_reader = before_second_reader
    try:
        send(sink, ("ready", os.getpid()))
        while (tasks := receive(source)) is not None:
            send(sink, "start")
            for task in tasks:
                reply = answer(task)
                send(sink, reply)
                if reply[1] == "memory":
                    return  # the heap is not what it was
    except (BrokenPipeError, EOFError):
        return


def _die_with_nursery() -> None:
    nursery_pid = os.getppid()
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != nursery_pid:
        os._exit(1)


def _limit_memory(megabytes: int | None) -> None:
    """Address space beyond what is mapped now; None: no limit."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        if megabytes is None:
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            return
        with open("/proc/self/statm") as file:
            mapped = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + megabytes * 2**20, hard))


def answer(task: Task) -> Reply:
    began = time.perf_counter()
    outcome, rule, trace = "error", "exception", ""
    try:
        if task[0] == "judge":
            verdict = answers.judge(task[1], task[2], gold_list=task[3])
            outcome, rule = verdict.outcome, verdict.rule
        elif task[0] == "equivalent":
            outcome, rule = ("match" if answers.equivalent(task[1], task[2]) else "mismatch"), "equivalent"
        elif task[0] == "reward":
            outcome, rule = "match", json.dumps([float(v) for v in answers.load_custom(task[1])(task[2])])
        else:
            verdict = answers.custom_verdict(answers.load_custom(task[1]), task[2], task[3])
            outcome, rule = verdict.outcome, verdict.rule or "custom"
    except MemoryError:
        outcome, rule = "timeout", "memory"  # like time: a limit the answer ran into, not a fault of the grader
    except Exception:
        trace = traceback.format_exc(limit=-12)
    return outcome, rule, time.perf_counter() - began, trace


def send(stream: Any, message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    view = memoryview(struct.pack("!I", len(data)) + data)
    while view:
        view = view[stream.write(view) :]


def receive(stream: Any) -> Any:
    """The next message of a blocking stream; None at its end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = struct.unpack("!I", head)[0]
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None
