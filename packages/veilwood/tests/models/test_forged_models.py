# SPDX-License-Identifier: Apache-2.0
"""Plans and model files of a clever forger: hashes fit, values do not. Each is refused, or works, at once."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as write_safetensors

import veilwood as vw
from veilwood.data.counts import ContingencyTable
from veilwood.forests.adaptive import loop
from veilwood.forests.adaptive.contingency import bin_columns, tables_to_forest
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.models import file as model_file
from veilwood.privacy.certificate import adaptive_decisions
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import joint_step
from veilwood.trees.forest import MAX_DEPTH, Forest, _window_maxima
from veilwood_audit.model_files import check_file
from veilwood_testing.errors import rejects
from veilwood_testing.hostile_input import HOSTILE, LONG_EXPONENT, SCHEMA, within_time_limit

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]


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
    ..., None, True, -1, 0, 1, 2**40, 10**250, 0.5, -0.5, 1e300, 1e-300, "", "x", "0", "-1", "1/3", LONG_EXPONENT,
    "1e-9999999", "1e-299", "1e299", "9" * 300, f"1/{'7' * 300}", "9" * 5000, "nan", "inf", "x" * 10_000, [], [[]],
    ["x"], [1], [2**40] * 3, {},
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
    "Gaussian": lambda: fitted(vw.MedianForestClassifier, n_estimators=40, max_depth=1, delta=1e-6, trees="shared"),
    "matrix": lambda: fitted(vw.MatrixForestClassifier, n_estimators=2, max_depth=2),
    "cells": lambda: fitted(vw.PrivateForestClassifier, epsilon=20.0),
    "tables": lambda: fitted(vw.PrivateForestClassifier, n_rows=200),
}


def test_odd_plans_are_refused_or_read() -> None:
    for name in ("random trees", "Gaussian"):
        plan = MODELS[name]().plan_.to_dict()
        for place in places(plan):
            for value in ODD:
                if not place and value is ...:
                    continue
                text = ""
                with within_time_limit():
                    try:
                        made = Plan.from_dict(altered(plan, place, value))
                        made.explain(), made.to_json(), made.fingerprint()
                    except vw.VeilwoodError as error:
                        text = str(error)
                assert len(text) < 2000


# -- model files -------------------------------------------------------------------------------------------------


def write(path: Path, metadata: dict[str, str], arrays: dict[str, Any]) -> None:
    """Write a model file with a good check sum."""
    path.write_bytes(write_safetensors(arrays, {**metadata, "sha256": model_file._content_digest(metadata, arrays)}))


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


def try_forgeries(name: str, count: int, path: Path) -> None:
    vw.save(MODELS[name](), path)
    vw.load(path)
    parts = model_file._parse_file(path.read_bytes())
    reasons = []
    X = np.random.default_rng(1).random((5, 2))
    for metadata in forgeries(parts.metadata, np.random.default_rng(count), count):
        write(path, metadata, parts.arrays)
        with within_time_limit(), warnings.catch_warnings(action="ignore"):
            try:
                model = vw.load(path)
            except vw.ModelFileError as error:
                reasons.append(str(error))
                continue
            model.predict(X), model.predict_proba(X), repr(model), str(model.schema_)
            str(model.privacy_), model.privacy_.to_markdown(), model.privacy_.to_json(), model.plan_.explain()
    assert all(len(reason) < 2000 for reason in reasons)


@pytest.mark.parametrize("name", MODELS)
def test_forged_model_files_are_refused_or_work(name: str, tmp_path: Path) -> None:
    try_forgeries(name, 250, tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_many_forged_model_files_are_refused_or_work(name: str, tmp_path: Path) -> None:
    try_forgeries(name, 10_000, tmp_path / "model")


def stands(path: Path) -> bool:
    """Whether a file is loaded and every check of the audit holds."""
    try:
        return all(check.holds for check in check_file(path))
    except vw.ModelFileError:
        return False


FORGED_TABLES: dict[str, Callable[[list[list[int]]], Any]] = {
    "one forgotten": lambda tables: tables[:-1],
    "two as one": lambda tables: [[*tables[0], *tables[1]], *tables[2:]],
    "all as pairs": lambda tables: [[*tables[j], *tables[j + 1]] for j in (0, 2, 4)],
    "all as one": lambda tables: [[column for table in tables for column in table]],
    "no lists": lambda tables: [column for table in tables for column in table],
    "another column": lambda tables: [*tables[:-1], [99]],
    "as texts": lambda tables: [str(one) for one in tables],
    "one too many": lambda tables: [*tables, [6]],
    "in another order": lambda tables: tables[::-1],
    "a column twice": lambda tables: [*tables[:-1], tables[0]],
    "none": lambda tables: [],
    "a number": lambda tables: 1,
    "a text": lambda tables: "x",
}


@pytest.mark.parametrize("name", FORGED_TABLES)
def test_tables_that_a_row_counts_in_cannot_be_forgotten(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forger sells noise for fewer tables than were counted, in a file in which everything fits together."""
    car = vw.datasets.car()
    fits = (vw.PrivateForestClassifier(car.schema, epsilon=0.5, random_state=0).fit(car.X, car.y) for _ in range(20))
    forest = next(fit for fit in fits if len(fit.plan_.choices["tables"]) == 6)
    plan = forest.plan_
    vw.save(forest, tmp_path / "honest")
    assert stands(tmp_path / "honest")
    kept = FORGED_TABLES[name](plan.choices["tables"])
    n_tables = len(kept) if isinstance(kept, list) and kept else 1
    counted = [step for step in plan.steps if step.name.endswith("classes by cell")]
    paid = Loss.pure(sum((step.loss.epsilon or Fraction(0) for step in counted), Fraction(0)))
    cells = [size for step in counted for size in step.table_cells][:n_tables]  # all of it for fewer tables
    forged = joint_step(AdaptiveStep.JOINT_TABLES.at(1, 6), cells, 4, paid, plan.neighbours)
    steps = tuple(forged if step == counted[0] else step for step in plan.steps if step not in counted[1:])
    forest.plan_ = replace(plan, steps=steps, choices={**plan.choices, "tables": kept})
    forest.privacy_ = replace(
        forest.privacy_, composition=tuple(step.to_dict() for step in steps),
        chosen=adaptive_decisions(forest.plan_, forest.plan_.fingerprint()),
        mechanism=forest.plan_.mechanism,
    )  # fmt: skip
    monkeypatch.setattr(model_file, "_leaf_reading_matches", lambda model: True)  # a forger writes what he likes
    vw.save(forest, tmp_path / "forged")
    monkeypatch.undo()
    assert not stands(tmp_path / "forged")


