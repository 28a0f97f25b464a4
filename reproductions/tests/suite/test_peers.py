# SPDX-License-Identifier: Apache-2.0
"""Other libraries in environments of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from veilwood_papers.suite import peers, tables
from veilwood_papers.suite.peers import PeerError, fit_peer_models, peer_python
from veilwood_papers.suite.tables import FitJob
from veilwood_testing.exhibits import use_fake_peer


def test_a_peer_learns_and_is_tested_on_our_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake_peer(monkeypatch, tmp_path)
    table = tables.load_table("development", "iris", None)
    jobs = [FitJob("development", "iris", "diffprivlib", epsilon, 0.0, seed) for seed, epsilon in ((0, 1.0), (1, 20.0))]
    good, bad = fit_peer_models("diffprivlib", jobs, table)
    assert good["score"] > 0.8
    assert good["log_loss"] < 0.6
    assert (bad["score"], bad["note"]) == ("", "refused: RuntimeError: too much")


def fails_in(step: str) -> Callable[..., Any]:
    def call(command: Any) -> None:
        if step in command:
            raise PeerError(f"{step} failed: no route to the index")

    return call


def test_an_environment_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peers.FOLDER_VARIABLE, str(tmp_path / "peers"))
    monkeypatch.setattr(peers, "_run_command", fails_in("install"))
    lines: list[str] = []
    with pytest.raises(PeerError, match="no route to the index"):
        peer_python("diffprivlib", lines.append)
    assert lines[0].startswith("making an environment for diffprivlib in ")
    assert not list(tmp_path.rglob("ready"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(peers.FOLDER_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(PeerError, match=r"cannot be made.*VEILWOOD_PEERS"):
        peer_python("diffprivlib", lines.append)


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peers.FOLDER_VARIABLE, str(tmp_path / "peers"))
    calls: list[Any] = []

    def call(command: Any) -> None:
        calls.append(command)
        for name in command:
            if name.startswith(str(tmp_path)) and not name.endswith("python"):
                Path(name).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(peers, "_run_command", call)
    python = peer_python("diffprivlib", lambda line: None)
    assert len(calls) == 3
    assert peer_python("diffprivlib", lambda line: None) == python
    assert len(calls) == 3
