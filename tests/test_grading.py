"""The pool: deadlines, replacement, order, counts, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concisecli.config import GraderConfig
from concisecli.grader.answers import check
from concisecli.grader.grading import GradeItem, GraderPool
from concisecli.records import ConciseError

CHECKS = '''
import os, time

def spin(response, gold):
    """What each response asks for: hang in C, die, raise, eat memory, or answer."""
    if response == "hang":
        pow(7, 10**9)  # one long C call that no Python signal handler interrupts
    if response == "sleep":
        time.sleep(3600)
    if response == "die":
        os._exit(3)
    if response == "raise":
        raise ValueError("as asked")
    if response == "eat":
        return bytes(8 * 2**30) and "match"
    if response == "pid":
        open(gold, "w").write(str(os.getpid()))
        time.sleep(3600)
    return "match" if response == gold else "mismatch"
'''
HARD = "\\sum_{n=1}^{10^{12}} n^{n}"


def box(text: str) -> str:
    return f"So \\boxed{{{text}}}"


def members(values) -> str:
    return "\\{" + ",".join(map(str, values)) + "\\}"


@pytest.fixture(scope="module")
def pool():
    with GraderPool(GraderConfig(workers=2, deadline_s=2)) as pool:
        pool.warm()
        yield pool


@pytest.fixture
def custom(tmp_path, monkeypatch):
    (tmp_path / "pool_checks.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("pool_checks", None)
    return "pool_checks:spin"


def gone(pids: list[int], seconds: float = 10.0) -> bool:
    """Whether all processes end within a time; a zombie has ended."""

    def running(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    end = time.monotonic() + seconds
    while any(running(p) for p in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def processes(pool: GraderPool) -> list[int]:
    inside = pool._processes
    return [w.pid for w in inside.workers if w.pid] + ([inside.nursery.pid] if inside.nursery else [])


def test_verdicts_keep_the_order_of_the_items(pool):
    items = [GradeItem(box(f"{n}+1"), n + 1 + (n % 3 == 0)) for n in range(60)]
    verdicts = pool.grade(items)
    assert [v.correct for v in verdicts] == [n % 3 != 0 for n in range(60)]
    assert [v.extracted for v in verdicts] == [f"{n}+1" for n in range(60)]


def test_counts_sum_to_the_items(pool):
    before = sum(pool.counts.values())
    pool.grade([GradeItem(box("1"), 1), GradeItem("", 1), GradeItem(box("2"), 1), GradeItem(box("1+1"), 2)])
    assert sum(pool.counts.values()) == before + 4
    assert set(pool.counts) == {"match", "mismatch", "no_answer", "timeout", "error"}


def test_a_pool_that_text_can_serve_starts_no_process():
    began = time.monotonic()
    with GraderPool(GraderConfig(profile="strict", workers=2)) as pool:
        items = [GradeItem(f"<think>A20-6=14;B{n}</think><answer>{n % 40}</answer>", str(n % 37)) for n in range(256)]
        verdicts = pool.grade(items)
        assert processes(pool) == []
    assert sum(v.correct for v in verdicts) == sum(n % 40 == n % 37 for n in range(256))
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("name", "response", "gold"),
    [
        ("power tower", box("9^{9^{9^{9^{9}}}}"), "9"),
        ("two towers", box("9^{9^{9}}"), "2^{2^{2^{2^{2}}}}"),
        ("tower in a fraction", box("\\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}"), "42"),
        ("factorials of factorials", box("((((9!)!)!)!)!"), "3"),
        ("set of 2,000", box(members(range(2000))), members([*range(1999, 0, -1), 5])),
        ("set of 2,000 roots", box(members(f"\\sqrt{{{n}}}" for n in range(2000))), "\\{1,2\\}"),
        ("500 brackets", box("(" * 500 + "1" + "+1)" * 500), "7"),
        ("500 fractions", box("\\frac{1}{1+" * 500 + "1" + "}" * 500), "2"),
        ("1 MB of digits", box("7" * 10**6), "7"),
        ("1 MB of digits twice", box("7" * 10**6), "7" * (10**6 - 1) + "8"),
        ("many formulas", "$1$ " * 20_000, "1"),
        ("many formulas in a box", box("$1$ " * 20_000), "1"),
        ("garbage unicode", box("".join(map(chr, range(0x100, 0x3000)))), "1"),
        ("lone surrogates", box("\ud800\udfff"), "1"),
        ("stacked accents", box("5" + "\u0301" * 5000), "1"),
        ("endless sum", box(HARD), "0"),
        ("endless product", box("\\prod_{n=1}^{10^{9}} n!"), "0"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["main", "thread"])
def test_hostile_answers_come_back_in_time_and_leave_the_pool_usable(pool, where, name, response, gold):
    def ask() -> float:
        began = time.monotonic()
        (verdict,) = pool.grade([GradeItem(response, gold)])
        assert not verdict.correct
        return time.monotonic() - began

    if where == "main":
        spent = ask()
    else:
        with ThreadPoolExecutor(1) as threads:
            spent = threads.submit(ask).result()
    assert spent < pool.config.deadline_s + 1, name
    assert pool.grade([GradeItem(box("2+2"), 4)])[0].correct


def test_a_timeout_is_not_a_mismatch(pool):
    verdict = pool.grade([GradeItem(box(HARD), "7")])[0]
    assert (verdict.outcome, verdict.rule) == ("timeout", "deadline")


def test_a_burst_of_easy_pairs_meets_a_short_deadline(pool):
    with GraderPool(GraderConfig(workers=2, deadline_s=1)) as burst:
        verdicts = burst.grade([GradeItem(box(f"{n}\\cdot 3"), 3 * n) for n in range(1000)])
        assert burst.counts == {"match": 1000, "mismatch": 0, "no_answer": 0, "timeout": 0, "error": 0}
    assert len(verdicts) == 1000


def test_the_same_verdict_from_main_thread_threads_and_asyncio(pool):
    items = [
        GradeItem(box(a), g)
        for a, g in [("1/2", 0.5), ("x+1", "1+x"), ("\\sqrt{8}", "2\\sqrt2"), ("3", "\\pi"), ("", "1"), (HARD, "1")]
    ]
    expected = pool.grade(items)
    found: list = []
    thread = threading.Thread(target=lambda: found.append(pool.grade(items)))
    thread.start()
    thread.join()

    async def ask():
        return await asyncio.gather(*(asyncio.to_thread(pool.grade, items) for _ in range(2)))

    found.extend(asyncio.run(ask()))
    assert all(f == expected for f in found)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_verdicts_do_not_depend_on_order_workers_or_memo(pool, data):
    texts = st.sampled_from(
        [
            "1/2",
            "0.5",
            "\\frac12",
            "x+1",
            "1+x",
            "x",
            "2,1",
            "\\{1,2\\}",
            "\\pi/2",
            "3 \\text{ cm}",
            "B",
            "<",
            "\\frac{1}{",
        ]
    )
    items = data.draw(st.lists(st.builds(lambda a, g: GradeItem(box(a), g), texts, texts), min_size=1, max_size=12))
    alone = [check(i.response, i.gold) for i in items]
    order = data.draw(st.permutations(range(len(items))))
    shuffled = pool.grade([items[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(len(items))] == alone
    assert pool.grade(items) == alone


def test_answers_are_clustered_by_equivalence(pool):
    given_answers = [["1/2", "0.5", None, "2", "\\frac{2}{4}", "2.0"], [], [None], ["x+1", "y", "1+x"]]
    assert pool.cluster(given_answers) == [[0, 0, -1, 1, 0, 1], [], [-1], [0, 1, 0]]


# --- a user's own check, and workers that go wrong --------------------------------------------------------------------


def test_workers_that_hang_die_or_raise_cost_one_item_each(custom):
    config = GraderConfig(custom=custom, workers=2, deadline_s=1, max_error_share=0.1)
    wanted = ["a", "hang", "b", "die", "c", "raise", "d", "sleep", "e", "f", "g"]
    with GraderPool(config) as pool:
        verdicts = pool.grade([GradeItem(w, w) for w in wanted])
        outcomes = {"hang": "timeout", "sleep": "timeout", "die": "error", "raise": "error"}
        assert [v.outcome for v in verdicts] == [outcomes.get(w, "match") for w in wanted]
        assert {v.rule for v in verdicts} == {"custom", "deadline", "worker-died", "exception"}
        assert sum(pool.counts.values()) == len(wanted)
        assert all(v.correct for v in pool.grade([GradeItem("x", "x")] * 300))


def test_memory_is_bounded_and_the_items_after_it_are_graded(custom):
    with GraderPool(GraderConfig(custom=custom, workers=1, memory_mb=300, deadline_s=5)) as pool:
        verdicts = pool.grade([GradeItem(w, w) for w in ["a", "eat", "b", "c"]])
    assert [(v.outcome, v.rule) for v in verdicts] == [
        ("match", "custom"),
        ("timeout", "memory"),
        ("match", "custom"),
        ("match", "custom"),
    ]


def test_too_many_errors_stop_the_run_with_the_first_traceback(custom):
    with (
        GraderPool(GraderConfig(custom=custom, workers=1)) as pool,
        pytest.raises(ConciseError, match="ValueError: as asked"),
    ):
        pool.grade([GradeItem("raise", "x")] * 10)
    with GraderPool(GraderConfig(custom=custom, workers=1)) as pool:
        assert [v.outcome for v in pool.grade([GradeItem("raise", "x")] + [GradeItem("x", "x")] * 9)].count(
            "error"
        ) == 1


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from concisecli.config import GraderConfig
from concisecli.grader.grading import GradeItem, GraderPool
if __name__ == "__main__":
    pool = GraderPool(GraderConfig(custom="pool_checks:spin", workers=2, deadline_s=600))
    pool.warm() if sys.argv[3] == "idle" else None
    inside = pool._processes
    if sys.argv[3] == "crash":
        import threading, os, time
        threading.Timer(3.0, lambda: os.abort()).start()
    if sys.argv[3] == "idle":
        print(inside.nursery.pid, *[w.pid for w in inside.workers], flush=True)
        import time; time.sleep(600)
    else:
        import threading
        def tell():
            import time
            while not (inside.nursery and len([w for w in inside.workers if w.pid and w.clock]) == 2):
                time.sleep(0.01)
            print(inside.nursery.pid, *[w.pid for w in inside.workers], flush=True)
        threading.Thread(target=tell, daemon=True).start()
        pool.grade([GradeItem("hang", "x"), GradeItem("hang", "x")])
"""


