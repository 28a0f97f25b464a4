# SPDX-License-Identifier: Apache-2.0
"""Signing and checking by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from veilwood.cli.main import main


def test_plan_signed_run_model_signed(
    signed_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(signed_folder)
    assert main(["sign", "--new-key", "new.key"]) == 0
    assert "new.key.pub" in capsys.readouterr().out
    assert main(["sign", "plan.json", "--key", "new.key"]) != 0
    assert "exists already" in capsys.readouterr().err
    assert main(["sign", "plan.json", "--key", "new.key", "--force"]) == 0
    assert main(["sign", "model.veilwood", "--key", "new.key", "--force"]) == 0
    capsys.readouterr()
    for name in ("plan.json", "model.veilwood"):
        assert main(["verify", name, "--signed-by", "new.key.pub", "--plan", "plan.json"]) == 0
        assert "not that the run was honest" in capsys.readouterr().out
        assert main(["verify", name, "--signed-by", "clinic.key.pub"]) != 0
        assert "of another key" in capsys.readouterr().err
    assert main(["verify", "model.veilwood", "--signed-by", "new.key.pub", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sign"], "veilwood sign FILE --key KEY"),
        (["sign", "model.veilwood"], "veilwood sign FILE --key KEY"),
        (["sign", "model.veilwood", "--new-key", "k"], "signs nothing"),
        (["sign", "--new-key", "clinic.key"], "exists already"),
        (["sign", "nosuch.veilwood", "--key", "clinic.key"], "nosuch.veilwood"),
        (["verify", "model.veilwood"], "--signed-by"),
        (["verify", "nosuch.veilwood", "--signed-by", "clinic.key.pub"], "nosuch.veilwood"),
        (["verify", "other.veilwood", "--signed-by", "clinic.key.pub", "--plan", "plan.json"], "carries out the plan"),
    ],
)
def test_commands_that_cannot_be_done_say_why(
    words: list[str],
    message: str,
    signed_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(signed_folder)
    assert main(words) not in (0, 1)
    assert message in capsys.readouterr().err
    assert not (signed_folder / "k").exists()
