# SPDX-License-Identifier: Apache-2.0
"""The library with other texts: every message, step, note and hint is written in unreadable letters.

``python -m veilwood_testing.reworded MODE FOLDER`` does the same work with the texts of the library ("plain") or with
others ("reworded"), and prints what must not depend on them. Nothing may be decided by English.
"""

from __future__ import annotations

import ast
import codecs
import hashlib
import importlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from io import StringIO
from pathlib import Path
from types import CodeType
from typing import Any

_CALLS = re.compile(r"(Error|_error|warn|warn_once|Warning)$")
_TEXTS = {"notes", "released", "expected", "hint", "where", "summary"}
"""Keyword arguments, and names of dictionaries, that hold text for people."""
_DATA = {"column", "kind", "name", "problems", "party", "value"}
"""Keyword arguments of errors that are fields."""
_FIRST_TEXT = {"ParameterError": 2, "NotFoundError": 9, "warn_once": 1}
"""Number of leading positional arguments that are fields or keys; 0 for others."""


def reword(text: str) -> str:
    """Return a text in other letters; placeholders stay."""
    return re.sub(r"\{[^}]*\}|%.|[a-z]+", lambda m: m[0] if m[0][0] in "{%" else codecs.encode(m[0], "rot13"), text)


class _Rewording(ast.NodeTransformer):
    """Reword texts of errors, warnings, kinds of steps, and notes of plans."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func).rpartition(".")[2]
        is_error = _CALLS.search(name) is not None
        fields = _FIRST_TEXT.get(name, 0)
        if is_error:
            node.args = [each if place < fields else _reword_text(each) for place, each in enumerate(node.args)]
        for keyword in node.keywords:
            if keyword.arg in _TEXTS or (is_error and keyword.arg not in _DATA):
                keyword.value = _reword_text(keyword.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id in _TEXTS:
            node.value = _reword_text(node.value)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        if any(ast.unparse(base).endswith("StepKind") for base in node.bases):
            for each in node.body:
                if isinstance(each, ast.Assign):
                    each.value = _reword_text(each.value)
        return node


def _reword_text(node: ast.expr) -> ast.expr:
    match node:
        case ast.Constant(value=str(text)):
            return ast.copy_location(ast.Constant(reword(text)), node)
        case ast.JoinedStr():
            node.values = [_reword_text(each) if isinstance(each, ast.Constant) else each for each in node.values]
        case ast.BinOp(op=ast.Add()):
            node.left, node.right = _reword_text(node.left), _reword_text(node.right)
        case ast.IfExp():
            node.body, node.orelse = _reword_text(node.body), _reword_text(node.orelse)
        case ast.Dict():
            node.values = [_reword_text(each) for each in node.values]
        case ast.Tuple() | ast.List():
            node.elts = [_reword_text(each) for each in node.elts]
    return node


class _Loader(SourceFileLoader):
    """Loader of a module with other texts."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Rewording().visit(ast.parse(Path(path).read_text(encoding="utf-8")))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finder of the library's modules. Other modules are found as usual."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if not package.startswith("veilwood") or package == "veilwood_testing":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def install_rewording() -> None:
    """Load every module of the library, from now on, with other texts."""
    assert not [name for name in sys.modules if name.startswith("veilwood.")]
    sys.meta_path.insert(0, _Finder())


def _digest(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part if isinstance(part, bytes) else repr(part).encode())
    return found.hexdigest()[:16]


def fit_all(folder: Path) -> dict[str, Any]:
    """Fit one estimator per family, save and load it, and return what a plan, a model and a file hold but for texts."""
    import veilwood as vw
    from veilwood.privacy.entropy import seeded_for_tests

    car, found = vw.datasets.car(), {}
    small = {"n_estimators": 2, "max_depth": 2}
    for name, given in {
        "PrivateForestClassifier": {}, "RandomTreesClassifier": small, "MatrixForestClassifier": small,
        "GreedyForestClassifier": small, "MedianForestClassifier": small,
    }.items():  # fmt: skip
        with seeded_for_tests(3):
            forest = getattr(vw, name)(car.schema, epsilon=1.0, random_state=0, **given).fit(car.X, car.y)
        path = folder / f"{name}.veilwood"
        vw.save(forest, path)
        loaded = vw.load(path)
        plan, certificate = loaded.plan_, loaded.privacy_
        found[name] = {
            "arrays": _digest(*(a.tobytes() for _, a in sorted(forest.model_.to_arrays().items()))),
            "predictions": _digest(loaded.predict_proba(car.X[:50]).tobytes()),
            "steps": [
                (step.kind, list(step.at), str(step.loss), list(step.shape), step.sensitivity) for step in plan.steps
            ],
            "loss": str(plan.loss),
            "guarantee": (certificate.epsilon, certificate.delta),
        }
    return found


