# SPDX-License-Identifier: Apache-2.0
"""Runs go on where they were killed, name what is missing, and never mix versions; results are written whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from veilwood.errors import FileError, UseError, VeilwoodError
from veilwood.papers.claims import above, all_of, at, bends, between, falls, keeps, rises
from veilwood.papers.drawing import lines
from veilwood.papers.exhibit import Cell, Claim, Exhibit, Experiment, Job, Row, Value, Values, verdict
from veilwood.papers.runner import open_run, run
from veilwood.papers.show import Shown, of_run, said, write
from veilwood.papers.store import Store
from veilwood.papers.tables import Tables, hash_of_file, hash_of_rows, how_to_get, known, packed_rows

DONE: list[str] = []  # what this process has measured


def jobs(quick: bool) -> list[Job]:
    return [Job(f"job {i}", "car" if i < 4 else "banknote", {"i": i}) for i in range(2 if quick else 5)]


def measure(job: Job, tables: Tables) -> Iterator[Row]:
    DONE.append(job.name)
    yield Row(Cell("toy", "line", str(job.settings["i"])), 0, float(job.settings["i"]))


def interrupted(job: Job, tables: Tables) -> Iterator[Row]:
    if job.settings["i"] == 2:
        raise KeyboardInterrupt
    yield from measure(job, tables)


def failing(job: Job, tables: Tables) -> Iterator[Row]:
    if job.settings["i"] == 1:
        raise RuntimeError("out of luck")
    yield from measure(job, tables)


def exhibit(measuring: object = measure, packages: tuple[str, ...] = ()) -> Exhibit:
    experiment = Experiment("toy", jobs, measuring, packages)  # type: ignore[arg-type]
    return Exhibit("rdt", "table 1", "A toy", "none", experiment, lines("x", "y"))


@pytest.fixture(autouse=True)
def _forget() -> None:
    DONE.clear()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run([exhibit(interrupted)], Tables(), tmp_path)
    assert DONE == ["job 0", "job 1"]
    result = run([exhibit()], Tables(), tmp_path)
    assert DONE == ["job 0", "job 1", "job 2", "job 3"], "what was there was measured again"
    assert [row.value for row in result.rows(exhibit())] == [0, 1, 2, 3]
    run([exhibit()], Tables(), tmp_path, fresh=True)
    assert len(DONE) == 8


def test_a_killed_process_loses_at_most_what_it_was_doing(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        import veilwood.papers.store as store
        store.SAVE_SECONDS = 0.0
        import papers.test_papers_runner as toy
        def slow(job, tables):
            time.sleep(60 if job.settings["i"] == 3 else 0.01)
            yield from toy.measure(job, tables)
        toy.run([toy.exhibit(slow)], toy.Tables(), toy.Path({str(tmp_path)!r}))
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    path, deadline = tmp_path / "full" / "cells" / "toy.csv", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and "job 2" in path.read_text()):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run([exhibit()], Tables(), tmp_path)
    assert DONE == ["job 3"]


def test_workers_find_the_same_and_fail_alike(tmp_path: Path) -> None:
    one = run([exhibit(failing)], Tables(), tmp_path / "one")
    two = run([exhibit(failing)], Tables(), tmp_path / "two", workers=2)
    assert [row.value for row in one.rows(exhibit())] == [0, 2, 3]
    assert one.rows(exhibit()) == two.rows(exhibit())
    assert one.failed == two.failed


def test_a_missing_table_is_named_with_the_command_that_gets_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run([exhibit()], Tables(), tmp_path)
    assert len(result.skipped) == 1
    told = capsys.readouterr().err
    assert "banknote" in told
    assert "veilwood papers fetch banknote" in told
    assert "cannot be fetched" in how_to_get("covertype")


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    result = run([exhibit(packages=("no_such_package",))], Tables(), tmp_path)
    assert "no_such_package" in result.skipped[0]
    assert DONE == []


def test_a_failing_job_does_not_stop_the_others(tmp_path: Path) -> None:
    result = run([exhibit(failing)], Tables(), tmp_path)
    assert [row.value for row in result.rows(exhibit())] == [0, 2, 3]
    assert len(result.failed) == 1
    assert "out of luck" in result.failed[0]


def test_results_of_two_versions_are_not_mixed(tmp_path: Path) -> None:
    run([exhibit()], Tables(), tmp_path)
    note = tmp_path / "full" / "run.json"
    note.write_text(json.dumps({"veilwood": "0.0.1"}))
    with pytest.raises(UseError, match=r"0\.0\.1"):
        run([exhibit()], Tables(), tmp_path)
    note.write_text("{")
    with pytest.raises(FileError, match="damaged"):
        run([exhibit()], Tables(), tmp_path)


def test_quick_and_full_results_are_kept_apart(tmp_path: Path) -> None:
    run([exhibit()], Tables(), tmp_path, quick=True)
    assert len(open_run(tmp_path, True).rows(exhibit())) == 2
    assert open_run(tmp_path, False).rows(exhibit()) == []


def test_progress_says_how_much_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilwood.papers.runner.SECONDS_A_LINE", 0.0)
    run([exhibit()], Tables(), tmp_path)
    assert "2 of 4 jobs" in (told := capsys.readouterr().err)
    assert "left" in told


@pytest.mark.parametrize("text", ["no,head\n", "job,panel,curve,x,measure,repeat,value\na,b,c\n"])
def test_a_damaged_file_of_results_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "toy.csv").write_text(text)
    with pytest.raises(FileError, match="Hint"):
        Store(tmp_path / "toy.csv")


def test_files_of_an_exhibit_are_the_same_for_the_same_cells(tmp_path: Path) -> None:
    shown = of_run(exhibit(), run([exhibit()], Tables(), tmp_path))
    first = {name: path.read_bytes() for name, path in write(shown, tmp_path).items()}
    assert first == {name: path.read_bytes() for name, path in write(shown, tmp_path).items()}
    assert set(first) == {"table", "picture"}


# -- comparing and checking ---------------------------------------------------------------------------------------


def curve(name: str, *means: float) -> Values:
    return {Cell("p", name, str(x)): Value(mean, 0.01, 5) for x, mean in enumerate(means)}


def test_a_verdict_needs_two_standard_errors() -> None:
    cell = Cell("p", "c", "1")
    assert verdict(cell, Value(0.80, 0.01), Value(0.825, 0.01)) == "same"
    assert verdict(cell, Value(0.80, 0.01), Value(0.84, 0.01)) == "worse"
    assert verdict(cell, Value(0.80, 0.01), Value(0.76, 0.01)) == "better"
    assert verdict(cell._replace(measure="MSE x 100"), Value(0.80, 0.01), Value(0.76, 0.01)) == "worse"
    assert verdict(cell._replace(measure="error (%)"), Value(1.0), Value(2.0)) == "better"
    assert verdict(cell._replace(measure="number"), Value(123.0), Value(124.0)) == "differs"


def test_sentences_are_checked_by_code() -> None:
    both = {**curve("a", 0.5, 0.7, 0.6), **curve("b", 0.4, 0.5, 0.65)}
    assert above("a", "b")(both) is False
    assert above("a", "b", share=0.6)(both) is True
    assert above("a", "b", only=lambda panel, x: x == "0")(both) is True
    assert above("a", "missing")(both) is None
    assert falls("a")(both) is True
    assert falls("b")(both) is False
    assert keeps("a")(both) is False
    assert rises("b")(both) is True
    assert bends("c")(curve("c", 3.0, 1.0, 2.0)) is True
    assert bends("c")(curve("c", 3.0, 2.0, 1.0)) is False
    assert between("a", "p", "1", 0.6, 0.8)(both) is True
    assert between("a", "p", "9", 0.6, 0.8)(both) is None
    assert all_of(falls("a"), falls("b"))(both) is False
    assert all_of(falls("missing"))(both) is None
    assert at(both, "a")["p", "1"] == 0.7


def test_a_sentence_without_its_cells_is_not_measured() -> None:
    claims = (Claim("Up.", rises("b")), Claim("Down.", falls("b")), Claim("Elsewhere.", rises("c")))
    made = Exhibit("rdt", "table 1", "", "", Experiment("toy", jobs, measure), lines("x", "y"), claims=claims)
    words = [word for _, word in Shown(made, curve("b", 0.4, 0.5), {}, True).sentences()]
    assert words == ["true", "false", "not measured"]
    assert said(Value(123.4, 5.0)) == "123 ± 5.00"


# -- tables -------------------------------------------------------------------------------------------------------


def test_the_hash_of_a_table_sees_every_cell_and_no_order(tmp_path: Path) -> None:
    facts = {"columns": [{"name": "x", "kind": "numeric"}, {"name": "c", "kind": "categorical"}]}
    rows = [["1.50", "a"], ["", "b"], ["3", "1.0"]]
    right = hash_of_rows(["x", "c"], rows, facts)
    assert right == hash_of_rows(["x", "c"], [["3.0", "1.0"], ["1.5", "a"], ["", "b"]], facts)
    for other in ([["1.51", "a"], *rows[1:]], [rows[0], rows[1], ["3", "1"]], rows[:2], [*rows, rows[0]]):
        assert right != hash_of_rows(["x", "c"], other, facts)
    (tmp_path / "t.csv.gz").write_bytes(packed_rows(["x", "c"], rows))
    assert hash_of_file(tmp_path / "t.csv.gz", facts) == right
    (tmp_path / "t.csv.gz").write_bytes(packed_rows(["x", "c"], rows)[:-9])
    with pytest.raises(FileError):
        hash_of_file(tmp_path / "t.csv.gz", facts)


@pytest.mark.parametrize("name", ["car", "balance-scale"])
def test_tables_by_rule_have_the_known_hash(name: str) -> None:
    table = Tables().load(name)
    rows = table.X.assign(target=table.y).astype(str).to_numpy().tolist()
    header = [column["name"] for column in table.facts["columns"]]
    assert hash_of_rows(header, rows, table.facts) == known()[name]["sha256"]


def test_a_table_that_is_not_here_is_an_error_with_the_next_step() -> None:
    with pytest.raises(VeilwoodError, match="papers fetch banknote"):
        Tables().load("banknote")
