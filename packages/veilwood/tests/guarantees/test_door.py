# SPDX-License-Identifier: Apache-2.0
"""Attacks on the door: nothing private passes without a charge that stands before it and stays after a crash."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from veilwood import RandomTreesClassifier, RandomTreesRegressor, Schema
from veilwood.data.batches import Source
from veilwood.errors import BudgetExceededError, OutOfSchemaError, PrivacyWarning
from veilwood.privacy import entropy
from veilwood.privacy.ledger_stores import MemoryLedger, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood_testing import SOURCES
from veilwood_testing.plans import EPSILON_ONE

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")

SCHEMA = Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
X = np.random.default_rng(0).random((200, 2))
Y = np.where(X[:, 0] > 0.5, "yes", "no")


def forest(**params: Any) -> RandomTreesClassifier:
    return RandomTreesClassifier(SCHEMA, n_estimators=2, max_depth=2, random_state=0, n_jobs=1, **params)


# -- order of events --------------------------------------------------------------------------------------


def test_the_budget_is_refused_before_the_data_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def read(self: Source) -> Any:
        raise AssertionError("the data was read")

    monkeypatch.setattr(Source, "batches", read)
    ledger = MemoryLedger(epsilon=0.5)
    with pytest.raises(BudgetExceededError) as refusal:
        forest(ledger=ledger).fit(X, Y)
    assert "0.5" in str(refusal.value)
    assert ledger.spent == Loss.zero()
    assert ledger.entries() == []


def test_the_charge_stands_before_the_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = MemoryLedger(epsilon=1)
    seen = []
    sound = Source.batches
    monkeypatch.setattr(Source, "batches", lambda self: seen.append(ledger.spent) or sound(self))  # type: ignore[func-returns-value]
    forest(ledger=ledger).fit(X, Y)
    assert seen == [EPSILON_ONE]
    assert [entry.state for entry in ledger.entries()] == ["committed"]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt, SystemExit, ValueError])
def test_an_exception_during_counting_leaves_the_loss_spent(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise error("while counting")

    for name, module in list(sys.modules.items()):
        if name.startswith(("veilwood.forests", "veilwood.trees.counting")) and hasattr(module, "leaf_totals"):
            monkeypatch.setattr(module, "leaf_totals", fail)
    ledger = MemoryLedger(epsilon=1)
    broken = forest(ledger=ledger)
    with pytest.raises(error):
        broken.fit(X, Y)
    assert ledger.spent == EPSILON_ONE
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    assert not hasattr(broken, "privacy_")


def test_refused_input_costs_nothing_if_no_noise_was_drawn(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = ["x0,x1,target", *["0.5,0.5,yes"] * 70_000, "0.5,0.5,maybe"]  # in the second batch
    table.write_text("\n".join(lines))
    ledger = MemoryLedger(epsilon=1)
    with pytest.raises(OutOfSchemaError) as refusal:
        forest(ledger=ledger).fit(str(table))
    assert refusal.value.column == "target"
    assert ledger.spent == Loss.zero()
    assert [entry.state for entry in ledger.entries()] == ["cancelled"]
    table.write_text("\n".join(lines[:-1]))
    forest(ledger=ledger).fit(str(table))
    assert ledger.spent == EPSILON_ONE


def test_death_between_reserve_and_commit_is_spent(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from veilwood import RandomTreesClassifier, Schema
        from veilwood.data.batches import Source
        Source.batches = lambda self: os.kill(os.getpid(), signal.SIGKILL)
        schema = Schema.numeric((0, 1), classes=["no", "yes"], n_features=1)
        RandomTreesClassifier(schema, ledger={str(tmp_path / "spends.db")!r}).fit([[0.5]], ["no"])
    """
    environment = os.environ | {"PYTHONPATH": str(SOURCES["veilwood"].parent)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    ledger = SQLiteLedger(tmp_path / "spends.db")
    assert ledger.spent == EPSILON_ONE
    assert [entry.state for entry in ledger.entries()] == ["reserved"]


def test_every_fit_is_charged_also_that_of_a_clone() -> None:
    ledger = MemoryLedger(epsilon=2)
    one = forest(ledger=ledger)
    one.fit(X, Y)
    clone(one).fit(X, Y)
    with pytest.raises(BudgetExceededError):
        one.fit(X, Y)
    assert ledger.spent.epsilon == 2


# -- what may pass ----------------------------------------------------------------------------------------


# -- what a release says about itself ---------------------------------------------------------------------


def test_the_sum_of_logged_costs_is_the_reported_guarantee(tmp_path: Path) -> None:
    ledger = SQLiteLedger(tmp_path / "spends.db")
    fits = [
        forest(epsilon=0.3, ledger=ledger).fit(X, Y),
        forest(epsilon=0.4, trees="disjoint", ledger=ledger).fit(X, Y),
    ]
    assert float(ledger.spent.epsilon or 0) == pytest.approx(sum(fit.privacy_.epsilon or 0 for fit in fits))
    assert ledger.spent.epsilon == Fraction(7, 10)


def test_without_noise_nothing_is_promised() -> None:
    fitted = forest(epsilon=float("inf")).fit(X, Y)
    assert fitted.leaf_counts_.sum() == 2 * len(X)
    assert not fitted.privacy_.is_private
    assert fitted.privacy_.epsilon is None
    assert "NOT PRIVATE" in repr(fitted)
    ledger = MemoryLedger(epsilon=100)
    with pytest.raises(BudgetExceededError):
        forest(epsilon=float("inf"), ledger=ledger).fit(X, Y)


def test_seeded_noise_promises_nothing() -> None:
    ledger = MemoryLedger()
    with pytest.warns(PrivacyWarning), entropy.seeded_for_tests(0):
        fitted = forest(ledger=ledger).fit(X, Y)
    assert not fitted.privacy_.is_private
    assert "seeded" in str(fitted.privacy_.reason)
    assert "NOT PRIVATE" in str(ledger)


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
@pytest.mark.parametrize("estimator", [RandomTreesClassifier, RandomTreesRegressor])
def test_an_inferred_schema_promises_nothing(estimator: Any) -> None:
    y = Y if estimator is RandomTreesClassifier else X[:, 0]
    fitted = estimator("infer", n_estimators=2, max_depth=2, random_state=0).fit(X, y)
    assert not fitted.privacy_.is_private
    assert "inferred" in fitted.privacy_.reason


# -- one door, by reading the source ----------------------------------------------------------------------

# Modules and packages that may import mechanisms: the strategies that compute variances, the budget and the search that
# plan, the door that draws, the audit that attacks, and the variants whose names say that they are not private. Noise
# in shares is drawn by servers together, with a proof of its own (proofs/secure.md).
MECHANISMS = {"privacy.noise", "privacy.joint_noise", "privacy.selection", "privacy.time_factors"}
MAY_IMPORT_MECHANISMS = {
    "privacy.adaptive_budget", "privacy.joint_noise", "privacy.selection", "privacy.steps", "privacy.door",
    "privacy.time_factors", "forests.matrix.strategies", "forests.adaptive.private_forest",
    "veilwood_audit.attacks", "veilwood_audit.worst_pair",
    "models.checks", "models.measurements", "release_pack.pack", "search", "series",
    "veilwood_audit.noninterference", "veilwood_papers.not_private",
    "veilwood_secure.protocols.hidden_forest", "veilwood_secure.protocols.joint_forest",
    "veilwood_secure.protocols.noise",
    "veilwood_secure.roles.hidden_programs", "veilwood_secure.roles.public_programs",
}  # fmt: skip
SAMPLERS = {"privacy.samplers"}
MAY_IMPORT_SAMPLERS = {
    "privacy.joint_noise", "privacy.noise", "privacy.selection", "veilwood_secure.protocols.noise",
}  # fmt: skip
# Servers and owners of a secure training each charge ledgers of their own (proofs/secure.md). The budgets of the
# service hand a charge of the door to several ledgers, and charge what a restored copy has forgotten
# (proofs/service.md).
MAY_DRAW_OR_CHARGE = {
    "privacy.door",
    "privacy.hash_chain",
    "privacy.ledger",
    "privacy.ledger_stores",
    "veilwood_secure.protocols.noise",  # two servers each draw joint noise of their own and share it
    "veilwood_secure.roles.server",
    "veilwood_secure.roles.sessions",
    "veilwood_secure.roles.owner",
    "veilwood_secure.roles.training",
    "veilwood_service.budgets",
    "privacy.joint_noise",
    "privacy.noise",
    "privacy.selection",
    "privacy.time_factors",
    "cli.doctor",  # tries the samplers, on nothing
}
DRAWING = {"perturb", "select", "sample"}
CHARGING = {"reserve", "commit", "cancel", "settle"}
# A selection through the door; the end of a job, after which the loss that it reserved stays spent; a timer.
OTHER_CALLS = {"self._door.select", "service.jobs.cancel", "self._header_timer.cancel"}


def imports_of(tree: ast.AST) -> set[str]:
    """Names of the library's modules that a module imports: of ``from a.b import c`` both ``a.b`` and ``a.b.c``."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "veilwood":
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "veilwood"}
    return {name.removeprefix("veilwood.") for name in found}


def is_one_of(module: str, allowed: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def ways_around_the_door(module: str, text: str) -> list[str]:
    """What a module other than the door does that only the door may do."""
    tree = ast.parse(text)
    imported = imports_of(tree)
    found = []
    if imported & MECHANISMS and not is_one_of(module, MAY_IMPORT_MECHANISMS):
        found.append("imports mechanisms")
    if imported & SAMPLERS and not is_one_of(module, MAY_IMPORT_SAMPLERS):
        found.append("imports samplers")
    forbidden = CHARGING | (DRAWING if imported & MECHANISMS else {"perturb"})
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in forbidden:
            if ast.unparse(node.func) in OTHER_CALLS:
                continue
            found.append(f"line {node.lineno} calls {node.func.attr}")
    return found


def modules() -> dict[str, str]:
    found = {}
    for name, source in SOURCES.items():
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts if name == "veilwood" else (name, *parts))] = path.read_text()
    return found


def test_only_the_door_draws_noise_and_charges() -> None:
    texts = modules()
    for module in set(texts) - MAY_DRAW_OR_CHARGE:
        assert ways_around_the_door(module, texts[module]) == [], module


@pytest.mark.parametrize(
    "text",
    [
        "from veilwood.privacy.noise import DiscreteLaplace",
        "from veilwood.privacy import samplers",
        "from veilwood.privacy import noise",
        "import veilwood.privacy.noise",
        "def fit(step, exact):\n    return step.mechanism.perturb(exact)",
        "def fit(ledger, loss):\n    ledger.reserve(loss).commit()",
        "def fit(ledger):\n    ledger.settle(1, 'cancelled')",
    ],
)
def test_the_reader_catches_a_way_around_the_door(text: str) -> None:
    assert ways_around_the_door("forests.mutant", text)


def test_every_module_that_the_reader_names_exists() -> None:
    named = MECHANISMS | MAY_IMPORT_MECHANISMS | SAMPLERS | MAY_IMPORT_SAMPLERS | MAY_DRAW_OR_CHARGE
    assert [name for name in named if not any(is_one_of(module, {name}) for module in modules())] == []


def test_the_reader_sees_what_the_door_does() -> None:
    found = " ".join(ways_around_the_door("privacy.door", modules()["privacy.door"]))
    assert all(word in found for word in ("perturb", "reserve", "commit", "cancel"))
