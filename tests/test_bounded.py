# SPDX-License-Identifier: Apache-2.0
"""Files and messages of a few bytes that ask for hours or gigabytes: each is answered at once, by an error of ours."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as write_safetensors

import veilwood as vw
from veilwood import bounded
from veilwood.bounded import MOST_DIGITS, MOST_NESTED, rational, read_json, read_text
from veilwood.cli.main import main
from veilwood.models import file as model_file
from veilwood.privacy.loss import Loss, requested_loss
from veilwood.privacy.plan import Plan
from veilwood.trees.forest import MAX_DEPTH, Forest, _window_maxima
from veilwood.wording import shown

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
SECONDS = 5.0  # 10^9,999,999 alone takes longer to compute
LONG = "1e9999999"
LONG_NUMBERS = [
    LONG,
    "1e-9999999",
    "-1e9_999_999",
    "1e+00009999999",
    f"1/{'9' * 5000}",
    "9" * 5000,
    "0." + "0" * 5000 + "1",
]


@contextmanager
def in_time() -> Iterator[None]:
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SECONDS


# -- numbers and JSON --------------------------------------------------------------------------------------------


@given(st.fractions(max_denominator=10**30) | st.decimals(-(10**20), 10**20, places=12))
def test_numbers_within_bounds_are_read_exactly(value: Fraction | Decimal) -> None:
    assert rational(str(value)) == value


@given(st.floats(-1e299, 1e299).filter(lambda value: value == 0 or abs(value) > 1e-299))
def test_floats_are_read_as_they_are_written(value: float) -> None:
    assert rational(repr(value)) == Fraction(repr(value))


@pytest.mark.parametrize("text", LONG_NUMBERS, ids=lambda text: text[:14])
def test_long_numbers_are_refused_unread(text: str) -> None:
    with in_time(), pytest.raises(vw.VeilwoodError, match="400 digits"):
        rational(text)
    with in_time(), pytest.raises(vw.VeilwoodError, match="digits|above 0"):
        requested_loss(text, 0)
    with in_time(), pytest.raises(vw.VeilwoodError, match="digits|between 0"):
        requested_loss(1, text)


@pytest.mark.parametrize("make", [Decimal, Fraction, int], ids=lambda make: make.__name__)
def test_long_numbers_are_refused_in_any_type(make: Any) -> None:
    for value in (
        (Decimal(LONG), Decimal("1e-9999999")) if make is Decimal else (make(10**5000), 1 / Fraction(10**5000))
    ):
        with in_time(), pytest.raises(vw.VeilwoodError, match="digits"):
            requested_loss(value, 0)


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", "nan", "inf", "-inf", "1e", "e5", "1//2", "1/2/3", "0x10", "1 2", None, 1, 1.5, b"1"]
)
def test_what_is_no_number_is_refused(text: Any) -> None:
    with pytest.raises(vw.VeilwoodError, match="not a"):
        rational(text)


def test_the_limit_is_exact() -> None:
    assert rational("9" * 250 + "/" + "1" + "0" * (MOST_DIGITS - 1)) > 0
    with pytest.raises(vw.VeilwoodError, match="more than 400 digits"):
        rational("9" * 250 + "/1" + "0" * MOST_DIGITS)
    with pytest.raises(vw.VeilwoodError, match="beyond 10"):  # what no float can hold
        rational("1e310")
    with pytest.raises(vw.VeilwoodError, match="closer to 0"):
        rational("1e-310")


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


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "unclosed": ("[" * 1_000_000, "nested|JSON"),
    "deep list": (nested(200_000), "nested"),
    "deep object": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested"),
    "a little too deep": (nested(MOST_NESTED + 2), "nested"),
    "digits": ("9" * 5000, "digits"),
    "negative digits": ("-" + "9" * MOST_DIGITS, "digits"),
    "beyond floats": ("1e999", "finite"),
    "long exponent": (LONG, "finite"),
    "not a number": ("[NaN]", "finite"),
    "infinity": ("-Infinity", "finite"),
    "twice": ('{"a": 1, "b": {"c": 1, "c": 1}}', "'c' stands twice"),
    "half of a pair": ('"\\ud800"', "surrogates"),
    "no UTF-8": (b'"\xff"', "utf-8"),
    "empty": ("", "JSON"),
    "too much": ("1" + " " * 99, "99 bytes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json_is_refused(name: str) -> None:
    text, reason = HOSTILE[name]
    with in_time(), pytest.raises(vw.VeilwoodError, match=reason) as told:
        read_json(text, 99 if name == "too much" else bounded.MOST_BYTES)
    assert len(str(told.value)) < 400


def test_nesting_up_to_the_limit_is_read() -> None:
    assert read_json(nested(MOST_NESTED)) == json.loads(nested(MOST_NESTED))


def test_files_without_an_end_are_not_read() -> None:
    with in_time(), pytest.raises(vw.VeilwoodError, match="more than 1,000 bytes"):
        read_text("/dev/zero", 1000)
    with in_time(), pytest.raises(vw.ModelFileError, match="no ordinary file"):
        vw.load("/dev/zero")


def test_any_value_is_shown_in_a_short_line() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (10**5000, deep, Silent(), "x" * 10**6, "a\nb\r\tc", "\ud800", np.zeros((99, 99)), None):
        text = shown(value)
        assert len(text) < 150
        assert text.isprintable()


# -- losses, plans, ledgers --------------------------------------------------------------------------------------


def test_sums_of_losses_do_not_grow_without_end() -> None:
    primes = [p for p in range(2, 30_000) if all(p % q for q in range(2, int(p**0.5) + 1))]
    losses = [Loss.pure(Fraction(1, p)) for p in primes]
    assert Loss.total(losses[:200]).epsilon == sum(Fraction(1, p) for p in primes[:200])
    with in_time(), pytest.raises(vw.VeilwoodError, match="4,000 digits"):
        Loss.total(losses)
    ledger = vw.MemoryLedger()
    with in_time(), pytest.raises(vw.LedgerError, match="4,000 digits"):
        for loss in losses:
            ledger.reserve(loss, what="x", neighbours="rows", plan="0")
    before = ledger.spent
    ledger.reserve(Loss.pure(Fraction(1, 2)), what="x", neighbours="rows", plan="0").commit()  # it still works
    assert ledger.spent == before + Loss.pure(Fraction(1, 2))
    ledger.verify()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything inside plain values."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def altered(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with one place changed; ``...`` takes it out."""
    if not path:
        return new
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copy


