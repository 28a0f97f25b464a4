# SPDX-License-Identifier: Apache-2.0
"""Signatures of models and plans: stripped, foreign, broken and moved ones are rejected; files are reproducible."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw
from veilwood.errors import SignatureError
from veilwood.models import file as signed
from veilwood.privacy import signature
from veilwood_testing.errors import rejects
from veilwood_testing.small_forests import SIGNED_SCHEMA, SIGNED_X, fit_signable

# -- the same model, the same bytes -----------------------------------------------------------------------------------


def test_two_saves_give_identical_bytes(tmp_path: Path) -> None:
    forest = fit_signable()
    for name in ("a", "b", "c"):
        vw.save(forest, tmp_path / name)
    loaded = vw.load(tmp_path / "a")
    vw.save(loaded, tmp_path / "d")
    contents = {(tmp_path / name).read_bytes() for name in "abcd"}
    assert len(contents) == 1
    code = f"import veilwood as vw; vw.save(vw.load({str(tmp_path / 'a')!r}), {str(tmp_path / 'e')!r})"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONHASHSEED": "5"})
    assert (tmp_path / "e").read_bytes() in contents
    (content,) = contents
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    assert list(header) == sorted(header)
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])


# -- signatures -------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(signed_folder: Path) -> Path:
    return signed_folder


def changed(path: Path, **entries: Any) -> None:
    """Edit a signature file."""
    content = json.loads(path.read_text())
    for key, value in entries.items():
        content[key] = value
    path.write_text(json.dumps(content))


def test_a_signed_model_loads_and_says_what_was_signed(here: Path) -> None:
    model = vw.load(here / "model.veilwood", signed_by=here / "clinic.key.pub")
    assert (model.predict(SIGNED_X) == vw.load(here / "model.veilwood").predict(SIGNED_X)).all()
    pem = (here / "clinic.key.pub").read_text()
    for key in (str(here / "clinic.key.pub"), pem, pem.encode()):
        statement = signed.verify(here / "model.veilwood", key)
        assert statement["certificate"] == model.privacy_.to_dict()
        assert statement["plan_hash"] == model.privacy_.plan_hash
        assert statement["schema_hash"] == SIGNED_SCHEMA.fingerprint()
        assert (statement["ledger"], statement["ledger_entry"]) == (model.privacy_.ledger, model.privacy_.ledger_entry)


def strip(folder: Path) -> None:
    (folder / "model.veilwood.sig").unlink()


def foreign(folder: Path) -> None:
    signed.sign(folder / "model.veilwood", folder / "stranger.key")


def foreign_that_names_the_clinic(folder: Path) -> None:
    name = json.loads((folder / "model.veilwood.sig").read_text())["key"]
    foreign(folder)
    changed(folder / "model.veilwood.sig", key=name)


def of_another_model(folder: Path) -> None:
    shutil.copy(folder / "other.veilwood.sig", folder / "model.veilwood.sig")


def another_model(folder: Path) -> None:
    shutil.copy(folder / "other.veilwood", folder / "model.veilwood")


def of_a_plan(folder: Path) -> None:
    shutil.copy(folder / "plan.json.sig", folder / "model.veilwood.sig")


def with_its_own_key(folder: Path) -> None:
    foreign(folder)
    changed(folder / "model.veilwood.sig", public_key=(folder / "stranger.key.pub").read_text())


def edited_statement(folder: Path) -> None:
    content = json.loads((folder / "model.veilwood.sig").read_text())
    content["statement"]["certificate"]["epsilon"] = 0.01
    changed(folder / "model.veilwood.sig", statement=content["statement"])


def signature_of_nothing(folder: Path) -> None:
    changed(folder / "model.veilwood.sig", signature="")


def no_json(folder: Path) -> None:
    (folder / "model.veilwood.sig").write_bytes(b"\xff not a signature")


def a_list(folder: Path) -> None:
    (folder / "model.veilwood.sig").write_text("[]")


def nothing_in_it(folder: Path) -> None:
    (folder / "model.veilwood.sig").write_text("{}")


def flipped_byte(folder: Path) -> None:
    path = folder / "model.veilwood"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def reformatted(folder: Path) -> None:
    """The same model, its header padded by eight spaces: every array and entry as signed, and yet not the file."""
    path = folder / "model.veilwood"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    path.write_bytes((length + 8).to_bytes(8, "little") + content[8 : 8 + length] + b" " * 8 + content[8 + length :])
    vw.load(path)  # without a key, it is a sound model


ATTACKS = {
    strip: "there is no signature",
    foreign: "another key",
    foreign_that_names_the_clinic: "is broken",
    of_another_model: "is not the file that was signed",
    another_model: "is not the file that was signed",
    of_a_plan: "signs a 'plan', not a model",
    with_its_own_key: "another key",
    edited_statement: "is broken",
    signature_of_nothing: "is broken",
    no_json: "is damaged",
    a_list: "is damaged",
    nothing_in_it: "is damaged",
    flipped_byte: "is not the file that was signed",
    reformatted: "is not the file that was signed",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_every_other_signature_is_refused(attack: Any, here: Path) -> None:
    attack(here)
    for use in (vw.load, signed.verify):
        with pytest.raises(SignatureError, match=ATTACKS[attack]):
            use(here / "model.veilwood", signed_by=here / "clinic.key.pub")


def test_every_flipped_byte_of_a_signature_is_refused_or_harmless(here: Path) -> None:
    path = here / "model.veilwood.sig"
    content = path.read_bytes()
    truth = signed.verify(here / "model.veilwood", here / "clinic.key.pub")
    for place in range(0, len(content), 37):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with suppress(SignatureError):
            assert signed.verify(here / "model.veilwood", here / "clinic.key.pub") == truth


def test_a_lying_statement_with_a_right_signature_is_refused(here: Path) -> None:
    """The signer's own key over a statement that is not true of the file: its hash, and another certificate."""
    statement = signed.verify(here / "model.veilwood", here / "clinic.key.pub")
    statement["certificate"]["epsilon"] = 0.01
    signature.write_signature(here / "model.veilwood", statement, here / "clinic.key")
    with rejects(SignatureError, raised_in="require_same_payload"):
        vw.load(here / "model.veilwood", signed_by=here / "clinic.key.pub")