@pytest.mark.parametrize(
    ("how", "state"),
    [
        (signal.SIGKILL, "busy"),
        (signal.SIGINT, "busy"),
        (signal.SIGTERM, "busy"),
        (signal.SIGKILL, "idle"),
        (None, "crash"),
    ],
)
def test_no_process_outlives_its_parent(tmp_path, custom, how, state):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), "", state],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        assert parent.stdout is not None
        pids = [int(p) for p in parent.stdout.readline().split()]
        assert len(pids) == 3
        if how is not None:
            os.kill(parent.pid, how)
        parent.wait(timeout=30)
        assert gone(pids)
    finally:
        parent.kill()
        parent.wait()


def test_closing_a_pool_leaves_no_process():
    with GraderPool(GraderConfig(workers=2)) as pool:
        pool.warm()
        pids = processes(pool)
        assert len(pids) == 3
    assert gone(pids)
    assert pool.grade([GradeItem(box("1+1"), 2)])[0].correct  # it starts again when asked again
    pids = processes(pool)
    pool.close()
    assert gone(pids)


def test_workers_load_no_torch(pool):
    pool.grade([GradeItem(box(HARD.replace("12", "1")), "1")])
    for pid in processes(pool):
        with open(f"/proc/{pid}/maps") as file:
            assert "torch" not in file.read()