ODD: list[Any] = [
    ..., None, True, -1, 0, 1, 2**40, 10**250, 0.5, -0.5, 1e300, 1e-300, "", "x", "0", "-1", "1/3", LONG, "1e-9999999", "1e-299",
    "1e299", "9" * 300, f"1/{'7' * 300}", "9" * 5000, "nan", "inf", "x" * 10_000, [], [[]], ["x"], [1], [2**40] * 3, {},
    {"id": "x", "at_most": 10**30}, {"a": 1}, {"kind": "NoisyMax", "epsilon": "1", "score_range": "1"},
    {"kind": "SparseLaplace", "scale": "1e-299"}, {"kind": "DiscreteGaussian", "sigma_squared": "1e24"},
    {"kind": "DiscreteLaplace", "scale": "1e-299", "backend": "opendp"},
]  # fmt: skip


def fitted(kind: Any, **parameters: Any) -> Any:
    rng = np.random.default_rng(0)
    X = rng.random((200, 2))
    return kind(SCHEMA, random_state=0, n_jobs=1, **parameters).fit(X, np.where(X[:, 0] > 0.5, "yes", "no"))


MODELS: dict[str, Callable[[], Any]] = {
    "random trees": lambda: fitted(vw.RandomTreesClassifier, n_estimators=2, max_depth=2),
    "Gaussian": lambda: fitted(vw.MedianForestClassifier, n_estimators=2, max_depth=2, delta=1e-6),
    "matrix": lambda: fitted(vw.MatrixForestClassifier, n_estimators=2, max_depth=2),
    "cells": lambda: fitted(vw.PrivateForestClassifier, epsilon=20.0, method="cells"),
    "tables": lambda: fitted(vw.PrivateForestClassifier, n_rows=200, method="tables"),
}


