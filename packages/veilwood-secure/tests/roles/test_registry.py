# SPDX-License-Identifier: Apache-2.0
"""Owners, servers and users over real TLS: each protocol from the rows to the answers, and what is charged for it.

The three servers run as threads of the test process; tests that start and kill processes are in test_faults.py.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.data.encoding import Encoding
from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.roles import program as programs_module
from veilwood_secure.roles.config import set_up_roles
from veilwood_testing.secure_roles import ROWS, SCHEMA, TASK, Place, X, Y, place


def test_answers_equal_the_plaintext_twin(trained: Place) -> None:
    tree, codes = trained.tree_in_the_open(), Encoding(SCHEMA, "bins").encode(X).astype(np.int64)
    expected = np.array(SCHEMA.classes, dtype=object)[tree.predict(codes)]
    with trained.user() as analyst:
        assert np.array_equal(analyst.predict(X), expected)
        assert np.array_equal(analyst.predict(X[:1]), expected[:1])  # a second question in the same session
        statement = analyst.privacy_
    assert statement.is_private
    assert statement.epsilon == 2
    assert statement.delta is not None
    assert 0 < statement.delta < 1e-12
    assert any("collude" in assumption for assumption in statement.assumptions)


def test_training_is_in_every_ledger_once(trained: Place) -> None:
    for server in trained.servers:
        (entry,) = server._ledger.entries()
        assert entry.state == "committed"
        assert entry.loss.epsilon == 2
        assert "secure training of scale" in entry.what


def test_several_users_and_a_second_training_at_once(tmp_path: Path) -> None:
    with place(tmp_path) as here:
        here.train()
        second = replace(TASK, name="second", settings={"max_depth": 3})
        set_up_roles(tmp_path, second)  # the servers keep running
        codes = Encoding(SCHEMA, "bins").encode(X).astype(np.int64)
        expected = np.array(SCHEMA.classes, dtype=object)[here.tree_in_the_open().predict(codes)]
        wrong: list[str] = []

        def ask(name: str) -> None:
            with here.user(name, "scale") as asking:
                for start in range(0, 625, 125):
                    if not np.array_equal(asking.predict(X[start : start + 125]), expected[start : start + 125]):
                        wrong.append(name)

        def contribute(owner: str) -> None:
            here.owner(owner, "second").contribute(X[ROWS[owner]], Y[ROWS[owner]])

        jobs = [threading.Thread(target=ask, args=(name,)) for name in ("analyst", "guest", "analyst")]
        jobs += [threading.Thread(target=contribute, args=(owner,)) for owner in ROWS]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        assert here.owner("south", "second").wait(60).epsilon == 2
        assert not wrong


def test_columns_of_the_same_rows(tmp_path: Path) -> None:
    names = list(SCHEMA.feature_names)
    owners = {"bank": [names[2], names[0]], "clinic": [names[1], names[3], SCHEMA.target.name]}
    task = replace(TASK, owners=owners)
    with place(tmp_path, task) as here:
        bank, clinic = here.owner("bank"), here.owner("clinic")
        assert bank.schema.feature_names == (names[0], names[2])
        assert not bank.holds_target
        bank.contribute(X[[names[0], names[2]]])
        with pytest.raises(PartyError, match="a different number of rows from owner bank") as caught:
            clinic.contribute(X[[names[1], names[3]]][1:], Y[1:])
        assert caught.value.party == "owner clinic"
        clinic.contribute(X[[names[1], names[3]]], Y)
        assert clinic.wait(60).epsilon == 2
        with here.user() as analyst:
            assert set(analyst.predict(X)) <= set(SCHEMA.classes)


def test_a_public_forest_is_fitted_to_parties(here: Place) -> None:
    parameters: dict[str, Any] = {"random_state": 0, "n_estimators": 4, "max_depth": 3}
    settings = {"estimator": "RandomTreesClassifier", "parameters": parameters}
    task = replace(TASK, name="public", protocol="public-forest", settings=settings)
    set_up_roles(here.folder, task)
    for owner, rows in ROWS.items():
        here.owner(owner, "public").contribute(X[rows], Y[rows])
    user = here.user("analyst", "public")
    with pytest.raises(VeilwoodError, match="differs from the plan of task"):
        vw.RandomTreesClassifier(SCHEMA, epsilon=2, random_state=1, n_estimators=5).fit(user.parties())
    forest = vw.RandomTreesClassifier(SCHEMA, epsilon=2, **parameters).fit(user.parties())
    assert forest.privacy_.epsilon == 2
    assert abs(forest.leaf_counts_.sum() - 4 * len(X)) < 500
    assert (user.predict(X) == forest.predict(X)).all()  # the same numbers were fetched once more
    for server in here.servers:  # what was opened stays spent
        assert [entry.state for entry in server._ledger.entries()] == ["committed"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "magic"}, "there is no protocol 'magic'"),
        ({"settings": {"depth": 2}}, "unknown setting 'depth'"),
        ({"protocol": "public-forest", "settings": {"estimator": "Oak"}}, "cannot be trained by"),
        ({"protocol": "public-forest", "settings": {"parameters": {"ledger": "other.db"}}}, "names no ledger"),
        ({"protocol": "public-forest", "settings": {"parameters": 5}}, "does not accept all of these parameters"),
        ({"protocol": "public-forest", "settings": {"noise_protocol": "magic"}}, "noise_protocol 'magic'"),
        ({"protocol": "public-forest", "settings": {"estimator": "MatrixForestPredictor"}}, "MatrixForestClassifier"),
    ],
)
def test_programs_that_do_not_exist_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(VeilwoodError, match=message):
        programs_module.program_for_task(replace(TASK, **change))


DEPLOYMENTS = ("owners of rows stay online", "owners of rows share once and leave", "owners of columns")
REGRESSION: dict[str, Any] = {
    "name": "r", "task": "regression", "target": "t",
    "columns": [{"name": name, "kind": "numeric", "lower": 0, "upper": 1} for name in ("a", "b", "t")],
}  # fmt: skip


def documented() -> list[tuple[str, dict[str, str], tuple[str, ...]]]:
    """The estimators of the table in docs/secure.md, with their settings and a protocol for each deployment."""
    text = (Path(__file__).parents[4] / "docs" / "secure.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \| (.*?) \| (.*?) \|$", text, flags=re.M)
    found = []
    for names, *protocols in rows:
        settings = dict(re.findall(r'`(\w+)="([\w-]+)"`', names))
        found += [(name, settings, tuple(protocols)) for name in re.findall(r"`([A-Z]\w+)`", names)]
    return found


@pytest.mark.parametrize(("name", "settings", "protocols"), documented(), ids=lambda value: str(value)[:30])
def test_every_estimator_can_be_trained_where_the_documentation_says(
    name: str, settings: dict[str, str], protocols: tuple[str, ...]
) -> None:
    schema: dict[str, Any] = REGRESSION if name.endswith("Regressor") else SCHEMA.to_dict()
    columns = [column["name"] for column in schema["columns"]]
    of_rows, of_columns = {"north": None, "south": None}, {"north": columns[:1], "south": columns[1:]}
    size = {} if name.startswith("Private") else {"n_estimators": 2, "max_depth": 2}
    chosen = {"estimator": name, "parameters": {"random_state": 0, **size, **settings}}

    def made(protocol: str, owners: Any) -> Any:
        task = replace(TASK, schema=schema, epsilon="1", owners=owners, protocol=protocol, settings=chosen)
        return programs_module.program_for_task(task)

    for deployment, protocol in zip(DEPLOYMENTS, protocols, strict=True):
        owners: Any = of_columns if deployment == "owners of columns" else of_rows
        if protocol in programs_module.PROTOCOLS:
            assert made(protocol, owners).needs_online_owners == deployment.endswith("online")
        elif protocol == "no":
            for offered in ("public-forest", "forest-on-shares"):
                with suppress(VeilwoodError):
                    attended = made(offered, owners).needs_online_owners
                    assert owners is of_rows, offered
                    assert attended != deployment.endswith("online"), offered


def test_the_table_of_estimators_names_all() -> None:
    assert sorted(name for name, *_ in documented()) == sorted(estimators.__all__)
