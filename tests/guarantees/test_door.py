# SPDX-License-Identifier: Apache-2.0
"""Attacks on the door: nothing private passes without a charge that stands before it and stays after a crash."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood
from veilwood import RandomTreesClassifier, RandomTreesRegressor, Schema
from veilwood.data.batches import Source
from veilwood.errors import BudgetExceededError, OutOfSchemaError, PrivacyWarning, VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.door import Door
from veilwood.privacy.ledger import MemoryLedger, SQLiteLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")

SOURCE = Path(veilwood.__file__).parent
ONE = Loss.pure(Fraction(1))
SCHEMA = Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
X = np.random.default_rng(0).random((200, 2))
Y = np.where(X[:, 0] > 0.5, "yes", "no")
EXACT = np.array([3, 0, 7])


def step_of(name: str = "counts", loss: Loss = ONE) -> Step:
    return counting_step(name, (3,), loss, Neighbours(), l1=1, squared_l2=1)


def plan_of(*steps: Step, loss: Loss = ONE) -> Plan:
    return Plan("Test", loss, Neighbours(), steps, "three counts", "test", "0", Layout(leaves=3), 1.0)


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
    assert seen == [ONE]
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
    assert ledger.spent == ONE
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    assert not hasattr(broken, "privacy_")


class RefundingDoor(Door):
    """Mutant: gives the loss back on every exception, as if nothing could have come out."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and self._reservation is not None:
            self._reservation.cancel()
        else:
            super().__exit__(kind, error, trace)


class LateDoor(Door):
    """Mutant: charges only on a regular exit."""

    def __enter__(self) -> Any:
        self._reservation = object()  # type: ignore[assignment]
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            super().__enter__()
            super().__exit__(kind, error, trace)


def spent_by_a_release_that_fails_late(door_class: type[Door]) -> Loss:
    """Noisy numbers come out, and then something fails: what does the ledger say?"""
    ledger, step = MemoryLedger(), step_of()
    seen = []

    def release_and_fail() -> None:
        with door_class(plan_of(step), ledger) as door:
            seen.append(door.noisy(step, EXACT))
            raise RuntimeError("after the release")

    with pytest.raises(RuntimeError):
        release_and_fail()
    assert len(seen) == 1
    return ledger.spent


def test_a_ledger_not_charged_on_an_exception_path_is_caught() -> None:
    assert spent_by_a_release_that_fails_late(Door) == ONE
    assert spent_by_a_release_that_fails_late(RefundingDoor) == Loss.zero()
    assert spent_by_a_release_that_fails_late(LateDoor) == Loss.zero()


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
    assert ledger.spent == ONE


def test_input_refused_after_the_first_noise_is_spent() -> None:
    ledger, step = MemoryLedger(), step_of()

    def second_pass_is_refused() -> None:
        with Door(plan_of(step), ledger) as door:
            door.noisy(step, EXACT)
            raise OutOfSchemaError("a later pass found something")

    with pytest.raises(OutOfSchemaError):
        second_pass_is_refused()
    assert ledger.spent == ONE