def test_odd_plans_are_refused_or_read() -> None:
    for name in ("random trees", "Gaussian"):
        plan = MODELS[name]().plan_.to_dict()
        for place in places(plan):
            for value in ODD:
                if not place and value is ...:
                    continue
                with in_time():
                    try:
                        made = Plan.from_dict(altered(plan, place, value))
                        made.explain(), made.to_json(), made.fingerprint()
                    except vw.VeilwoodError as error:
                        assert len(str(error)) < 2000


@pytest.mark.parametrize("text", LONG_NUMBERS, ids=lambda text: text[:14])
@pytest.mark.parametrize("where", ["balance", "events"])
@pytest.mark.parametrize("part", ["epsilon", "delta", "rho"])
def test_a_ledger_with_absurd_numbers_is_damaged(part: str, where: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    book = vw.SQLiteLedger(path, 3, 1e-6)
    book.reserve(Loss.pure(Fraction(1)), what="x", neighbours="rows", plan="0")
    for record in ("budget", "spent" if where == "balance" else "loss"):
        edit_records(
            path,
            where,
            lambda body, record=record: body | {record: body[record] | {part: text}} if body.get(record) else body,
        )
        with in_time():
            open_and_use(path)


RECORDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep": lambda body: json.loads(nested(500)),
    "deep inside": lambda body: body | {"x": json.loads(nested(500))},
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
    with in_time():
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
    asked: list[Callable[[Any], Any]] = [
        lambda book: book.verify(), lambda book: book.entries(), lambda book: book.spent, lambda book: book.remaining,
        lambda book: book.can_afford(loss), lambda book: str(book),
        lambda book: book.reserve(loss, what="x", neighbours="rows", plan="0").commit(),
    ]  # fmt: skip
    for ask in asked:
        try:
            ask(vw.SQLiteLedger(path))
        except vw.LedgerError as error:
            reasons.append(str(error))
            assert len(str(error)) < 2000
    assert any(word in reason for reason in reasons for word in ("damaged", "altered", "cannot be read"))


def test_a_ledger_that_computes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    vw.SQLiteLedger(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP TABLE balance; CREATE VIEW balance AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
            "SELECT 1 AS one, CAST(max(i) AS TEXT) AS body FROM n;"
        )
    with in_time(), pytest.raises(vw.LedgerError, match="damaged"):
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
        ["plan", "--schema", str(tmp_path / "s.json"), "--param", f"random_state={nested(5000)}"],
        ["ledger", "create", str(ledger), f"--epsilon={text}"],
    ):
        with in_time():
            code = main(words)
        out, err = capsys.readouterr()
        assert (code, "Traceback" in out + err) == (2, False), (words, out, err)
        assert err.startswith("error: ")
        assert len(err) < 10_000
    assert not ledger.exists()


def test_a_secure_task_with_an_absurd_epsilon_is_refused(tmp_path: Path) -> None:
    config = pytest.importorskip("veilwood.secure.roles.config")
    for text in LONG_NUMBERS:
        with in_time(), pytest.raises(vw.VeilwoodError):
            _ = config.Task("t", SCHEMA.to_dict(), text, {"a": None}, ("u",)).loss
    for name, (hostile, _) in HOSTILE.items():
        if name == "too much":
            continue
        file = tmp_path / "config.json"
        file.write_bytes(hostile if isinstance(hostile, bytes) else hostile.encode())
        with in_time(), pytest.raises(vw.VeilwoodError):
            config.Config.load(file)


# -- model files -------------------------------------------------------------------------------------------------


