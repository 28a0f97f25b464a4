# SPDX-License-Identifier: Apache-2.0
"""The command line: what works, what each mistake answers, help, completion and log levels."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.fit import FAMILIES
from veilwood.cli.main import COMMANDS, main, whole_command
from veilwood.forests.random_trees import RandomTrees
from veilwood.models import file as model_file
from veilwood_testing.commands import FIT_VISITS, SMALL_TREES_OPTIONS, run_json

ROOT = Path(__file__).parents[4]


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, ROOT.glob("packages/*/src")))}


def test_the_default_is_the_forest_most_people_should_use(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        run_json(capsys, "plan", "--schema", "visits.json", *more)["estimator"]
        for more in ([], ["--estimator", "private-forest"], ["--estimator", "PrivateForestClassifier"])
    ]
    assert names == ["PrivateForestClassifier"] * 3
    assert run_json(capsys, "plan", "--schema", "visits.json", "--estimator", "RandomTreesRegressor")["estimator"] == (
        "RandomTreesClassifier"  # the schema's task picks the one of a family
    )


# -- what works ----------------------------------------------------------------------------------------------


def test_from_draft_to_predictions(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "schema", "draft", "visits.csv", "--target", "ill", "-o", "draft.json")
    assert found == {"schema": "draft.json", "task": "classification", "target": "ill", "left_out": {}}
    assert run_json(capsys, "schema", "check", "visits.csv", "--schema", "visits.json")["fits"]
    plan = run_json(capsys, "plan", "--schema", "visits.json", *SMALL_TREES_OPTIONS)
    assert (plan["epsilon"], plan["layout"]["trees"]) == ("1", 4)
    assert run_json(capsys, "ledger", "create", "visits.db", "--epsilon", "1.5")["remaining"] == "epsilon=1.5"

    made = run_json(capsys, *FIT_VISITS, "--ledger", "visits.db")
    assert made["plan"] == plan  # what was shown is what was done
    assert made["model"] == "visits.veilwood"
    assert run_json(capsys, "certificate", "visits.veilwood") == made["certificate"]
    assert made["certificate"]["is_private"]
    shown = run_json(capsys, "ledger", "show", "visits.db")
    assert (shown["remaining"], shown["entries"][0]["state"]) == ("epsilon=0.5", "committed")
    assert run_json(capsys, "ledger", "verify", "visits.db")["intact"]

    rows = run_json(capsys, "predict", "visits.veilwood", "visits.csv", "--proba")
    assert len(rows) == 400
    assert set(rows[0]) == {"prediction", "probability_no", "probability_yes"}


def test_text_for_people(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT_VISITS, "--delta", "1e-6"]) == 0
    out = capsys.readouterr().out
    assert "Delta not spent, as pure noise is the smaller one here" in " ".join(out.split())
    assert "epsilon=1, delta=1e-06; protects one row" in out or "epsilon=1; protects one row" in out
    assert "not recorded: no --ledger was given" in out
    assert "Wrote  visits.veilwood\n" in out
    assert main(["certificate", "visits.veilwood"]) == 0
    assert capsys.readouterr().out.startswith("# Privacy certificate: private")
    assert main(["ledger", "show", "small.db"]) == 0
    assert "epsilon=0.5 left of epsilon=0.5" in capsys.readouterr().out


def test_regression_is_picked_by_the_schema(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(Path("visits.json").read_text())
    schema |= {"task": "regression", "target": "age"}
    Path("ages.json").write_text(json.dumps(schema))
    fit = ["fit", "visits.csv", "--schema", "ages.json", "-o", "ages.veilwood", *SMALL_TREES_OPTIONS]
    assert run_json(capsys, *fit)["plan"]["estimator"] == "RandomTreesRegressor"
    assert main(["predict", "ages.veilwood", "visits.csv", "--proba"]) == 2
    assert "omit --proba" in capsys.readouterr().err


def test_an_unreviewed_draft_is_not_private(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "draft", "visits.csv", "-o", "draft.json"]) == 0
    assert main(["fit", "visits.csv", "--schema", "draft.json", *SMALL_TREES_OPTIONS]) == 0
    captured = capsys.readouterr()
    assert "warning: draft.json is an unreviewed draft" in captured.err
    assert "Spent  NOT PRIVATE: the schema was inferred" in captured.out
    assert not run_json(capsys, "certificate", "visits.veilwood")["is_private"]
    # A reviewer deletes the marks; a half-reviewed draft is still a draft.
    draft = json.loads(Path("draft.json").read_text())
    del draft["notes"], draft["inferred"]
    Path("draft.json").write_text(json.dumps(draft))
    assert main(["fit", "visits.csv", "--schema", "draft.json", *SMALL_TREES_OPTIONS, "--force"]) == 0
    assert "Spent  NOT PRIVATE" in capsys.readouterr().out
    for column in draft["columns"]:
        del column["bounds"]
    Path("draft.json").write_text(json.dumps(draft))
    assert main(["fit", "visits.csv", "--schema", "draft.json", *SMALL_TREES_OPTIONS, "--force"]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    assert "NOT PRIVATE" not in captured.out


def test_infinite_epsilon_says_not_private(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT_VISITS, "--epsilon", "inf"]) == 0
    assert "Spent  NOT PRIVATE: epsilon is infinite" in capsys.readouterr().out


def test_warnings_are_one_line(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # So many leaves that the rows of one, told from noisy counts, cannot look like more than the noise by chance.
    fit = ["fit", "visits.csv", "--schema", "visits.json", "--estimator", "random-trees", "--param", "max_depth=8"]
    assert main([*fit, "--epsilon", "0.01"]) == 0
    err = capsys.readouterr().err
    assert err.startswith("warning: expected noise")
    assert err.count("\n") == 1


def example_command_lines() -> list[list[str]]:
    groups = {"schema": ["draft", "check"], "ledger": ["create", "show", "verify"]}
    single = [["demo"], ["plan"], ["fit"], ["predict"], ["certificate"]]
    return single + [[group, name] for group, names in groups.items() for name in names]


@pytest.mark.parametrize("words", example_command_lines(), ids=" ".join)
def test_help_has_an_example(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"veilwood {' '.join(words)} " in out.split("Example:")[1]
    assert "--json" in out


@pytest.mark.parametrize(("family", "task"), [(name, task) for name, tasks in FAMILIES.items() for task in tasks])
def test_every_family_goes_from_fit_to_predictions(
    family: str, task: str, in_clinic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads(Path("visits.json").read_text())
    schema |= {"task": task, "target": "ill" if task == "classification" else "age"}
    Path("other.json").write_text(json.dumps(schema))
    params = ["n_rows=400"] if family == "private-forest" else ["n_estimators=2", "max_depth=2"]
    words = ["--estimator", family, *(word for param in params for word in ("--param", param))]
    made = run_json(capsys, "fit", "visits.csv", "--schema", "other.json", *words)
    assert made["certificate"]["is_private"]
    planned = vw.Plan.from_dict(run_json(capsys, "plan", "--schema", "other.json", *words))
    assert made["certificate"]["plan_hash"] == planned.fingerprint()
    assert made["plan"] == planned.to_dict() or made["plan"]["opened_as"] == planned.fingerprint()
    assert len(run_json(capsys, "predict", "visits.veilwood", "visits.csv")) == 400


def test_what_was_chosen_on_the_way_is_told(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "visits.csv", "--schema", "visits.json", "--estimator", "private-forest", "--epsilon", "2"]
    assert main(words) == 0
    assert "Chosen  " in capsys.readouterr().out


# -- what goes wrong -----------------------------------------------------------------------------------------


def write(name: str, content: str | bytes) -> Callable[[], object]:
    return lambda: Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cut_model() -> None:
    whole = Path("old.veilwood").read_bytes()
    Path("old.veilwood").write_bytes(whole[: len(whole) // 2])


def nothing() -> None:
    pass


OLD = ["predict", "old.veilwood"]


MISTAKES: list[tuple[list[str], str, Callable[[], object]]] = [
    (["fit", "nosuch.csv", "--schema", "visits.json"], "there is no table at 'nosuch.csv'", nothing),
    (["fit", ".", "--schema", "visits.json"], "column", write("other.csv", "a,b\n1,2\n")),
    (["fit", "empty.csv", "--schema", "visits.json"], "empty.csv", write("empty.csv", "")),
    (["fit", "bytes.csv", "--schema", "visits.json"], "bytes.csv", write("bytes.csv", bytes(range(256)) * 20)),
    (["fit", "notes.txt", "--schema", "visits.json"], "is not a table", write("notes.txt", "hello")),
    (["fit", "odd.csv", "--schema", "visits.json"], "'ward'", write("odd.csv", "age,ward,ill\n1,D,yes\n")),
    (["fit", "odd.csv", "-s", "visits.json", "--show-values"], "1: 'D'", write("odd.csv", "age,ward,ill\n1,D,yes\n")),
    (
        ["fit", "odd.csv", "--schema", "visits.json"],
        "contain numbers only",
        write("odd.csv", "age,ward,ill\nold,A,yes\n"),
    ),
    (["fit", "odd.csv", "--schema", "visits.json"], "missing", write("odd.csv", "age,ward,ill\n,A,yes\n")),
    (["fit", "odd.csv", "--schema", "visits.json"], "no column 'ill'", write("odd.csv", "age,ward\n1,A\n")),
    (["fit", "visits.csv", "--schema", "nosuch.json"], "veilwood schema draft TABLE", nothing),
    (["fit", "visits.csv", "--schema", "bad.json"], "not valid JSON", write("bad.json", "{")),
    (["fit", "visits.csv", "--schema", "visits.csv"], "not valid JSON", nothing),
    (["fit", "visits.csv", "--schema", "bad.json"], "has no 'name'", write("bad.json", "{}")),
    (["fit", "visits.csv", "--schema", "."], "cannot read schema file", nothing),
    (["fit", "visits.csv"], "--schema", nothing),
    ([*FIT_VISITS, "--estimator", "random-tree"], "Did you mean 'random-trees'?", nothing),
    ([*FIT_VISITS, "--estimator", "MatrixForestPredictor"], "choose matrix-forest, which fits a model", nothing),
    ([*FIT_VISITS, "--epsilon", "0"], "epsilon=0.0 must be above 0", nothing),
    ([*FIT_VISITS, "--epsilon", "-1"], "must be above 0", nothing),
    ([*FIT_VISITS, "--epsilon", "nan"], "not a finite number", nothing),
    ([*FIT_VISITS, "--epsilon", "lots"], "Invalid value for '--epsilon'", nothing),
    ([*FIT_VISITS, "--delta", "2"], "delta=2.0 must be", nothing),
    ([*FIT_VISITS, "--param", "max_dept=3"], "Did you mean 'max_depth'?", nothing),
    ([*FIT_VISITS, "--param", "max_depth"], "KEY=VALUE", nothing),
    ([*FIT_VISITS, "--param", "epsilon=3"], "use the option --epsilon", nothing),
    ([*FIT_VISITS, "--param", "max_depth=deep"], "max_depth", nothing),
    ([*FIT_VISITS, "--param", "n_estimators=0"], "n_estimators", nothing),
    ([*FIT_VISITS, "--param", "n_estimators=2.5"], "n_estimators", nothing),
    ([*FIT_VISITS, "--param", "voting=loud"], "voting='loud'", nothing),
    ([*FIT_VISITS, "-o", "old.veilwood"], "exists already", nothing),
    ([*FIT_VISITS, "-o", "."], "is a folder", nothing),
    ([*FIT_VISITS, "-o", "nosuch/model.veilwood"], "cannot write to nosuch", nothing),
    ([*FIT_VISITS, "--ledger", "nosuch.db"], "veilwood ledger create nosuch.db", nothing),
    ([*FIT_VISITS, "--ledger", "visits.csv"], "visits.csv", nothing),
    (
        [*FIT_VISITS, "--ledger", "small.db"],
        "in ledger small.db: requested epsilon=1, remaining epsilon=0.5 (of 0.5). Hint: request at most epsilon=0.5. "
        "Nothing was spent.",
        nothing,
    ),
    ([*OLD, "visits.csv"], "cut off", cut_model),
    (["predict", "visits.csv", "visits.csv"], "not a Veilwood model", nothing),
    (["certificate", "nosuch.veilwood"], "no such file", nothing),
    (["certificate", "."], "directory", nothing),
    ([*OLD, "odd.csv"], "no column 'age'", write("odd.csv", "ward\nA\n")),
    ([*OLD, "odd.csv", "--unknown", "refuse"], "'ward'", write("odd.csv", "age,ward\n1,D\n")),
    ([*OLD, "nosuch.csv"], "there is no table", nothing),
    ([*OLD, "visits.csv", "-o", "visits.csv"], "exists already", nothing),
    (["schema", "draft", "visits.csv", "--target", "il"], "Did you mean 'ill'?", nothing),
    (["schema", "draft", "nosuch.csv"], "there is no table", nothing),
    (["schema", "draft", "visits.csv", "-o", "visits.json"], "exists already", nothing),
    (["schema", "check", "odd.csv", "-s", "visits.json"], "in 1 row.", write("odd.csv", "age,ward,ill\n1,D,no\n")),
    (["ledger", "show", "nosuch.db"], "there is no ledger", nothing),
    (["ledger", "create", "small.db", "--epsilon", "9"], "exists already", nothing),
    (["ledger", "create", "new.db", "--epsilon", "-1"], "must be above 0", nothing),
    (["ledger", "verify", "visits.json"], "visits.json", nothing),
    (["demo", "--out", "visits.csv"], "visits.csv is a file", nothing),
    (["fitt"], "fitt", nothing),
    (["plan", "--schema", "visits.json", "--epsilom", "1"], "--epsilom", nothing),
]


# What makes a mistake one of a file or a ledger, or of a budget; all others are bad input.
OF_A_FILE = (
    "no such file",
    "directory",
    "cut off",
    "not a Veilwood model",
    "there is no ledger",
    "ledger create nosuch",
)


def exit_code(words: list[str], says: str) -> int:
    of_a_ledger = words[:2] in (["ledger", "verify"], ["ledger", "create"]) and "above 0" not in says
    if "remaining" in says:
        return 3
    return 4 if of_a_ledger or words[-2:] == ["--ledger", "visits.csv"] or any(w in says for w in OF_A_FILE) else 2


@pytest.mark.parametrize(("words", "says", "prepare"), MISTAKES, ids=[" ".join(words) for words, _, _ in MISTAKES])
def test_mistakes_are_one_line(
    words: list[str], says: str, prepare: Callable[[], object], in_clinic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare()
    files = set(in_clinic.iterdir())
    assert main(words) == exit_code(words, says)
    err = capsys.readouterr().err
    assert says in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert set(in_clinic.iterdir()) == files
    assert vw.open_ledger("small.db").spent.epsilon == 0


def test_refused_rows_give_the_budget_back(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.csv").write_text("age,ward,ill\n1,D,yes\n")
    fit = ["fit", "odd.csv", "--schema", "visits.json", "--epsilon", "0.3", "--ledger", "small.db"]
    assert main(fit) == 2
    assert capsys.readouterr().err.endswith("Nothing was spent.\n")
    assert vw.open_ledger("small.db").spent.epsilon == 0


def test_a_full_disk_says_that_the_budget_is_spent(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "visits.veilwood")

    monkeypatch.setattr(model_file, "save", full)
    assert main([*FIT_VISITS, "--epsilon", "0.3", "--ledger", "small.db"]) == 4
    err = capsys.readouterr().err
    assert err == ("error: No space left on device: visits.veilwood. epsilon=0.3 counts as spent (ledger small.db).\n")


@pytest.mark.parametrize(
    ("where", "note"), [("measure_rows", "epsilon=0.3 counts as spent"), ("make_design", "interrupted.")]
)
def test_interrupted(
    where: str, note: str, in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RandomTrees, where, interrupt)
    assert main([*FIT_VISITS, "--epsilon", "0.3", "--ledger", "small.db"]) == 130
    err = capsys.readouterr().err
    assert note in err
    assert err.startswith("error: interrupted.")
    assert err.count("\n") == 1


def test_unexpected_errors(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veilwood.cli.fit.predict_files", lambda *_, **__: 1 / 0)
    assert main([*OLD, "visits.csv"]) == 1
    err = capsys.readouterr().err
    assert err == (
        "error: unexpected ZeroDivisionError: division by zero. Hint: run again with --debug for the traceback.\n"
    )
    assert main([*OLD, "visits.csv", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_debug_may_stand_anywhere(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--debug", "certificate", "nosuch"], ["certificate", "nosuch", "--debug"]):
        assert main(words) == 4
        assert "Traceback" in capsys.readouterr().err


def test_what_was_released_counts_as_spent_without_a_ledger_too(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("veilwood.models.file.save", full)
    assert main(["fit", "visits.csv", "--schema", "visits.json", "--epsilon", "0.3", "--yes"]) != 0
    assert "epsilon=0.3 counts as spent" in capsys.readouterr().err


def test_the_same_plan_on_a_new_table_every_month(in_clinic: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--schema", "visits.json", "--epsilon", "0.2", "-o", "plan.json", "-q"]) == 0
    for month in ("may", "june"):
        Path("visits.csv").rename(f"{month}.csv")
        fit = ["fit", f"{month}.csv", "--schema", "visits.json", "--plan", "plan.json", "--ledger", "small.db"]
        assert main([*fit, "--yes", "--quiet"]) == 0
        Path(f"{month}.csv").rename("visits.csv")
    assert capsys.readouterr().out == "plan.json\nmay.veilwood\njune.veilwood\n"
    assert vw.open_ledger("small.db").spent.epsilon == Fraction(2, 5)


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", "1.0"), ("delta", "0"), ("estimator", "random-trees"), ("param", "n_rows=9")]
)
def test_options_that_a_plan_names_are_refused_beside_it(
    in_clinic: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    assert main(["plan", "--schema", "visits.json", "--epsilon", "0.2", "-o", "plan.json", "-q"]) == 0
    fit = ["fit", "visits.csv", "--schema", "visits.json", "--plan", "plan.json", "--yes", f"--{name}", value]
    assert main(fit) == 2
    assert f"--plan already sets {name}. Hint: omit --{name}" in capsys.readouterr().err


# -- as processes --------------------------------------------------------------------------------------------


def test_the_real_program(in_clinic: Path) -> None:
    program = Path(sys.executable).with_name("veilwood")
    start = [program] if program.exists() else [sys.executable, "-m", "veilwood"]
    run = subprocess.run([*start, "--version"], env=ENVIRONMENT, capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"veilwood {vw.__version__}\n")
    frame = pd.concat([pd.read_csv("visits.csv")] * 100)
    frame.to_csv("many.csv", index=False)
    words = [sys.executable, "-m", "veilwood", *OLD, "many.csv"]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"prediction\n"
        process.stdout.close()  # as head does
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="sends a POSIX signal")
def test_ctrl_c_in_a_running_fit(in_clinic: Path) -> None:
    stall = (
        "import time, veilwood as vw; from veilwood.cli.main import main; import sys\n"
        "from veilwood.forests.random_trees import RandomTrees\n"
        "RandomTrees.measure_rows = lambda *a: (print('counting', flush=True), time.sleep(60))\n"
        f"sys.exit(main({[*FIT_VISITS, '--epsilon', '0.3', '--ledger', 'small.db']!r}))"
    )
    words = [sys.executable, "-c", stall]
    with subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "counting" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "error: interrupted. epsilon=0.3 counts as spent (ledger small.db).\n"
    assert process.returncode == 130


def command_paths(group: Any, so_far: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command, by the words that reach it."""
    yield so_far
    for name, command in getattr(group, "commands", {}).items():
        yield from command_paths(command, (*so_far, name))


COMMAND: Any = whole_command()


EVERY = list(command_paths(COMMAND))


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
    monkeypatch.setattr(uvicorn.Server, "run", lambda _: None)
    assert main(["serve", str(tmp_path), "--port", "0", "--log-level", level]) == 0
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