@pytest.mark.parametrize("shape", [(), (21,), (21, 5), (21, 4, 1)], ids=str)
def test_tables_together_of_another_shape_are_refused(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    car = vw.datasets.car()
    fits = (vw.PrivateForestClassifier(car.schema, epsilon=0.5, random_state=0).fit(car.X, car.y) for _ in range(20))
    forest = next(fit for fit in fits if any(len(step.table_cells) == 6 for step in fit.plan_.steps))
    plan = forest.plan_
    steps = tuple(replace(step, shape=shape) if len(step.table_cells) == 6 else step for step in plan.steps)
    forest.plan_ = replace(plan, steps=steps)
    forest.privacy_ = replace(
        forest.privacy_, composition=tuple(step.to_dict() for step in steps),
        chosen=adaptive_decisions(forest.plan_, forest.plan_.fingerprint()),
    )  # fmt: skip
    monkeypatch.setattr(model_file, "_leaf_reading_matches", lambda model: True)
    vw.save(forest, tmp_path / "forged")
    monkeypatch.undo()
    assert not stands(tmp_path / "forged")


def test_a_model_file_of_a_few_bytes_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "model"
    vw.save(MODELS["random trees"](), path)
    parts = model_file._parse_file(path.read_bytes())
    for key in ("plan", "parameters"):
        read = json.loads(parts.metadata[key])
        write(path, {**parts.metadata, key: json.dumps({**read, "epsilon": LONG_EXPONENT})}, parts.arrays)
        assert path.stat().st_size < 5000
        with within_time_limit(), rejects(vw.ModelFileError, raised_in="load_signed"):
            vw.load(path)
    for key in ("plan", "parameters", "schema", "certificate"):
        for name, (text, _) in HOSTILE.items():
            if isinstance(text, str) and name not in ("too much", "unclosed"):
                write(path, {**parts.metadata, key: text}, parts.arrays)
                with within_time_limit(), pytest.raises(vw.ModelFileError):
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
    "empty large shape": b'{"__metadata__": {"format": "1"}, "roots": {"dtype": "I32", '
                         b'"shape": [0, 9223372036854775807], "data_offsets": [0, 0]}}',
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
        with within_time_limit(), pytest.raises(vw.ModelFileError):
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
    with within_time_limit(), rejects(vw.ModelFileError, raised_in="_validate_arrays.<locals>.require_that"):
        Forest.from_arrays(chain(MAX_DEPTH + 1), [65535])
    with within_time_limit(), rejects(vw.ModelFileError, raised_in="_validate_arrays.<locals>.require_that"):
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
    with within_time_limit():
        assert Forest.from_arrays(arrays, [width]).n_leaves == 2 * n_trees
    assert tracemalloc.get_traced_memory()[1] < 1 << 27
    tracemalloc.stop()


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=40), st.integers(1, 40))
def test_largest_values_of_windows(values: list[int], width: int) -> None:
    if width <= len(values):
        wanted = [max(values[start : start + width]) for start in range(len(values) - width + 1)]
        assert _window_maxima(np.array(values, np.uint16), width).tolist() == wanted


