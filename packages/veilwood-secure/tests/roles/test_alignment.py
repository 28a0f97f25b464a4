# SPDX-License-Identifier: Apache-2.0
"""Owners of columns find their common rows, and nothing else about each other's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("rbcl")
from veilwood.errors import PartyError, UnreadableError, UseError
from veilwood.privacy.certificate import Assumption
from veilwood_secure import commands
from veilwood_secure.roles.alignment import Alignment, BlindedIds
from veilwood_secure.roles.config import Address, set_up_roles
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.secure_roles import SCHEMA, TASK

OWNERS = ("bank", "clinic", "shop")
IDS = {
    "bank": ["ann", "bob", "cyd", "dan", "eve"],
    "clinic": ["eve", "fay", "bob", "ann"],
    "shop": ["gus", "ann", "eve", " bob "],
}


def parts_of(owners: tuple[str, ...], session: str = "task one") -> dict[str, Alignment]:
    return {owner: Alignment(owner, owners, session, f"secret of {owner}".encode()) for owner in owners}


def blinded_by_all(parts: dict[str, Alignment], pad_to: int | None = None) -> list[BlindedIds]:
    lists = []
    for owner, part in parts.items():
        current = part.start(IDS[owner], pad_to)
        for other, another in parts.items():
            if other != owner:
                current = another.blind(BlindedIds.from_bytes(current.to_bytes()))
        lists.append(current)
    return lists


@pytest.mark.parametrize("owners", [OWNERS, OWNERS[:2]])
@pytest.mark.parametrize("pad_to", [None, 9])
def test_owners_find_their_common_rows_in_one_order(owners: tuple[str, ...], pad_to: int | None) -> None:
    parts = parts_of(owners)
    lists = blinded_by_all(parts, pad_to)
    chosen = {
        owner: [IDS[owner][at].strip() for at in part.finish(lists, len(IDS[owner]))] for owner, part in parts.items()
    }
    assert len({tuple(each) for each in chosen.values()}) == 1
    assert sorted(chosen["bank"]) == ["ann", "bob", "eve"]
    if pad_to is not None:
        assert {len(each.points) for each in lists} == {pad_to}


def test_points_say_nothing_of_ids_that_are_not_common() -> None:
    """An owner cannot test a guess: without the other's power, the point of an id is another one."""
    parts = parts_of(OWNERS[:2])
    sent = parts["clinic"].start(IDS["clinic"])
    guesses = parts["bank"].start(IDS["clinic"])
    assert not set(sent.points) & set(guesses.points)
    again = parts_of(OWNERS[:2], "task two")["clinic"].start(IDS["clinic"])
    assert not set(sent.points) & set(again.points)  # two alignments cannot be linked


def test_the_order_of_rows_is_not_that_of_the_table() -> None:
    part = parts_of(OWNERS[:2])["bank"]
    ids = [f"id {number}" for number in range(200)]
    points = [part._raise_point(part._hash_to_point(text)) for text in ids]
    assert set(part.start(ids).points) == set(points)
    assert list(part.start(ids).points) != points


def test_what_does_not_belong_is_refused() -> None:
    parts = parts_of(OWNERS[:2])
    own = parts["bank"].start(IDS["bank"])
    with pytest.raises(PartyError):
        parts["bank"].blind(own)
    with pytest.raises(PartyError):
        parts_of(OWNERS[:2], "another")["clinic"].blind(own)
    with pytest.raises(UseError):
        parts["bank"].finish([own, own], 5)
    with pytest.raises(UseError):
        parts["bank"].start(["ann", "ann "])
    with pytest.raises(UseError):
        parts["bank"].start(IDS["bank"], pad_to=2)
    wrong_points = (bytes(32), b"1" * 31, b"\xff" * 32)
    for bad in (b"{}", b"[]", b"\xff", *(replace(own, points=(point,)).to_bytes() for point in wrong_points)):
        with pytest.raises(UnreadableError):
            BlindedIds.from_bytes(bad)


def test_the_certificate_says_how_rows_were_aligned() -> None:
    names = list(SCHEMA.feature_names)
    held = {"north": names[:2], "south": [*names[2:], SCHEMA.target.name]}
    found: Any = {}
    for alignment in ("position", "intersection"):
        task = replace(TASK, owners=held, settings={"max_depth": 2, "alignment": alignment})
        found[alignment] = program_for_task(task).make_certificate("ledger", 1).assumptions
    assert Assumption.OWNERS_INTERSECT.value in found["intersection"]
    assert Assumption.OWNERS_INTERSECT.value not in found["position"]
    for settings in ({"alignment": "stars"}, {"alignment": "intersection"}):
        with pytest.raises(UseError):  # owners of whole rows have nothing to align
            program_for_task(replace(TASK, settings=settings))
    assert np.array_equal(parts_of(OWNERS)["bank"]._secret_order(3), parts_of(OWNERS)["bank"]._secret_order(3))


def test_three_commands_align_two_tables(tmp_path: Path) -> None:
    names = list(SCHEMA.feature_names)
    held = {"bank": names[:2], "clinic": [*names[2:], SCHEMA.target.name]}
    set_up_roles(tmp_path, replace(TASK, owners=held), addresses=[Address("127.0.0.1", 1, 2)] * 3)
    for owner in held:
        rows = [f"{name},{name}'s data at {owner}" for name in IDS[owner]]
        (tmp_path / f"{owner}.csv").write_text("\n".join(["id,data", *rows]) + "\n")

    def secure(command: str, owner: str, *arguments: str) -> None:
        files = [str(tmp_path / each) if "." in each else each for each in arguments]
        result = CliRunner().invoke(
            commands.secure, [command, str(tmp_path / f"owner-{owner}"), *files, "--name", "may"]
        )
        assert result.exit_code == 0, result.output

    for owner, other in (("bank", "clinic"), ("clinic", "bank")):
        secure("align-start", owner, f"{owner}.csv", "--id", "id", "--pad-to", "8", "-o", f"{owner}.ids")
        secure("align-blind", other, f"{owner}.ids", "-o", f"{owner}.all")
    for owner in held:
        secure("align-finish", owner, f"{owner}.csv", "bank.all", "clinic.all", "--id", "id", "-o", f"{owner}-rows.csv")
    found = [(tmp_path / f"{owner}-rows.csv").read_text().splitlines()[1:] for owner in held]
    assert [line.partition("'")[0] for line in found[0]] == [line.partition("'")[0] for line in found[1]]
    assert sorted(line.partition("'")[0] for line in found[0]) == ["ann", "bob", "eve"]
