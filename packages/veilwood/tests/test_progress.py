# SPDX-License-Identifier: Apache-2.0
"""The progress line: shown to people who wait, and to nobody else."""

from __future__ import annotations

import sys

import pytest

from veilwood import progress


class Terminal:
    """A stderr that says it is a terminal and keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(("shown_after", "shown"), [(0.0, True), (1e9, False)])
def test_progress_only_when_it_lasts(shown_after: float, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "DISPLAY_DELAY_SECONDS", shown_after)
    monkeypatch.setenv("TERM", "xterm")
    assert list(progress.track_progress(iter(range(3)), "counting rows")) == [0, 1, 2]
    assert ("counting rows" in terminal.text) == shown


def test_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DISPLAY_DELAY_SECONDS", 0.0)
    assert list(progress.track_progress("ab", "counting")) == ["a", "b"]
    assert capsys.readouterr().err == ""


def test_the_number_of_batches_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees the screen would learn how many rows there are."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "DISPLAY_DELAY_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    assert len(list(progress.track_progress(range(7531), "counting"))) == 7531
    assert "counting" in terminal.text
    assert "7531" not in terminal.text


def test_progress_is_reported_to_whom_it_is_for() -> None:
    lines: list[tuple[str, int]] = []
    progress.set_progress_callback(lambda doing, number: lines.append((doing, number)))
    try:
        assert list(progress.track_progress("ab", "counting rows")) == ["a", "b"]
    finally:
        progress.set_progress_callback(None)
    assert list(progress.track_progress("ab", "counting rows")) == ["a", "b"]
    assert lines == [("counting rows", 1), ("counting rows", 2)]
