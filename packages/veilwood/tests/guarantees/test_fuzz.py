# SPDX-License-Identifier: Apache-2.0
"""Hostile input: whatever is thrown at what reads from outside, the answer is one of our own errors, in one line.

Flipped and cut model files are also in test_model_file.py, ledgers under kill and damage in test_ledger.py.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import veilwood as vw
from veilwood.cli.main import main
from veilwood.data.encoding import Encoding
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.loss import Loss, requested_loss

FAST = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

# -- schemas, codecs, tables, budgets -----------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
KEYS = ("name", "task", "target", "columns", "kind", "values", "lower", "upper", "bins", "cutoffs", "nullable", "other")


@st.composite
def schemas(draw: st.DrawFn) -> vw.Schema:
    """Valid schemas of either task, with all kinds of columns."""
    columns: list[dict[str, Any]] = []
    for i in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            lower = draw(st.floats(-1e6, 1e6))
            columns.append(
                {"name": f"x{i}", "kind": "numeric", "lower": lower, "upper": lower + draw(st.floats(1, 1e6))}
            )
        else:
            values = draw(st.lists(st.text("abcXYZ 012é", min_size=1, max_size=4), min_size=2, max_size=5, unique=True))
            values = list(dict.fromkeys(value.strip() or "blank" for value in values))
            columns.append({"name": f"x{i}", "kind": "categorical", "values": [*values, "zz"]})
        columns[-1]["nullable"] = draw(st.booleans())
    target: dict[str, Any] = {"name": "t", "kind": "categorical", "values": ["no", "yes"]}
    if draw(st.booleans()):
        target = {"name": "t", "kind": "numeric", "lower": 0, "upper": 1}
    task = "regression" if target["kind"] == "numeric" else "classification"
    return vw.Schema.from_dict({"name": "fuzz", "task": task, "target": "t", "columns": [*columns, target]})


@FAST
@given(schemas())
def test_schemas_come_back(schema: vw.Schema) -> None:
    again = vw.Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert again == schema
    assert again.fingerprint() == schema.fingerprint()


@FAST
@given(json_values | st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, json_values)))
def test_anything_is_refused_or_a_schema_that_comes_back(data: Any) -> None:
    try:
        schema = vw.Schema.from_dict(data)
    except vw.VeilwoodError:
        return
    assert vw.Schema.from_dict(schema.to_dict()) == schema


@FAST
@given(schemas(), st.data())
def test_codes_stay_in_their_range_and_follow_the_order_of_numbers(schema: vw.Schema, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 8))
    table: dict[str, Any] = {}
    for column in schema.features:
        cell: st.SearchStrategy[Any] = numbers if column.kind == "numeric" else st.sampled_from(column.values)
        if column.nullable:
            cell = cell | st.none()
        values = data.draw(st.lists(cell, min_size=rows, max_size=rows))
        table[column.name] = pd.Series(values, dtype=float if column.kind == "numeric" else object)
    encoding = Encoding(schema, data.draw(st.sampled_from(["grid", "bins"])))
    codes = encoding.encode(pd.DataFrame(table))
    assert codes.dtype == np.uint16
    for i, (column, size) in enumerate(zip(schema.features, encoding.n_codes, strict=True)):
        assert codes[:, i].max() < size
        if column.kind == "numeric":
            there = table[column.name].notna().to_numpy()
            order = np.argsort(table[column.name][there].to_numpy(), kind="stable")
            assert (np.diff(codes[there, i][order].astype(int)) >= 0).all()


cells = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=4) | st.just(float("inf"))


@FAST
@given(schemas(), st.data())
def test_tables_fit_or_are_refused(schema: vw.Schema, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([*schema.feature_names, "t", "odd"]), max_size=5, unique=True))
    rows = data.draw(st.integers(0, 4))
    table = pd.DataFrame(
        {name: pd.Series(data.draw(st.lists(cells, min_size=rows, max_size=rows)), dtype=object) for name in names}
    )
    ledger = vw.MemoryLedger()
    kind = vw.RandomTreesClassifier if schema.task == "classification" else vw.RandomTreesRegressor
    try:
        kind(schema, n_estimators=1, max_depth=1, ledger=ledger, n_jobs=1).fit(table)
    except vw.VeilwoodError:
        assert ledger.spent == Loss.zero()
    else:
        assert ledger.spent.epsilon == 1


amounts = (
    st.floats(allow_nan=True, allow_infinity=True) | st.integers() | texts | st.none() | st.booleans()
    | st.fractions() | st.decimals() | st.complex_numbers() | st.just([1])
)  # fmt: skip


@FAST
@given(amounts, amounts)
def test_budgets_are_positive_and_exact_or_refused(epsilon: Any, delta: Any) -> None:
    for delta_or_none in (0, delta):
        try:
            loss = requested_loss(epsilon, delta_or_none)
        except vw.VeilwoodError:
            continue
        else:
            assert loss.epsilon is None or loss.epsilon > 0
            assert 0 <= loss.delta < 1
            assert loss.epsilon is not None or math.isinf(float(epsilon))


@FAST
@given(st.lists(st.fractions(Fraction(1, 1000), 3), min_size=1, max_size=12), st.fractions(Fraction(1, 10), 5))
def test_a_budget_is_never_overspent(prices: list[Fraction], budget: Fraction) -> None:
    ledger = vw.MemoryLedger(epsilon=budget)
    granted = Fraction(0)
    for price in prices:
        try:
            ledger.reserve(Loss.pure(price), what="fuzz", neighbours="rows", plan="0").commit()
        except vw.BudgetExceededError:
            assert granted + price > budget
        else:
            granted += price
    assert ledger.spent.epsilon == granted <= budget


@FAST
@given(st.dictionaries(st.sampled_from([*PrivacyCertificate.__dataclass_fields__, "odd"]), json_values))
def test_anything_is_refused_or_a_certificate_that_comes_back(data: dict[str, Any]) -> None:
    try:
        statement = PrivacyCertificate.from_dict(data)
    except vw.ModelFileError:
        return
    assert PrivacyCertificate.from_dict(statement.to_dict()) == statement


# -- hostile input to the readers ---------------------------------------------------------------------------

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
WORDS = [
    "fit", "plan", "predict", "certificate", "schema", "draft", "check", "review", "discover", "ledger", "show",
    "verify", "create", "audit",
    "model", "estimator", "peer", "--schema", "--epsilon", "--param", "--json", "-o", "--help", "--version", "--ledger",
    "nan", "inf", "-1", "0", "1e999", "--epsilon=x", "n_estimators=1e9", "=", "trees=null", "max_depth={}", "", "\x00",
    "../..", "/dev/null", "/", "*", "[", "file", "schema.json", "table.csv", "model.veilwood", "ledger.db", "é",
    "-", "--", "--debug=1", "%s%n", "$(id)", "' OR 1=1 --",
]  # fmt: skip
SLOW_WORDS = {"demo", "estimator"}  # what would be carried out if it were well-formed


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Good files, to be damaged."""
    folder = tmp_path_factory.mktemp("seeds")
    X = np.random.default_rng(0).random((50, 2))
    y = np.where(X[:, 0] > 0.5, "yes", "no")
    SCHEMA.save(folder / "schema.json")
    pd.DataFrame(X, columns=["x0", "x1"]).assign(target=y).to_csv(folder / "table.csv", index=False)
    with warnings.catch_warnings(action="ignore"):
        forest = vw.RandomTreesClassifier(SCHEMA, n_estimators=2, max_depth=2, random_state=0).fit(X, y)
    vw.save(forest, folder / "model.veilwood")
    vw.SQLiteLedger(folder / "ledger.db", epsilon=3).reserve(
        Loss.pure(Fraction(1)), what="fit", neighbours="rows", plan="0"
    ).commit()
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    """Flip, cut, repeat, insert or replace a stretch of bytes, in any region of a file."""
    altered = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(0, len(altered) + 1))
        length = int(rng.integers(1, 40))
        match int(rng.integers(6)):
            case 0 if altered:
                altered[min(place, len(altered) - 1)] ^= 1 << int(rng.integers(8))
            case 1:
                del altered[place:]
            case 2:
                del altered[place : place + length]
            case 3:
                altered[place:place] = altered[place : place + length] * 3
            case 4:
                altered[place : place + length] = rng.bytes(length)
            case _:
                odd = [b"NaN", b"1e999", b"[" * 500, b'"', b"\xff\xfe", b"\x00", b",,,", b"\r\n", b"{}", b"-1", b"null"]
                altered[place:place] = odd[int(rng.integers(len(odd)))]
    return bytes(altered)


