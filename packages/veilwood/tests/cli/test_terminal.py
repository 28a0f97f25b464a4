# SPDX-License-Identifier: Apache-2.0
"""What commands print fits the terminal, whatever its width, and breaks between words only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from veilwood.cli.main import COMMANDS, GROUPS, main

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]
FIT = ["fit", "visits.csv", "--schema", "visits.json", "--epsilon", "2", "--holdout", "0.3", "--rows", "400"]


def test_lines_of_plan_fit_explain_and_certificate_are_whole(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", property(lambda self: True))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "100")
    assert main([*FIT, "-o", "new.veilwood"]) == 0
    fitted = capsys.readouterr().out
    assert max(map(len, fitted.splitlines())) <= 100
    for label in ("Plan", "Budget", "Steps", "Expect", "Learned", "Spent", "Wrote", "Next"):
        assert re.search(rf"^{label}  ", fitted, flags=re.M), label
    assert "the holdout costs" in fitted
    for command in (
        ["plan", "--schema", "visits.json", "--rows", "400"],
        ["plan", "--schema", "visits.json", "--estimator", "random-trees"],
        ["explain", "new.veilwood"],
        ["certificate", "new.veilwood"],
        ["ledger", "show", "small.db"],
    ):
        words = []
        for width in (80, 100):
            monkeypatch.setenv("COLUMNS", str(width))
            assert main(command) == 0
            out = capsys.readouterr().out
            assert max(map(len, out.splitlines())) <= width, (command, width)
            words.append(sorted(set(re.findall(r"[A-Za-z]{4,}", out))))
        if command[0] != "certificate":  # its table has narrow columns
            assert words[0] == words[1], command


def test_help_is_in_groups_and_each_line_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    for title, names in GROUPS.items():
        assert f"{title}:" in out
        for name in names:
            assert re.search(rf"^  {name} +{re.escape(COMMANDS[name].help)}$", out, flags=re.M), name


@pytest.mark.parametrize("group", ["schema", "ledger", "series"])
def test_a_group_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([group]) == 2
    assert f"Usage: veilwood {group}" in capsys.readouterr().err
