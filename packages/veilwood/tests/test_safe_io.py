# SPDX-License-Identifier: Apache-2.0
"""Bounded parsing of numbers, texts and JSON, and files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import veilwood as vw
from veilwood import safe_io as bounded
from veilwood.cli.main import main
from veilwood.errors import FileError, UnreadableError
from veilwood.models.file import sign, verify
from veilwood.privacy import signature
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.safe_io import MAX_DIGITS, MAX_NESTING, parse_fraction, read_json, read_text, write_file
from veilwood_testing.errors import rejects
from veilwood_testing.hostile_input import HOSTILE, LONG_EXPONENT, LONG_NUMBERS, SCHEMA, nested_list, within_time_limit

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


# -- numbers and JSON --------------------------------------------------------------------------------------------


@given(st.fractions(max_denominator=10**30) | st.decimals(-(10**20), 10**20, places=12))
def test_numbers_within_bounds_are_read_exactly(value: Fraction | Decimal) -> None:
    assert parse_fraction(str(value)) == value


@given(st.floats(-1e299, 1e299).filter(lambda value: value == 0 or abs(value) > 1e-299))
def test_floats_are_read_as_they_are_written(value: float) -> None:
    assert parse_fraction(repr(value)) == Fraction(repr(value))


@pytest.mark.parametrize("text", LONG_NUMBERS, ids=lambda text: text[:14])
def test_long_numbers_are_refused_unread(text: str) -> None:
    with within_time_limit(), rejects(UnreadableError, raised_in="parse_fraction"):
        parse_fraction(text)
    with within_time_limit(), rejects(UnreadableError, raised_in="parse_fraction"):
        requested_loss(text, 0)
    with within_time_limit(), rejects(UnreadableError, raised_in="parse_fraction"):
        requested_loss(1, text)


@pytest.mark.parametrize("make", [Decimal, Fraction, int], ids=lambda make: make.__name__)
def test_long_numbers_are_refused_in_any_type(make: Any) -> None:
    for value in (
        (Decimal(LONG_EXPONENT), Decimal("1e-9999999")) if make is Decimal else (make(10**5000), 1 / Fraction(10**5000))
    ):
        with within_time_limit(), pytest.raises(vw.VeilwoodError, match="digits"):
            requested_loss(value, 0)


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", "nan", "inf", "-inf", "1e", "e5", "1//2", "1/2/3", "0x10", "1 2", None, 1, 1.5, b"1"]
)
def test_what_is_no_number_is_refused(text: Any) -> None:
    with rejects(UnreadableError, raised_in="parse_fraction"):
        parse_fraction(text)


def test_the_limit_is_exact() -> None:
    assert parse_fraction("9" * 250 + "/" + "1" + "0" * (MAX_DIGITS - 1)) > 0
    with rejects(UnreadableError, raised_in="check_digits"):
        parse_fraction("9" * 250 + "/1" + "0" * MAX_DIGITS)
    with rejects(UnreadableError, raised_in="check_digits"):  # what no float can hold
        parse_fraction("1e310")
    with rejects(UnreadableError, raised_in="check_digits"):
        parse_fraction("1e-310")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_json_is_read_as_it_was_written(value: Any, ascii_only: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return  # half of a pair is no text
    assert read_json(text) == read_json(text.encode()) == value


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused(name: str) -> None:
    text, reason = HOSTILE[name]
    with within_time_limit(), pytest.raises(vw.VeilwoodError, match=reason) as raised:
        read_json(text, 99 if name == "too much" else bounded.MAX_BYTES)
    assert len(str(raised.value)) < 400


def test_nesting_up_to_the_limit_is_read() -> None:
    assert read_json(nested_list(MAX_NESTING)) == json.loads(nested_list(MAX_NESTING))


def test_files_without_an_end_are_not_read() -> None:
    with within_time_limit(), rejects(UnreadableError, raised_in="read_file"):
        read_text("/dev/zero", 1000)
    with within_time_limit(), rejects(vw.ModelFileError, raised_in="load_signed"):
        vw.load("/dev/zero")


def test_long_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 1001)
    with rejects(UnreadableError, raised_in="read_text"):
        read_text(tmp_path / "long", 1000)
    assert read_text(tmp_path / "long", 1001) == "x" * 1001


def check_signature_in(pipe: Path) -> None:
    signature.generate_key_pair(pipe.parent / "my.key")
    pipe.rename(pipe.parent / "model.sig")
    signature.verify_signature(pipe.parent / "model", pipe.parent / "my.key.pub", "model")


READERS: dict[str, Callable[[Path], Any]] = {
    "schema": vw.Schema.load,
    "plan": vw.Plan.load,
    "model": vw.load,
    "signed model": lambda path: vw.load(path, signed_by=path),
    "verify": lambda path: verify(path, path),
    "sign": lambda path: sign(path, path),
    "key": lambda path: signature.write_signature(path, {}, path),
    "signature": lambda path: check_signature_in(path),
    "table": lambda path: vw.RandomTreesClassifier(SCHEMA).fit(path),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_that_nobody_writes_to_is_refused(name: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with within_time_limit(), pytest.raises(vw.VeilwoodError, match="not an ordinary file"):
        READERS[name](pipe)


# -- losses, plans, ledgers --------------------------------------------------------------------------------------


def test_sums_of_losses_do_not_grow_without_end() -> None:
    primes = [p for p in range(2, 30_000) if all(p % q for q in range(2, int(p**0.5) + 1))]
    losses = [Loss.pure(Fraction(1, p)) for p in primes]
    assert Loss.total(losses[:200]).epsilon == sum(Fraction(1, p) for p in primes[:200])
    with within_time_limit(), rejects(UnreadableError, raised_in="check_digits"):
        Loss.total(losses)
    ledger = vw.MemoryLedger()
    refused = None
    with within_time_limit():
        for loss in losses:
            try:
                ledger.reserve(loss, what="x", neighbours="rows", plan="0")
            except vw.LedgerError as error:
                refused = str(error)
                break
    assert refused is not None
    assert "4,000 digits" in refused
    before = ledger.spent
    ledger.reserve(Loss.pure(Fraction(1, 2)), what="x", neighbours="rows", plan="0").commit()  # it still works
    assert ledger.spent == before + Loss.pure(Fraction(1, 2))
    ledger.verify()


@pytest.mark.parametrize("text", LONG_NUMBERS, ids=lambda text: text[:14])
@pytest.mark.parametrize("where", ["balance", "events"])
@pytest.mark.parametrize("part", ["epsilon", "delta", "rho"])
def test_a_ledger_with_absurd_numbers_is_damaged(part: str, where: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    book = vw.SQLiteLedger(path, 3, 1e-6)
    book.reserve(Loss.pure(Fraction(1)), what="x", neighbours="rows", plan="0")
    for record in ("budget", "spent" if where == "balance" else "loss"):

        def absurd(body: dict[str, Any], record: str = record) -> dict[str, Any]:
            return body | {record: body[record] | {part: text}} if body.get(record) else body

        edit_records(path, where, absurd)
        with within_time_limit():
            open_and_use(path)


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep": lambda body: json.loads(nested_list(500)),
    "deep inside": lambda body: body | {"x": json.loads(nested_list(500))},
    "a number": lambda body: 7,
    "a list": lambda body: [],
    "a text": lambda body: "x",
    "many digits": lambda body: body | {"version": 10**4000},
    "no loss": lambda body: body | {"loss": None, "spent": None},
    "a list as loss": lambda body: body | {"loss": [], "spent": []},
    "unknown parts": lambda body: body | {"loss": {"x": "1"}, "spent": {"x": "1"}},
    "large": lambda body: body | {"loss": {"epsilon": "1e299", "delta": "0", "rho": "1e299"},
                                  "spent": {"epsilon": "1e299", "delta": "0", "rho": "1e299"}},
    "large budget": lambda body: body | {"budget": {"epsilon": "1e299", "delta": "1e-299", "rho": None}},
    "numbers for texts": lambda body: body | {"what": 7, "neighbours": [], "plan": {}, "time": None},
    "an odd event": lambda body: body | {"event": ["reserved"]},
    "a long text": lambda body: body | {"what": "x" * 3_000_000, "neighbours": "y" * 3_000_000},
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("where", ["balance", "events"])
def test_a_ledger_with_odd_records_is_damaged(where: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    book = vw.SQLiteLedger(path, 3, 1e-6)
    book.reserve(Loss.pure(Fraction(1)), what="x", neighbours="rows", plan="0")
    if (where, name) == ("balance", "an odd event"):
        pytest.skip("the balance is no event")
    edit_records(path, where, RECORDS[name])
    with within_time_limit():
        open_and_use(path)


def edit_records(path: Path, table: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edit all records of a table and mend the chain of hashes, as a clever editor would."""
    with closing(sqlite3.connect(path)) as connection:
        head = ""
        key = "number" if table == "events" else "one"
        for number, body in connection.execute(f"SELECT {key}, body FROM {table} ORDER BY {key}").fetchall():
            new = json.dumps(change(json.loads(body)), sort_keys=True, separators=(",", ":"))
            connection.execute(f"UPDATE {table} SET body = ? WHERE {key} = ?", (new, number))
            if table == "events":
                head = hashlib.sha256((head + new).encode()).hexdigest()
                connection.execute("UPDATE events SET hash = ? WHERE number = ?", (head, number))
        connection.commit()