def run_commands(folder: Path) -> list[tuple[str, int]]:
    """Return the exit codes of commands, good and bad."""
    import veilwood as vw
    from veilwood.cli.main import main

    car, table, schema = vw.datasets.car(), folder / "car.csv", folder / "car.json"
    car.X.assign(**{str(car.y.name): car.y}).to_csv(table, index=False)
    car.schema.save(schema)
    (folder / "odd.csv").write_text("a,b\n1,2\n")
    ledger, trees = folder / "car.db", ["--estimator", "random-trees", "-p", "n_estimators=2", "-p", "max_depth=2"]
    fit = ["fit", f"{table}", "--schema", f"{schema}", *trees, "-o", f"{folder / 'car.veilwood'}", "--force"]
    commands = [
        ["ledger", "create", f"{ledger}", "--epsilon", "1"],
        ["ledger", "create", f"{ledger}", "--epsilon", "1"],
        ["plan", "--schema", f"{schema}", *trees],
        ["plan", "--schema", f"{folder / 'none.json'}"],
        ["plan", "--schema", f"{schema}", "--estimator", "oak"],
        ["plan", "--schema", f"{schema}", "-p", "depth=3"],
        [*fit, "--ledger", f"{ledger}", "--epsilon", "0.75"],
        [*fit, "--ledger", f"{ledger}", "--epsilon", "0.75"],
        [*fit, "--ledger", f"{folder / 'none.db'}"],
        [*fit, "--ledger", f"{ledger}", "--epsilon", "inf"],
        ["fit", f"{folder / 'odd.csv'}", "--schema", f"{schema}", "-o", f"{folder / 'odd.veilwood'}"],
        ["fit", f"{folder / 'none.csv'}", "--schema", f"{schema}", "-o", f"{folder / 'odd.veilwood'}"],
        ["predict", f"{folder / 'car.veilwood'}", f"{table}", "-o", f"{folder / 'out.csv'}"],
        ["predict", f"{table}", f"{table}", "-o", f"{folder / 'out.csv'}"],
        ["certificate", f"{folder / 'car.veilwood'}"],
        ["explain", f"{folder / 'car.veilwood'}"],
        ["verify", f"{folder / 'car.veilwood'}", "--signed-by", f"{folder / 'none.pub'}"],
        ["ledger", "verify", f"{ledger}"],
        ["ledger", "resolve", f"{ledger}", "99"],
        ["frobnicate"],
    ]
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return [(" ".join(each[:2]).replace(str(folder), ""), main(each)) for each in commands]