def write(path: Path, metadata: dict[str, str], arrays: dict[str, Any]) -> None:
    """Write a model file with a good check sum."""
    path.write_bytes(write_safetensors(arrays, {**metadata, "sha256": model_file._digest(metadata, arrays)}))


def forgeries(metadata: dict[str, str], rng: np.random.Generator, count: int) -> Iterator[dict[str, str]]:
    """Files with one odd value, in which hashes, and mostly the certificate too, fit what they stand for."""
    read = {key: json.loads(metadata[key]) for key in ("parameters", "schema", "plan", "certificate")}
    everywhere = [(key, place) for key, value in read.items() for place in places(value)]
    for _ in range(count):
        key, place = everywhere[rng.integers(len(everywhere))]
        value = ODD[rng.integers(len(ODD))]
        if not place and value is ...:
            continue
        new = {**read, key: altered(read[key], place, value)}
        plan, certificate = new["plan"], new["certificate"]
        if isinstance(certificate, dict) and key != "certificate":
            certificate = {
                **certificate,
                "plan_hash": hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest(),
            }
            if rng.random() < 0.7 and isinstance(plan, dict):
                certificate |= {"released": plan.get("released"), "composition": plan.get("steps")}
                with_unit = {name: plan.get(name) for name in ("epsilon", "delta", "adjacency", "privacy_unit")}
                if isinstance(new["parameters"], dict) and key == "plan":
                    new["parameters"] = {**new["parameters"], **with_unit}
            new["certificate"] = certificate
        yield {**metadata, **{name: json.dumps(value) for name, value in new.items()}}


def try_forgeries(name: str, count: int, path: Path) -> int:
    vw.save(MODELS[name](), path)
    parts = model_file._parse(path.read_bytes())
    loaded = 0
    X = np.random.default_rng(1).random((5, 2))
    for metadata in forgeries(parts.metadata, np.random.default_rng(count), count):
        write(path, metadata, parts.arrays)
        with in_time(), warnings.catch_warnings(action="ignore"):
            try:
                model = vw.load(path)
            except vw.ModelFileError as error:
                assert len(str(error)) < 3000
                continue
            loaded += 1
            model.predict(X), model.predict_proba(X), repr(model), str(model.schema_)
            str(model.privacy_), model.privacy_.to_markdown(), model.privacy_.to_json(), model.plan_.explain()
    return loaded


@pytest.mark.parametrize("name", MODELS)
def test_forged_model_files_are_refused_or_work(name: str, tmp_path: Path) -> None:
    assert try_forgeries(name, 250, tmp_path / "model") > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_forged_model_files_are_refused_or_work(name: str, tmp_path: Path) -> None:
    try_forgeries(name, 10_000, tmp_path / "model")


def test_a_model_file_of_a_few_bytes_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "model"
    vw.save(MODELS["random trees"](), path)
    parts = model_file._parse(path.read_bytes())
    for key in ("plan", "parameters"):
        read = json.loads(parts.metadata[key])
        write(path, {**parts.metadata, key: json.dumps({**read, "epsilon": LONG})}, parts.arrays)
        assert path.stat().st_size < 5000
        with in_time(), pytest.raises(vw.ModelFileError, match="digits"):
            vw.load(path)
    for key in ("plan", "parameters", "schema", "certificate"):
        for name, (text, _) in HOSTILE.items():
            if isinstance(text, str) and name not in ("too much", "unclosed"):
                write(path, {**parts.metadata, key: text}, parts.arrays)
                with in_time(), pytest.raises(vw.ModelFileError):
                    vw.load(path)


