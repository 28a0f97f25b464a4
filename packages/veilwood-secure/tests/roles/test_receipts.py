# SPDX-License-Identifier: Apache-2.0
"""Signed statements of servers about trainings and answers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from veilwood.errors import PartyError, UnreadableError, UseError
from veilwood_secure.commands import secure
from veilwood_secure.roles.identity import Authority, Identity, PartyName
from veilwood_secure.roles.receipts import (
    Receipt,
    answer_facts,
    check_training,
    convicted_server,
    read_answers,
    training_facts,
)
from veilwood_testing.secure_roles import PUBLIC_FOREST_TASK, Place, X, contribute, place


@pytest.fixture(scope="module")
def signers(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Identity], bytes]:
    folder = tmp_path_factory.mktemp("signers")
    authority = Authority.create(("server",))
    made = [
        authority.issue(PartyName("server", str(party)), folder / f"{party}.pem", folder / f"{party}.key")
        for party in range(3)
    ]
    return made, authority.certificate


def test_a_user_can_show_what_was_answered(trained: Place) -> None:
    authority = trained.config("user-analyst").servers_authority.read_bytes()
    with trained.user() as analyst:
        analyst.predict(X[:3])
        analyst.predict(X[3:5])
        shown = [Receipt.from_dict(json.loads(json.dumps(each.to_dict()))) for each in analyst.receipts]
    assert [str(each.verify(authority)) for each in shown] == [f"server {party}" for party in range(3)] * 2
    assert [each.facts["number"] for each in shown] == [0] * 3 + [1] * 3
    assert convicted_server(shown[0], shown[3], authority) is None  # two answers, not one answered twice
    changed = replace(shown[0], facts={**shown[0].facts, "answer": shown[1].facts["answer"]})
    with pytest.raises(UnreadableError):
        changed.verify(authority)
    with pytest.raises(UnreadableError):
        replace(shown[0], certificate=shown[1].certificate).verify(authority)
    with pytest.raises(UnreadableError):
        shown[0].verify(Authority.create(("server",)).certificate)


def test_receipts_hold_the_answers_themselves(trained: Place, tmp_path: Path) -> None:
    """From the file alone, with the authority's certificate, everybody can put together what was answered."""
    folder = trained.folder / "user-analyst"
    with trained.user() as analyst:
        labels = [*analyst.predict(X[:3]), *analyst.predict(X[3:5])]
        program: Any = analyst._program
    authority = trained.config("user-analyst").servers_authority.read_bytes()
    batches = read_answers(analyst.receipts, program, authority)
    assert [len(batch.answers) for batch in batches] == [3, 2]
    assert np.array_equal(batches[0].queries["features"], program.encode_queries(X[:3])[0]["features"])
    file, table = tmp_path / "receipts.json", tmp_path / "queries.csv"
    file.write_text(json.dumps([each.to_dict() for each in analyst.receipts]))
    X[:5].to_csv(table, index=False)
    shown = CliRunner().invoke(secure, ["verify-receipts", str(folder), str(file), str(table)])
    assert shown.exit_code == 0, shown.output
    assert [line.split(",")[1] for line in shown.output.split()[1:]] == labels
    X[1:6].to_csv(table, index=False)
    other = CliRunner().invoke(secure, ["verify-receipts", str(folder), str(file), str(table)])
    assert isinstance(other.exception, UseError)  # answers to other rows

    first, second = analyst.receipts[0], analyst.receipts[3]
    changed = replace(first, messages=(first.messages[0], second.messages[1]))
    for wrong in (
        [changed, *analyst.receipts[1:3]],
        analyst.receipts[:2],
        [*analyst.receipts[:2], analyst.receipts[5]],
    ):
        with pytest.raises(UnreadableError):
            read_answers(wrong, program, authority)


def test_two_signed_answers_to_one_question_convict(signers: tuple[list[Identity], bytes]) -> None:
    identities, authority = signers
    said = [
        Receipt.sign(identities[1], "answer", answer_facts(1, "training", "session", 4, [b"query"], answer))
        for answer in (b"one", b"another")
    ]
    assert convicted_server(said[0], said[1], authority) == PartyName("server", "1")
    assert convicted_server(said[0], said[0], authority) is None
    forged = replace(said[1], signature=said[0].signature)
    with pytest.raises(UnreadableError):  # nobody is convicted by what somebody else wrote
        convicted_server(said[0], forged, authority)


def test_what_was_opened_is_signed_by_all_three(signers: tuple[list[Identity], bytes]) -> None:
    identities, authority = signers
    claimed: list[Any] = [
        Receipt.sign(identity, "training", training_facts(party, "name", "digest")).to_dict()
        for party, identity in enumerate(identities)
    ]
    assert len(check_training(claimed, "name", "digest", authority)) == 3
    for wrong in (claimed[:2], [*claimed[:2], claimed[0]], [*claimed[:2], "nothing"], []):
        with pytest.raises(PartyError):
            check_training(wrong, "name", "digest", authority)
    with pytest.raises(PartyError):
        check_training(claimed, "name", "another digest", authority)


def test_a_public_model_comes_with_signatures_and_is_refused_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place(tmp_path, PUBLIC_FOREST_TASK) as here:
        contribute(here)
        analyst = here.user()
        analyst.wait(60)
        analyst.model()
        authority = here.config("user-analyst").servers_authority.read_bytes()
        assert [str(each.verify(authority)) for each in analyst.receipts] == [f"server {party}" for party in range(3)]
        here.servers[0]._task_states["scale"].model.facts["signatures"][2]["signature"] = "0" * 128  # type: ignore[union-attr]
        with pytest.raises(PartyError):
            here.user().model()
