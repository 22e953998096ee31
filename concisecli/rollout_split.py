"""The vLLM engine in a process of its own, on devices of its own: `placement: split`.

The trainer's side is here, the engine's in `split_worker`. They speak over a pipe; weights go through files in shared
memory, a bucket at a time. Whoever waits looks whether the other still lives, and says which side it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from concisecli import collectives
from concisecli.config import VllmConfig
from concisecli.records import Completion, ConciseError
from concisecli.rollout import AsDone, EngineLost, MemoryPart, Sampling, SamplingLike, Wakefulness
from concisecli.weight_files import BUCKET_BYTES, buckets, written

LOOK_S = 0.5  # between two looks at whether the other side lives
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


class SplitEngine:
    """A RolloutEngine whose work is done by a process of its own, which ends with this one.

    Raises EngineLost when that process ends or does not answer for `answer_timeout_s`; ConciseError for what the
    engine itself refuses.
    """

    def __init__(self, config: VllmConfig, model: Path, *, longest: int | None = None) -> None:
        self.config = config
        self._devices = devices_of(config, collectives.local_rank())
        self._line, theirs = Pipe()
        self._process = _start(theirs, self._devices)
        theirs.close()
        self._end = weakref.finalize(self, _end, self._process, self._line)
        self.wakefulness = Wakefulness()
        self._send((config.model_copy(update={"placement": "colocated"}), model, longest), "start")
        self._answer("start")

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingLike,
        seeds: Sequence[Sequence[int]],
        *,
        as_done: AsDone | None = None,
    ) -> list[list[Completion]]:
        self.wakefulness.check("generate")
        plain = Sampling(
            sampling.temperature, sampling.top_p, sampling.min_p, sampling.max_response_tokens, tuple(sampling.stop)
        )
        asked = ([list(p) for p in prompts], plain, [list(row) for row in seeds])
        return self._call("generate", *asked, as_done=as_done)

    def probe(self, ids: Sequence[int]) -> list[float]:
        self.wakefulness.check("generate")
        return self._call("probe", list(ids))

    def sync_weights(self, named: Iterable[tuple[str, Any]]) -> None:
        """Every bucket is taken over before the next is written, so at most one lies in memory."""
        with self.wakefulness.during("sync"):
            self._send(("sync_weights", ()), "sync_weights")
            for bucket in buckets(((name, weight.detach()) for name, weight in named), BUCKET_BYTES):
                with written(bucket) as file:
                    self._send(str(file), "sync_weights")
                    self._answer("sync_weights")
            self._send(None, "sync_weights")
            self._answer("sync_weights")

    def sleep(self) -> None:
        """Frees nothing: the trainer has other devices."""
        with self.wakefulness.during("sleep"):
            pass

    def wake(self, part: MemoryPart) -> None:
        """Takes nothing; see `sleep`."""
        with self.wakefulness.during(f"wake {part}"):
            pass

    def close(self) -> None:
        self.wakefulness.close()
        self._end()

    def _call(self, method: str, *arguments: Any, as_done: AsDone | None = None) -> Any:
        self._send((method, arguments), method)
        return self._answer(method, as_done)

    def _send(self, message: Any, method: str) -> None:
        try:
            self._line.send(message)
        except OSError as error:
            raise self._lost(method) from error

    def _answer(self, method: str, as_done: AsDone | None = None) -> Any:
        while True:
            kind, *values = self._receive(method)
            if kind == "group":
                if as_done is not None:
                    as_done(*values)
            elif kind == "refused":
                raise ConciseError(values[0])
            elif kind == "failed":
                raise EngineLost(f"{self._name} failed at {method}: {values[0]}; the trainer is alive")
            else:
                return values[0]

    def _receive(self, method: str) -> tuple[Any, ...]:
        limit = self.config.start_timeout_s if method == "start" else self.config.answer_timeout_s
        since = time.monotonic()
        try:
            while not self._line.poll(LOOK_S):
                if time.monotonic() - since > limit:
                    raise EngineLost(
                        f"{self._name} is alive but has not answered to {method} for {limit:g} s; the trainer is alive"
                    )
            return self._line.recv()
        except (EOFError, OSError) as error:
            raise self._lost(method) from error

    def _lost(self, method: str) -> EngineLost:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return EngineLost(f"{self._name} closed its line at {method}; the trainer is alive")
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return EngineLost(f"{self._name} ended {how} at {method}; the trainer is alive")

    @property
    def _name(self) -> str:
        where = f" on device {','.join(map(str, self._devices))}" if self._devices else ""
        return f"the rollout engine (process {self._process.pid}{where})"


def devices_of(config: VllmConfig, local_rank: int) -> tuple[int, ...]:
    """The devices of the engine that serves this rank: as many as the model is cut over, after those of the ranks
    before it. Empty: whatever the process sees."""
    if not config.devices:
        return ()
    size = config.tensor_parallel_size
    mine = config.devices[local_rank * size : (local_rank + 1) * size]
    if len(mine) < size:
        raise ConciseError(
            f"engine.devices names {len(config.devices)} devices, too few for the engine of rank {local_rank}; each "
            f"rank needs tensor_parallel_size = {size} of them"
        )
    return mine


def _start(line: Connection, devices: Sequence[int]) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in os.environ.items() if name not in LAUNCHER and not name.startswith("SLURM_")}
    if devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    env["PYTHONPATH"] = os.pathsep.join(os.getcwd() if p == "" else p for p in sys.path)
    return subprocess.Popen(
        [sys.executable, "-m", "concisecli.split_worker", str(line.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else subprocess.DEVNULL,  # stdout is for results
        pass_fds=(line.fileno(),),
        env=env,
    )


def _has_fileno(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (OSError, ValueError, AttributeError):
        return False


def _end(process: subprocess.Popen[bytes], line: Connection) -> None:
    line.close()  # the worker ends when it reads on
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