def test_death_between_reserve_and_commit_is_spent(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from veilwood import RandomTreesClassifier, Schema
        from veilwood.data.batches import Source
        Source.batches = lambda self: os.kill(os.getpid(), signal.SIGKILL)
        schema = Schema.numeric((0, 1), classes=["no", "yes"], n_features=1)
        RandomTreesClassifier(schema, ledger={str(tmp_path / "spends.db")!r}).fit([[0.5]], ["no"])
    """
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    ledger = SQLiteLedger(tmp_path / "spends.db")
    assert ledger.spent == ONE
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


def test_a_step_passes_once_inside_the_context_with_its_shape() -> None:
    step, other = step_of("counts", Loss.pure(Fraction(1, 2))), step_of("more", Loss.pure(Fraction(1, 2)))
    door = Door(plan_of(step), MemoryLedger())
    with pytest.raises(VeilwoodError, match="closed"):
        door.noisy(step, EXACT)
    with door:
        with pytest.raises(VeilwoodError, match="not in the plan"):
            door.noisy(other, EXACT)
        with pytest.raises(VeilwoodError, match="not in the plan"):
            door.noisy(replace(step, loss=ONE, mechanism=DiscreteLaplace(1)), EXACT)
        with pytest.raises(VeilwoodError, match="shape"):
            door.noisy(step, EXACT[:2])
        assert door.noisy(step, EXACT).dtype == np.int64
        with pytest.raises(VeilwoodError, match="passed already"):
            door.noisy(step, EXACT)
    with pytest.raises(VeilwoodError, match="closed"):
        door.noisy(step, EXACT)


def test_a_refined_plan_keeps_what_passed_and_what_was_promised() -> None:
    half = Loss.pure(Fraction(1, 2))
    first, later, other = step_of("first", half), step_of("later", half), step_of("other", half)
    door = Door(plan_of(first), MemoryLedger())
    with pytest.raises(VeilwoodError, match="open door"):
        door.refine(plan_of(first, later))
    with door:
        door.noisy(first, EXACT)
        for lost in (plan_of(later), plan_of(later, other)):
            with pytest.raises(VeilwoodError, match="every step that has passed"):
                door.refine(lost)
        cheaper = step_of("first", Loss.pure(Fraction(1, 4)))  # of the same name: what passed cost more
        with pytest.raises(VeilwoodError, match="every step that has passed"):
            door.refine(plan_of(cheaper, later))
        for changed in (plan_of(first, later, loss=Loss.pure(Fraction(2))), plan_of(first, loss=half)):
            with pytest.raises(VeilwoodError, match="must promise"):
                door.refine(changed)
        with pytest.raises(VeilwoodError, match="must promise"):
            door.refine(replace(plan_of(first), neighbours=Neighbours("replace-one")))
        with pytest.raises(VeilwoodError):
            plan_of(first, later, other)  # a plan that costs more cannot be made
        assert door.plan == plan_of(first)
        door.refine(plan_of(first, later))
        with pytest.raises(VeilwoodError, match="passed already"):
            door.noisy(first, EXACT)
        door.noisy(later, EXACT)
    with pytest.raises(VeilwoodError, match="open door"):
        door.refine(plan_of(first, later))
    assert door.statement().epsilon == 1
    assert len(door.statement().composition) == 2


class ForgetfulDoor(Door):
    """Mutant: takes any plan of the same loss, as if nothing had passed."""

    def refine(self, plan: Plan) -> None:
        self.plan = plan


def test_a_door_that_forgets_passed_steps_overspends() -> None:
    def spent(kind: type[Door]) -> Fraction:
        first, second = step_of("first"), step_of("second")
        passed = []
        with kind(plan_of(first), MemoryLedger()) as door:
            for step in (first, second):
                try:
                    door.refine(plan_of(step))
                except VeilwoodError:
                    continue
                door.noisy(step, EXACT)
                passed.append(step.loss)
        total = sum(passed, Loss.zero()).epsilon
        assert total is not None
        return total

    assert spent(Door) == 1
    assert spent(ForgetfulDoor) == 2


def test_a_door_opens_once() -> None:
    step = step_of()
    door = Door(plan_of(step), MemoryLedger())
    with door:
        door.noisy(step, EXACT)
    with door, pytest.raises(VeilwoodError, match="closed"):
        door.noisy(step, EXACT)


def test_floats_do_not_pass() -> None:
    step = step_of()
    with Door(plan_of(step), MemoryLedger()) as door, pytest.raises(VeilwoodError, match="integers"):
        door.noisy(step, EXACT.astype(float))


def test_steps_cannot_cost_more_than_the_plan() -> None:
    half = Loss.pure(Fraction(1, 2))
    assert len(plan_of(step_of("a", half), step_of("b", half)).steps) == 2
    with pytest.raises(VeilwoodError, match="promises"):
        plan_of(step_of("a"), step_of("b", half))
    gaussian = Loss.zcdp(Fraction(1, 10), Fraction(1, 10**6))
    with pytest.raises(VeilwoodError, match="promises"):
        plan_of(step_of("a", gaussian), step_of("b", gaussian), loss=gaussian)
    with pytest.raises(VeilwoodError, match="promises"):
        plan_of(step_of("a", gaussian))  # a pure plan with a Gaussian step


@pytest.mark.parametrize(
    ("loss", "mechanism"),
    [
        (ONE, None),
        (ONE, DiscreteLaplace(Fraction(99, 100))),
        (ONE, DiscreteGaussian(Fraction(99, 100))),
        (Loss.zcdp(Fraction(1, 8), Fraction(1, 10**6)), DiscreteGaussian(3)),
        (Loss(Fraction(1), Fraction(1, 10)), DiscreteGaussian(100)),  # no rho was promised
    ],
    ids=["no noise", "Laplace", "Gaussian under pure epsilon", "Gaussian", "Gaussian without rho"],
)
def test_a_step_whose_noise_does_not_keep_its_loss_cannot_be_made(loss: Loss, mechanism: Any) -> None:
    with pytest.raises(VeilwoodError, match="does not keep"):
        Step("counts", loss, mechanism, 1, (3,))


# -- what a release says about itself ---------------------------------------------------------------------


def test_the_statement_is_built_from_the_ledger() -> None:
    ledger, step = MemoryLedger(), step_of()
    door = Door(plan_of(step), ledger)
    with door:
        with pytest.raises(VeilwoodError, match="finished"):
            door.statement()
        door.noisy(step, EXACT)
    statement = door.statement()
    (entry,) = ledger.entries()
    assert statement.is_private
    assert statement.epsilon == float(entry.loss.epsilon or 0) == 1
    assert statement.ledger_entry == entry.id
    assert statement.plan_hash == entry.plan == door.plan.fingerprint()
    assert statement.adjacency == "add-remove"
    assert Assumption.IN_MEMORY.value in statement.assumptions


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
def test_seeding_cannot_be_slipped_in_after_the_charge() -> None:
    step = step_of()
    slipped_in, refused = entropy.seeded_for_tests(0), pytest.raises(VeilwoodError, match="seeded")
    with Door(plan_of(step), MemoryLedger()) as door, slipped_in, refused:
        door.noisy(step, EXACT)


@pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning")
@pytest.mark.parametrize("estimator", [RandomTreesClassifier, RandomTreesRegressor])
def test_an_inferred_schema_promises_nothing(estimator: Any) -> None:
    y = Y if estimator is RandomTreesClassifier else X[:, 0]
    fitted = estimator("infer", n_estimators=2, max_depth=2, random_state=0).fit(X, y)
    assert not fitted.privacy_.is_private
    assert "inferred" in fitted.privacy_.reason


# -- one door, by reading the source ----------------------------------------------------------------------

# Who may know the mechanisms, by module or package: the strategies that compute variances, the plan that chooses,
# the door that draws, the audit that attacks, and the variants whose names say that they are not private. Noise in
# shares is drawn by servers together, with a proof of its own (proofs/secure.md).
MECHANISMS = {"privacy.noise", "privacy.selection"}
MAY_IMPORT_MECHANISMS = {
    "privacy.sparse_noise", "privacy.selection", "privacy.steps", "privacy.door",
    "forests.matrix.strategies", "audit.attacks", "audit.model_file", "audit.noninterference",
    "audit.replay", "not_private",
    "secure.protocols.plans", "secure.protocols.joint_forest", "secure.roles.hidden_programs",
    "secure.roles.paper_programs",
}  # fmt: skip
SAMPLERS = {"privacy.samplers"}
MAY_IMPORT_SAMPLERS = {"privacy.noise", "privacy.selection", "privacy.sparse_noise", "secure.protocols.noise"}
# Servers and owners of a secure training each charge ledgers of their own (proofs/secure.md). The budgets of the
# service hand a charge of the door to several ledgers, and charge what a restored copy has forgotten
# (proofs/service.md).
MAY_DRAW_OR_CHARGE = {
    "privacy.door",
    "privacy.ledger",
    "secure.roles.answers",
    "secure.roles.books",
    "secure.roles.client",
    "secure.roles.training",
    "service.spends",
    "service.reconciling",
    "privacy.noise",
    "privacy.selection",
    "privacy.sparse_noise",
    "privacy.standing_out",
    "cli.doctor",  # tries the samplers, on nothing
}
DRAWING = {"perturb", "select", "sample"}
CHARGING = {"reserve", "commit", "cancel"}


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
            found.append(f"line {node.lineno} calls {node.func.attr}")
    return found


def modules() -> dict[str, str]:
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text() for path in SOURCE.rglob("*.py")}


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
