# SPDX-License-Identifier: Apache-2.0
"""Runs continue where they were killed, name what is missing, never mix versions and write whole files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from veilwood.errors import FileError, UseError
from veilwood_papers.runner import ResultStore, measure_exhibits, open_run
from veilwood_papers.tables import PublicTables, describe_source
from veilwood_testing.errors import rejects
from veilwood_testing.exhibits import MEASURED_JOBS, measure_failing, measure_interrupted, toy_exhibit


@pytest.fixture(autouse=True)
def _forget() -> None:
    MEASURED_JOBS.clear()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure_exhibits([toy_exhibit(measure_interrupted)], PublicTables(), tmp_path)
    assert MEASURED_JOBS == ["job 0", "job 1"]
    result = measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)
    assert MEASURED_JOBS == ["job 0", "job 1", "job 2", "job 3"], "what was there was measured again"
    assert [row.value for row in result.read_rows(toy_exhibit())] == [0, 1, 2, 3]
    measure_exhibits([toy_exhibit()], PublicTables(), tmp_path, fresh=True)
    assert len(MEASURED_JOBS) == 8


def test_a_killed_process_loses_at_most_what_it_was_doing(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        import veilwood_papers.runner as store
        store.SAVE_SECONDS = 0.0
        from pathlib import Path
        from veilwood_testing import exhibits as toy
        from veilwood_papers.runner import measure_exhibits
        def slow(job, tables):
            time.sleep(60 if job.settings["i"] == 3 else 0.01)
            yield from toy.measure_toy(job, tables)
        measure_exhibits([toy.toy_exhibit(slow)], toy.PublicTables(), Path({str(tmp_path)!r}))
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    path, deadline = tmp_path / "full" / "cells" / "toy.csv", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and "job 2" in path.read_text()):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)
    assert MEASURED_JOBS == ["job 3"]


def test_workers_find_the_same_and_fail_alike(tmp_path: Path) -> None:
    one = measure_exhibits([toy_exhibit(measure_failing)], PublicTables(), tmp_path / "one")
    two = measure_exhibits([toy_exhibit(measure_failing)], PublicTables(), tmp_path / "two", workers=2)
    assert [row.value for row in one.read_rows(toy_exhibit())] == [0, 2, 3]
    assert one.read_rows(toy_exhibit()) == two.read_rows(toy_exhibit())
    assert one.failed == two.failed


def test_a_missing_table_is_named_with_the_command_that_gets_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)
    assert len(result.skipped) == 1
    output = capsys.readouterr().err
    assert "banknote" in output
    assert "veilwood papers fetch banknote" in output
    assert "cannot be fetched" in describe_source("covertype")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    result = measure_exhibits([toy_exhibit(packages=("no_such_package",))], PublicTables(), tmp_path)
    assert "no_such_package" in result.skipped[0]
    assert MEASURED_JOBS == []


def test_a_failing_job_does_not_stop_the_others(tmp_path: Path) -> None:
    result = measure_exhibits([toy_exhibit(measure_failing)], PublicTables(), tmp_path)
    assert [row.value for row in result.read_rows(toy_exhibit())] == [0, 2, 3]
    assert len(result.failed) == 1
    assert "out of luck" in result.failed[0]


def test_results_of_two_versions_are_not_mixed(tmp_path: Path) -> None:
    measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)
    note = tmp_path / "full" / "run.json"
    note.write_text(json.dumps({"veilwood": "0.0.1"}))
    with rejects(UseError, raised_in="_begin_run"):
        measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)
    note.write_text("{")
    with rejects(FileError, raised_in="_begin_run"):
        measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)


def test_quick_and_full_results_are_kept_apart(tmp_path: Path) -> None:
    measure_exhibits([toy_exhibit()], PublicTables(), tmp_path, quick=True)
    assert len(open_run(tmp_path, True).read_rows(toy_exhibit())) == 2
    assert open_run(tmp_path, False).read_rows(toy_exhibit()) == []


def test_progress_says_how_much_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilwood_papers.runner.SECONDS_PER_LINE", 0.0)
    measure_exhibits([toy_exhibit()], PublicTables(), tmp_path)
    assert "2 of 4 jobs" in (output := capsys.readouterr().err)
    assert "left" in output


# -- comparing and checking ---------------------------------------------------------------------------------------


# -- tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["no,head\n", "job,panel,curve,x,measure,repeat,value\na,b,c\n"])
def test_a_damaged_file_of_results_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "toy.csv").write_text(text)
    with rejects(FileError, raised_in="ResultStore._read_file"):
        ResultStore(tmp_path / "toy.csv")