def sold(forest: Any, plan: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Write a model with another plan, and a certificate of it, and tell whether the audit takes it."""
    forest.plan_ = plan
    forest.privacy_ = replace(
        forest.privacy_, composition=tuple(step.to_dict() for step in plan.steps),
        chosen=adaptive_decisions(plan, plan.fingerprint()), mechanism=plan.mechanism,
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(model_file, "_leaf_reading_matches", lambda model: True)
        vw.save(forest, path)
    return stands(path)


CAR = vw.datasets.car()


def fitted_car(epsilon: float, found: Callable[[Any], bool]) -> Any:
    """Return the first fit of which something holds."""
    made = (vw.PrivateForestClassifier(CAR.schema, epsilon=epsilon, random_state=0, n_jobs=1) for _ in range(30))
    return next(forest for forest in (one.fit(CAR.X, CAR.y) for one in made) if found(forest))


def test_fine_cells_that_no_step_has_paid_for_are_refused(tmp_path: Path) -> None:
    """A forger puts what a rich fit has learned into the file of a poor one."""
    rich, poor = (
        fitted_car(20.0, lambda forest: forest.model_.cell_forest is not None),
        fitted_car(0.1, lambda forest: True),
    )
    vw.save(rich, tmp_path / "rich")
    assert stands(tmp_path / "rich")
    poor.model_ = replace(poor.model_, cell_forest=rich.model_.cell_forest, cell_weight=1.0)
    vw.save(poor, tmp_path / "poor")
    with pytest.raises(vw.ModelFileError):
        vw.load(tmp_path / "poor")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("round 1: choice", lambda shape: (5, shape[1])),
        ("round 1: gradients", lambda shape: (shape[0], 24)),
        ("class counts", lambda shape: (2 * shape[0],)),
        ("round 1: rows", lambda shape: (shape[0], 7)),
    ],
)
def test_steps_of_another_shape_than_their_kind_has_are_noticed(
    name: str, shape: Callable[[tuple[int, ...]], tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five choices for the price of one."""
    forest = fitted_car(3.0, lambda forest: any(step.name == name for step in forest.plan_.steps))
    vw.save(forest, tmp_path / "honest")
    assert stands(tmp_path / "honest")
    steps = [replace(step, shape=shape(step.shape)) if step.name == name else step for step in forest.plan_.steps]
    assert not sold(forest, replace(forest.plan_, steps=tuple(steps)), tmp_path / "forged", monkeypatch)


def test_a_tree_of_no_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(loop, "measure_tables", loop.release_class_counts_only)
        forest = fitted_car(0.1, lambda forest: True)
    vw.save(forest, tmp_path / "honest")
    assert stands(tmp_path / "honest")
    tree, _ = tables_to_forest(
        [ContingencyTable(tuple(column.ungrouped_axis() for column in bin_columns(forest.model_.encoding)))]
    )
    forest.model_ = replace(forest.model_, forest=tree, leaf_values=np.ones((tree.n_leaves, 4)))
    plan = replace(forest.plan_, layout=replace(forest.plan_.layout, leaves=tree.n_leaves))
    assert not sold(forest, plan, tmp_path / "forged", monkeypatch)


@pytest.mark.parametrize("name", ["X", "cells_X", "effects_X"])
def test_arrays_that_nobody_reads_are_refused(name: str, tmp_path: Path) -> None:
    """Nothing else is in a file: not the rows, under whatever name."""
    forest = fitted(vw.PrivateForestClassifier, n_rows=200)
    vw.save(forest, tmp_path / "honest")
    parts = model_file._parse_file((tmp_path / "honest").read_bytes())
    for added in ({}, {name: np.ones((9, 2))}):
        arrays = {**parts.arrays, **added}
        content = write_safetensors(
            arrays, {**parts.metadata, "sha256": model_file._content_digest(parts.metadata, arrays)}
        )
        (tmp_path / "forged").write_bytes(content)
        assert stands(tmp_path / "forged") == (not added)


def test_explanations_without_a_lookup_are_read() -> None:
    """Trees of numbers look nothing up: a file may hold an empty table of lookups."""
    schema = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=2)
    X = np.random.default_rng(0).random((300, 2))
    forest = vw.PrivateForestClassifier(schema, random_state=0).fit(X, np.where(X[:, 0] < 0.5, "a", "b"))
    effects = forest.model_.effects
    text = str(forest.explain())
    empty = replace(effects.forest, lookup=effects.forest.lookup[:0])
    forest.model_ = replace(forest.model_, effect_source=effects._replace(forest=empty))
    assert str(forest.explain()) == text