def open_and_use(path: Path) -> None:
    """Ask a ledger everything; at least one answer is that it is damaged or altered."""
    reasons = []
    loss = Loss.pure(Fraction(1, 10))
    requests: list[Callable[[Any], Any]] = [
        lambda book: book.verify(), lambda book: book.entries(), lambda book: book.spent, lambda book: book.remaining,
        lambda book: book.can_afford(loss), lambda book: str(book),
        lambda book: book.reserve(loss, what="x", neighbours="rows", plan="0").commit(),
    ]  # fmt: skip
    for ask in requests:
        try:
            ask(vw.SQLiteLedger(path))
        except vw.LedgerError as error:
            reasons.append(str(error))
    assert all(len(reason) < 2000 for reason in reasons)
    assert any(word in reason for reason in reasons for word in ("damaged", "altered", "cannot be read"))


def test_a_ledger_that_computes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    vw.SQLiteLedger(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE balance; CREATE VIEW balance AS "
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT 1 AS one, CAST(max(i) AS TEXT) AS body FROM n;"
        )
    with within_time_limit(), rejects(vw.LedgerError, raised_in="SQLiteLedger.__init__"):
        vw.SQLiteLedger(path)


@pytest.mark.parametrize("text", LONG_NUMBERS, ids=lambda text: text[:14])
def test_the_command_line_answers_at_once(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SCHEMA.save(tmp_path / "s.json")
    ledger = tmp_path / "x.db"
    for words in (
        ["plan", "--schema", str(tmp_path / "s.json"), f"--epsilon={text}"],
        ["plan", "--schema", str(tmp_path / "s.json"), "--delta", text],
        ["plan", "--schema", str(tmp_path / "s.json"), "-e", "greedy-forest", "--param", f"split_share={text}"],
        ["plan", "--schema", str(tmp_path / "s.json"), "--param", f"random_state={text}"],
        ["plan", "--schema", str(tmp_path / "s.json"), "--param", f"random_state={nested_list(5000)}"],
        ["ledger", "create", str(ledger), f"--epsilon={text}"],
    ):
        with within_time_limit():
            code = main(words)
        out, err = capsys.readouterr()
        assert (code, "Traceback" in out + err) == (2, False), (words, out, err)
        assert err.startswith("error: ")
        assert len(err) < 10_000
    assert not ledger.exists()


def test_a_secure_task_with_an_absurd_epsilon_is_refused(tmp_path: Path) -> None:
    config = pytest.importorskip("veilwood_secure.roles.config")
    for text in LONG_NUMBERS:
        with within_time_limit(), pytest.raises(vw.VeilwoodError):
            _ = config.Task("t", SCHEMA.to_dict(), text, {"a": None}, ("u",)).loss
    for name, (hostile, _) in HOSTILE.items():
        if name == "too much":
            continue
        file = tmp_path / "config.json"
        file.write_bytes(hostile if isinstance(hostile, bytes) else hostile.encode())
        with within_time_limit(), pytest.raises(vw.VeilwoodError):
            config.Config.load(file)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_file(path, b"a long first version")
    write_file(path, b"short")
    assert path.read_bytes() == b"short"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_file(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with rejects(FileError, raised_in="write_file"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["plan.json"]  # nothing unfinished is left behind


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with rejects(FileError, raised_in="write_file"):
        write_file(tmp_path / "nowhere" / "plan.json", b"")