def read_everything(path: Path) -> dict[str, Callable[[], object]]:
    return {
        "schema.json": lambda: vw.Schema.load(path),
        "table.csv": lambda: vw.read_table(path, SCHEMA),
        "model.veilwood": lambda: vw.load(path),
        "ledger.db": lambda: vw.open_ledger(path).verify(),  # type: ignore[attr-defined]
    }


def hostile_files(count: int, seeds: dict[str, bytes], folder: Path, rng: np.random.Generator) -> None:
    names = list(seeds)
    for turn in range(count):
        name = names[turn % len(names)]
        path = folder / f"{turn}-{name}"
        path.write_bytes(damage(seeds[name], rng))
        with suppress(vw.VeilwoodError):
            read_everything(path)[name]()
        for left in folder.iterdir():
            left.unlink()


def hostile_words(count: int, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(count):
        words = [WORDS[i] for i in rng.integers(0, len(WORDS), int(rng.integers(1, 6)))]
        if words[0] == "audit" and SLOW_WORDS.intersection(words):
            words[0] = "plan"
        code = main(words)
        out, err = capsys.readouterr()
        assert code in (0, 2, 3, 4, 5), (words, err)
        assert "Traceback" not in out + err, words
        help_page = (code, err[:6]) == (2, "Usage:")  # no command was given
        one_line = err.startswith(("error: ", '{"error"')) or "warning: " in err
        assert code in (0, 5) or help_page or one_line, (words, err)


def hostile(count: int, seeds: dict[str, bytes], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(count)
    (folder / "damaged").mkdir()
    hostile_files(count * 2 // 3, seeds, folder / "damaged", rng)
    for name, content in seeds.items():
        (folder / name).write_bytes(content)
    hostile_words(count // 3, rng, capsys)


def test_hostile_input_is_answered_in_one_line(
    seeds: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile(300, seeds, tmp_path, capsys)


@pytest.mark.slow
def test_ten_thousand_hostile_inputs(
    seeds: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile(10_002, seeds, tmp_path, capsys)


def test_every_region_of_a_model_file_is_guarded(seeds: dict[str, bytes], tmp_path: Path) -> None:
    """One flipped bit every few bytes from the first to the last: the length, the header, its text, the arrays."""
    content, path = seeds["model.veilwood"], tmp_path / "model"
    for place in range(0, len(content), max(1, len(content) // 300)):
        altered = bytearray(content)
        altered[place] ^= 1 << (place % 8)
        path.write_bytes(altered)
        with pytest.raises(vw.ModelFileError):
            vw.load(path)


def test_a_reader_that_raises_something_else_is_caught(seeds: dict[str, bytes], tmp_path: Path) -> None:
    """Mutant: a reader without checks."""
    altered = [damage(seeds["schema.json"], np.random.default_rng(turn)) for turn in range(50)]
    with pytest.raises((KeyError, ValueError, TypeError)):
        [json.loads(content)["columns"] for content in altered]
