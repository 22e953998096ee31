"""What a build remembers of its rows outside of memory: rows met, fates, loans, groups of repeats, the draw."""

import pytest

from concisecli.building.cleaning import Drop
from concisecli.building.ledger import Ledger
from concisecli.building.rowwork import Lent
from concisecli.records import ConciseError


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "parts" / "ledger.sqlite") as opened:
        yield opened
    assert not (tmp_path / "parts" / "ledger.sqlite").exists()


def fill(ledger, names, sources=None):
    """One row a name; rows whose names begin alike share key and mark."""
    sources = sources or ["s"] * len(names)
    ledger.add_rows(
        (
            n,
            name[0].encode(),
            name[0].encode(),
            name,
            name.isupper(),
            f"{source} line {n}",
            source,
            False,
            f"text {name}",
        )
        for n, (name, source) in enumerate(zip(names, sources, strict=True))
    )


def gone(ledger):
    return {number: drop.reason for number, drop in ledger.drops()}


def test_the_first_row_of_a_key_and_answer_stands(ledger):
    ledger.meet(b"k", b"1", "s line 1", False)
    ledger.meet(b"k", b"1", "s line 2", True)
    assert (ledger.met(b"k", b"1").place, ledger.met(b"k", b"1").verified) == ("s line 1", False)
    assert ledger.met(b"k", b"2") is None


def test_a_fate_is_kept_by_what_a_row_says(ledger):
    ledger.add_fates({b"a": Drop("proof"), b"b": Drop("duplicate", "of s line 3")})
    assert ledger.fate(b"b") == Drop("duplicate", "of s line 3")
    assert ledger.fate(b"c") is None


def test_what_is_lent_comes_back_whole_from_the_first_that_knows_it(ledger):
    ledger.lend(b"k", Lent(solution="so $\\boxed{1}$ é", difficulty=2.5, source="a"))
    ledger.lend(b"k", Lent(difficulty=9.0, source="b"))
    assert ledger.lent(b"k") == Lent(solution="so $\\boxed{1}$ é", difficulty=2.5, source="a")
    assert ledger.lent(b"q") is None


def test_groups_come_whole_best_rank_first_and_without_what_is_gone(ledger, monkeypatch):
    monkeypatch.setattr("concisecli.building.ledger.BATCH", 2)
    fill(ledger, ["ax", "bx", "by", "BZ", "ay", "c", "az"])
    ledger.drop({6: Drop("duplicate")})
    ledger.index("key")
    found = list(ledger.groups("key"))
    assert [numbers for numbers, _, _ in found] == [[0, 4], [1, 2]]
    assert [texts for _, _, texts in found] == [["text ax", "text ay"], ["text bx", "text by"]]
    assert found[1][1][0].answer == "bx"
    assert ledger.count_left() == {"s": 6}


def test_the_draw_of_a_row_depends_on_seed_and_id_alone(tmp_path):
    names = [chr(0x100 + i) for i in range(60)]

    def drawn(order, limit, seed):
        with Ledger(tmp_path / "l.sqlite") as ledger:
            fill(ledger, order)
            ledger.draw(None, limit, seed)
            return {order[n] for n in range(60)} - {order[n] for n in gone(ledger)}

    kept = drawn(names, 30, 0)
    assert len(kept) == 30
    assert kept == drawn(names[::-1], 30, 0)
    assert drawn(names, 10, 0) < kept
    assert kept != drawn(names, 30, 1)


def test_every_source_keeps_its_quota_and_what_is_gone_does_not_count(ledger):
    fill(ledger, [chr(0x100 + i) for i in range(20)], ["a"] * 12 + ["b"] * 8)
    ledger.drop({0: Drop("conflict")})
    ledger.draw({"a": 5, "b": 2}, 0, 0)
    assert ledger.count_left() == {"a": 5, "b": 2}
    assert sorted(gone(ledger).values()).count("not-drawn") == 12


def test_a_full_disk_is_one_clear_line(ledger):
    ledger.base.execute("pragma max_page_count=12")
    with pytest.raises(ConciseError, match=r"cannot write .*ledger\.sqlite: database or disk is full"):
        fill(ledger, ["x" * 200 + str(i) for i in range(5000)])