HEADERS: dict[str, bytes] = {
    "deep": b'{"__metadata__": ' + b"[" * 100_000,
    "twice": b'{"__metadata__": {"format": "1"}, "__metadata__": {"format": "1"}}',
    "digits": b'{"__metadata__": {"format": "' + b"9" * 5000 + b'"}}',
    "a list": b'{"__metadata__": ["format"]}',
    "a text": b'{"__metadata__": "format"}',
    "numbers": b'{"__metadata__": {"format": 1}}',
    "large shape": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "I32", "shape": [4294967296, 4294967296], '
                   b'"data_offsets": [0, 0]}}',
    "empty large shape": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "I32", "shape": [0, 9223372036854775807], '
                         b'"data_offsets": [0, 0]}}',
    "many dimensions": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "I32", "shape": [' + b"0," * 99 + b'0], '
                       b'"data_offsets": [0, 0]}}',
    "long offsets": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "I32", "shape": [9], "data_offsets": '
                    b'[18446744073709551580, 18446744073709551615]}}',
    "odd type": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "F4", "shape": [0], "data_offsets": [0, 0]}}',
    "no shape": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "I32", "data_offsets": [0, 0]}}',
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_headers_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    header = HEADERS[name]
    for length in (len(header), 2**63, 2**64 - 1, 0):
        path.write_bytes(length.to_bytes(8, "little") + header)
        with in_time(), pytest.raises(vw.ModelFileError):
            vw.load(path)


def chain(n_inner: int) -> dict[str, np.ndarray[Any, Any]]:
    """One tree in which every inner node has a leaf and an inner node below it, in level order."""
    n_nodes = 2 * n_inner + 1
    feature = np.full(n_nodes, -1, np.int32)
    inner = np.concatenate([[0], np.arange(2, 2 * n_inner, 2)])[:n_inner]
    feature[inner] = 0
    child = np.zeros(n_nodes, np.int32)
    child[inner] = 1 + 2 * np.arange(n_inner)
    leaves = np.flatnonzero(feature == -1)
    child[leaves] = np.arange(len(leaves))
    return {
        "roots": np.zeros(1, np.int32), "feature": feature, "cut": np.ones(n_nodes, np.int32), "child": child,
        "lookup": np.zeros(1, np.uint16), "tree_leaves": np.array([0, len(leaves)], np.int32),
    }  # fmt: skip


def test_trees_too_deep_to_walk_are_refused() -> None:
    assert Forest.from_arrays(chain(5), [65535]).depth == 5
    assert Forest.from_arrays(chain(MAX_DEPTH), [65535]).depth == MAX_DEPTH
    with in_time(), pytest.raises(vw.ModelFileError, match="too deep"):
        Forest.from_arrays(chain(MAX_DEPTH + 1), [65535])
    with in_time(), pytest.raises(vw.ModelFileError, match="too deep"):
        Forest.from_arrays(chain(300_000), [65535])


def test_wide_lookups_do_not_fill_the_memory() -> None:
    """10,000 nodes that share one table of 65,535 entries: written out for each node that would be 10 GB."""
    n_trees, width = 10_000, 65_535
    arrays = {
        "roots": 3 * np.arange(n_trees, dtype=np.int32),
        "feature": np.tile(np.array([0, -1, -1], np.int32), n_trees),
        "cut": np.tile(np.array([-1, 0, 0], np.int32), n_trees),
        "child": np.zeros(3 * n_trees, np.int32),
        "lookup": np.r_[np.arange(width) % 2, 0].astype(np.uint16),
        "tree_leaves": 2 * np.arange(n_trees + 1, dtype=np.int32),
    }
    arrays["child"][0::3] = arrays["roots"] + 1
    arrays["child"][1::3], arrays["child"][2::3] = arrays["tree_leaves"][:-1], arrays["tree_leaves"][:-1] + 1
    tracemalloc.start()
    with in_time():
        assert Forest.from_arrays(arrays, [width]).n_leaves == 2 * n_trees
    assert tracemalloc.get_traced_memory()[1] < 1 << 27
    tracemalloc.stop()


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=40), st.integers(1, 40))
def test_largest_values_of_windows(values: list[int], width: int) -> None:
    if width <= len(values):
        wanted = [max(values[start : start + width]) for start in range(len(values) - width + 1)]
        assert _window_maxima(np.array(values, np.uint16), width).tolist() == wanted