def _requests(running: Any) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield requests of a service that has one table: role, method, path and the body."""
    trees = {"estimator": "random-trees", "epsilon": 1, "parameters": {"n_estimators": 2, "max_depth": 2}}
    cars = "/v1/datasets/cars"
    yield "auditor", "GET", "/v1/datasets", {}
    yield "analyst", "GET", "/v1/datasets/nowhere", {}
    yield "analyst", "GET", "/v1/models/nothing", {}
    yield "analyst", "GET", "/v1/plans/nothing", {}
    yield "analyst", "GET", "/v1/jobs/nothing", {}
    yield "analyst", "GET", "/nowhere", {}
    yield "analyst", "PUT", f"{cars}/schema", {"json": {}}
    yield "custodian", "PUT", f"{cars}/schema", {"json": {"name": 1}}
    yield "custodian", "PUT", f"{cars}/schema", {"content": b"{"}
    yield "custodian", "POST", "/v1/datasets", {"json": {"name": "cars", "people": "x", "epsilon": 1}}
    yield "custodian", "POST", "/v1/datasets", {"json": {"name": "a b", "people": "x", "epsilon": 1}}
    yield "custodian", "POST", "/v1/datasets", {"json": {"name": "c", "people": "x", "epsilon": -1}}
    yield "analyst", "POST", f"{cars}/plans", {"json": {"estimator": "oak"}}
    yield "analyst", "POST", f"{cars}/plans", {"json": trees | {"epsilon": "x"}}
    yield "analyst", "POST", f"{cars}/plans", {"json": trees | {"parameters": {"depth": 2}}}
    yield "analyst", "POST", f"{cars}/plans", {"json": trees | {"parameters": {"max_depth": 0}}}
    plan = running.post("analyst", f"{cars}/plans", trees)["id"]
    yield "analyst", "POST", f"/v1/plans/{plan}/jobs", {}  # not signed
    yield "custodian", "POST", f"/v1/plans/{plan}/signature", {"json": {"fingerprint": "0" * 64}}
    yield "analyst", "POST", f"/v1/plans/{plan}/signature", {"json": {}}
    large = running.post("analyst", f"{cars}/plans", trees | {"epsilon": 5})
    body = {"fingerprint": large["fingerprint"]}
    yield "custodian", "POST", f"/v1/plans/{large['id']}/signature", {"json": body}
    yield "analyst", "POST", f"/v1/plans/{large['id']}/jobs", {}  # exceeds the budget
    model = running.trained(epsilon=1)
    rows = [{name: values[0] for name, values in running.columns.items()}]
    yield "analyst", "POST", f"/v1/models/{model}/predict", {"json": {"rows": rows}}
    yield "analyst", "POST", f"/v1/models/{model}/predict", {"json": {"rows": [{"x": 1}]}}
    yield "analyst", "POST", f"/v1/models/{model}/predict", {"json": {"rows": 3}}
    yield "analyst", "POST", f"/v1/models/{model}/ask", {"json": {"rows": rows}}
    yield "analyst", "GET", f"/v1/models/{model}/effects", {}
    yield "custodian", "POST", f"{cars}/ledger/99/resolve", {"json": {"reason": "lost"}}
    yield "custodian", "POST", f"{cars}/ledger/thaw", {"json": {"reason": "none"}}
    yield "operator", "POST", "/v1/accounts", {"json": {"name": "anna", "roles": ["king"]}}
    yield "operator", "POST", "/v1/accounts", {"json": {"name": "analyst", "roles": ["analyst"]}}


def send_requests(folder: Path) -> list[tuple[str, int]]:
    """Return the status codes of a service's answers, good and bad."""
    from veilwood_testing.running_service import CAR, serving

    found = []
    with serving(folder / "service") as running:
        running.add_cars(epsilon=3)
        running.columns = {name: CAR.X[name].tolist() for name in CAR.X}  # type: ignore[attr-defined]
        for role, method, path, body in _requests(running):
            answer = running.ask(role, method, path, **body)
            found.append((f"{method} {re.sub('[0-9a-f]{24}', 'ID', path)}", answer.status_code))
        found.append(("a wrong token", running.test_client.get("/v1/datasets", headers={}).status_code))
    return found


def main() -> None:
    """Do the work and print the results as JSON, with one message for the caller to compare."""
    mode, folder = sys.argv[1], Path(sys.argv[2])
    os.environ["VEILWOOD_CACHE"] = "off"
    if mode != "plain":
        install_rewording()
    if mode == "decided by English":  # a defect that the comparison must notice
        errors = importlib.import_module("veilwood.errors")
        command_line = importlib.import_module("veilwood.cli.main")
        command_line._exit_code_and_message = lambda error: (  # type: ignore[attr-defined]
            3 if "insufficient" in str(error) else getattr(error, "exit_code", 2), str(error)
        )  # fmt: skip
        errors.BudgetExceededError.exit_code = 2
    import veilwood as vw

    warnings.simplefilter("ignore")
    result: dict[str, Any] = {}
    try:
        vw.PrivateForestClassifier(vw.datasets.car().schema, epsilon=-1.0).plan()
    except vw.VeilwoodError as error:
        result["message"] = str(error)
    result["fits"], result["commands"] = fit_all(folder), run_commands(folder)
    if mode != "decided by English":
        result["requests"] = send_requests(folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