def test_a_damaged_model_is_not_signed(here: Path) -> None:
    flipped_byte(here)
    with rejects(vw.ModelFileError, raised_in="load_signed"):
        signed.sign(here / "model.veilwood", here / "clinic.key")


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_signed_by_its_hash(here: Path) -> None:
    plan = vw.Plan.load(here / "plan.json")
    assert signed.verify(here / "plan.json", here / "clinic.key.pub")["plan_hash"] == plan.fingerprint()
    (here / "plan.json").write_text(json.dumps(plan.to_dict()))  # the same plan in other white space
    signed.verify(here / "plan.json", here / "clinic.key.pub")
    (here / "plan.json").write_text(json.dumps(plan.to_dict() | {"public_seed": 7}))
    with rejects(SignatureError, raised_in="require_same_payload"):
        signed.verify(here / "plan.json", here / "clinic.key.pub")
    shutil.copy(here / "model.veilwood.sig", here / "plan.json.sig")
    with rejects(SignatureError, raised_in="verify_signature"):
        signed.verify(here / "plan.json", here / "clinic.key.pub")


def test_a_model_of_another_plan_is_refused(here: Path) -> None:
    signed.verify(here / "model.veilwood", here / "clinic.key.pub", plan=here / "plan.json")
    with rejects(SignatureError, raised_in="verify"):
        signed.verify(here / "other.veilwood", here / "clinic.key.pub", plan=here / "plan.json")


# -- the command line -------------------------------------------------------------------------------------------------


def test_the_private_key_is_its_owners_alone(here: Path) -> None:
    assert stat.S_IMODE((here / "clinic.key").stat().st_mode) == 0o600
    with rejects(SignatureError, raised_in="generate_key_pair"):
        signature.generate_key_pair(here / "clinic.key")
    (here / "clinic.key").chmod(0o644)
    with rejects(SignatureError, raised_in="_private_key"):
        signed.sign(here / "model.veilwood", here / "clinic.key")
    assert b"PRIVATE" not in (here / "clinic.key.pub").read_bytes()


def test_keys_that_are_none_are_refused(here: Path) -> None:
    (here / "text.pub").write_text("no key")
    for key in (here / "text.pub", here / "nosuch.pub", here / "clinic.key", b"-----BEGIN x", 3, "", here):
        with pytest.raises(SignatureError):
            vw.load(here / "model.veilwood", signed_by=key)  # type: ignore[arg-type]
    for key in (here / "text.pub", here / "nosuch", here / "clinic.key.pub"):
        key.exists() and key.chmod(0o600)
        with pytest.raises(SignatureError):
            signed.sign(here / "model.veilwood", key)
