# SPDX-License-Identifier: Apache-2.0
"""The words of the command line: help for each of them, completion in a shell, and how much programs log."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from veilwood.cli.main import COMMANDS, main, whole_command

ROOT = Path(__file__).parents[4]


def commands(group: Any, so_far: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, by the words that reach it."""
    yield so_far
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*so_far, name))


COMMAND: Any = whole_command()
EVERY = list(commands(COMMAND))


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EVERY) > 50
    assert main(["fit", "--help"]) == 0
    for words in EVERY:
        COMMAND.main([*words, "-h"], prog_name="veilwood", standalone_mode=False)
        told, wrong = capsys.readouterr()
        assert f"Usage: {' '.join(('veilwood', *words))}" in told
        assert wrong == ""


def test_the_table_of_commands_has_their_help_lines() -> None:
    assert set(COMMAND.commands) == set(COMMANDS)
    for name, command in COMMAND.commands.items():
        assert command.help.startswith(COMMANDS[name].help.removesuffix(".")), name


def test_help_imports_no_other_library() -> None:
    """Help and errors are fast, because a command's module is imported only when it runs."""
    script = (
        "import sys; from veilwood.cli.main import main; main(['--help']); import veilwood;"
        "print(sorted({'numpy', 'pandas', 'sklearn', 'pyarrow', 'scipy'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "certificate  Print the privacy certificate" in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """The script that --show-completion prints, sourced by bash and asked as the tab key asks it."""
    command = tmp_path / "veilwood"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m veilwood "$@"\n')
    command.chmod(0o755)
    script = """
        source /dev/stdin <<< "$(_VEILWOOD_COMPLETE=source_bash veilwood)"
        ask() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _veilwood_completion veilwood; echo "${COMPREPLY[@]}"
        }
        complete -p veilwood
        ask veilwood ledger ''
        ask veilwood fit --eps
    """
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, ROOT.glob("packages/*/src"))),
    }
    ran = subprocess.run(["bash", "--norc", "-c", script], env=environment, capture_output=True, text=True, check=False)
    bound, ledgers, options = ran.stdout.splitlines()
    assert "_veilwood_completion veilwood" in bound
    assert {"create", "show", "resolve"} <= set(ledgers.split())
    assert options == "--epsilon"


@pytest.fixture
def _loggers_as_before() -> Iterator[None]:
    names = ("", "veilwood", "uvicorn")
    before = {name: (logging.getLogger(name).level, list(logging.getLogger(name).handlers)) for name in names}
    yield
    for name, (level, handlers) in before.items():
        logging.getLogger(name).setLevel(level)
        logging.getLogger(name).handlers[:] = handlers


@pytest.mark.usefixtures("_loggers_as_before")
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_a_log_level_reaches_the_service(level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    pytest.importorskip("fastapi")
    service = SimpleNamespace(has_no_accounts=lambda: False)
    monkeypatch.setattr(
        "veilwood_service.app.create_app", lambda _: SimpleNamespace(state=SimpleNamespace(service=service))
    )
    monkeypatch.setattr(uvicorn, "run", lambda *_, **__: None)
    assert main(["serve", str(tmp_path), "--log-level", level]) == 0
    assert logging.getLevelName(logging.getLogger("veilwood.service").getEffectiveLevel()) == level.upper()
    assert logging.getLogger("others").getEffectiveLevel() == (logging.ERROR if level == "error" else logging.WARNING)


@pytest.mark.parametrize(
    ("words", "level"),
    [([], "info"), (["--log-level=warning"], "warning"), (["-q"], "error"), (["--verbose"], "debug")],
)
def test_a_log_level_reaches_a_server_of_shares(
    words: list[str], level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = pytest.importorskip("veilwood_secure.roles.config")
    told: list[str] = []

    class Stopped:
        def __init__(self, _: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(config.Config, "load", lambda _: SimpleNamespace(party_name="server 0"))
    monkeypatch.setattr("veilwood_secure.roles.monitoring.configure_logging", lambda _, level: told.append(level))
    monkeypatch.setattr("veilwood_secure.roles.server.Server", Stopped)
    assert main(["secure", "server", str(tmp_path), *words]) == 130
    assert told == [level]
