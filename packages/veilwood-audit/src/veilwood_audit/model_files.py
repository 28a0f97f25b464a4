# SPDX-License-Identifier: Apache-2.0
"""Checks of model files, and audit reports in Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from veilwood.estimators.base import BaseForest
from veilwood.markdown_page import html_page
from veilwood.models.checks import Check, check_certificate, check_plan
from veilwood.models.file import load_to_audit
from veilwood.privacy.plan import ALL_TO_EVERY_TREE
from veilwood_audit.attacks import Attack, ReplayResult
from veilwood_audit.noninterference import walk_values
from veilwood_audit.peers import PeerAttack

NOT_CHECKABLE = (
    "that the noise was drawn from the stated distribution with secret random bits: any numbers are possible as noise",
    "that the schema was public and was not read from the data",
    "that one unit of the data is what the certificate names (a person with two rows has two units)",
    "that earlier releases from the same data are in a ledger: ask for the ledger and run veilwood ledger verify",
    "who created the file: its checksum is not a signature",
)
"""Facts that cannot be checked from a file."""

# Names that would indicate private values in a file.
_FORBIDDEN_KEYS = frozenset(
    ("n", "n_rows", "n_samples", "n_samples_", "rows", "row", "class_counts", "exact_counts", "totals", "noise",
     "seed", "noise_seed", "key", "secret", "assignment", "data", "X", "y", "min", "max", "mean", "std")
)  # fmt: skip
_MIN_TREES = 8  # the noisy totals of this many trees almost never agree


def check_file(path: str | PathLike[str]) -> list[Check]:
    """Load a model file and check its claims against its contents.

    Parameters
    ----------
    path : path-like
        Model file.

    Returns
    -------
    list of Check
        One check per claim, whether it holds or not.

    Raises
    ------
    ModelFileError
        If the file is not a model file, or is damaged.

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, n_estimators=5, max_depth=3, random_state=0).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vw.save(forest, f"{folder}/car.veilwood")
    ...     all(check.holds for check in check_file(f"{folder}/car.veilwood"))
    True
    """
    model, checks = load_to_audit(path)
    integrity = Check("Is the file intact?", True, "its checksum matches its contents")
    return [integrity, *checks, *_check_contents(model)]


def check_model(model: BaseForest) -> list[Check]:
    """Check the claims of a loaded model against its contents."""
    certificate = check_certificate(model.privacy_, model.plan_, model.schema_)
    return [*certificate, *check_plan(model, grow=True), *_check_contents(model)]


def _check_contents(model: BaseForest) -> Iterator[Check]:
    if not model.privacy_.is_private:
        yield Check("Is it private?", False, f"the certificate states NOT PRIVATE: {model.privacy_.reason}")
    # The user declared the parameters, so they may have any name.
    plan = {key: value for key, value in model.plan_.to_dict().items() if key != "parameters"}
    contents = {"schema": model.schema_.to_dict(), "plan": plan, "certificate": model.privacy_.to_dict()}
    arrays = model.model_.to_arrays()
    names = [str(value) for path, value in walk_values(contents) if path.endswith(f"[{value!r}]")] + list(arrays)
    private = sorted(_FORBIDDEN_KEYS.intersection(names))
    result = f"entries named {', '.join(private)}" if private else f"{len(names)} names, none of a private value"
    yield Check("Does it contain nothing else?", not private, result)
    layout, counts = model.plan_.layout, arrays.get("leaf_counts")
    shared = layout.records == ALL_TO_EVERY_TREE and layout.trees >= _MIN_TREES
    if not model.privacy_.is_private or counts is None or counts.dtype != np.int64 or not shared:
        return
    totals = np.add.reduceat(counts.sum(axis=1), model.model_.forest.tree_leaves[:-1])
    yield Check(
        "Do the counts look noisy?", len(set(totals.tolist())) > 1,
        "the trees disagree on the number of rows, as noisy counts do" if len(set(totals.tolist())) > 1
        else "all trees agree on the number of rows: these counts are exact",
    )  # fmt: skip


_LIMITS_TEXT = """\
An attack can refute a claim and never proves one: the proofs are in `proofs/`. The bound is a lower bound: the true
loss is at least that large, with the stated confidence. If the claim is true, the bound stays below it, and slightly
below even if the claim is tight, because the number of canaries is finite. The control is the same estimator with half
the noise that it needs. An attack that does not refute the control is too weak to say anything about the estimator.
"""


def attack_table(attacks: Sequence[Attack]) -> str:
    """Return a Markdown table of claimed epsilons and their lower bounds."""
    lines = [
        "| estimator | setting | claimed epsilon | lower bound | by trade-off | control, half the noise "
        "| guesses right | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for attack in attacks:
        claim = f"{attack.epsilon:g}" + (f" (delta {attack.delta:g})" if attack.delta else "")
        lines.append(
            f"| {attack.estimator} | {attack.setting} | {claim} | {attack.audited.epsilon_lower_bound:.2f} | "
            f"{attack.audited.tradeoff_lower_bound:.2f} | {attack.control.epsilon_lower_bound:.2f} | "
            f"{attack.audited.correct:,} of {attack.audited.guesses:,} | "
            f"{describe_verdict(attack)} |"
        )
    return "\n".join(lines)


def replay_table(attacks: Sequence[tuple[str, float, ReplayResult, ReplayResult]]) -> str:
    """Return a Markdown table of replayed fits: target, claim, and the lower bounds of target and control."""
    lines = [
        "| target | claimed epsilon | lower bound | control, half the noise | guesses right | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, claim, audited, control in attacks:
        verdict = "REFUTED" if audited.epsilon_lower_bound > claim else "holds"
        verdict += "; control caught" if control.epsilon_lower_bound > claim else f"; {_TOO_WEAK}"
        lines.append(
            f"| {name} | {claim:g} | {audited.epsilon_lower_bound:.2f} | {control.epsilon_lower_bound:.2f} | "
            f"{audited.correct:,} of {audited.guesses:,} | {verdict} |"
        )
    return "\n".join(lines)


_TOO_WEAK = "attack too weak to catch the control"


def describe_verdict(attack: Attack) -> str:
    """Return the verdict of an attack in a few words."""
    if attack.refuted:
        return "REFUTED"
    return "holds; control caught" if attack.has_power else f"holds; {_TOO_WEAK}"


def attack_report(attacks: Sequence[Attack], picture: str | None = None) -> str:
    """Return the report on audited estimators, in Markdown."""
    confidence = attacks[0].confidence
    parts = [
        "# Audit of estimators",
        "Each estimator was fitted once on canaries: synthetic rows, each included with probability 1/2. The attack "
        "guessed from the release alone which were included.",
        attack_table(attacks),
        f"Each bound holds with probability {100 * confidence:.7f} %.",
        *([f"![claimed and attacked epsilon]({picture})"] if picture else []),
        "## What this can and cannot show",
        _LIMITS_TEXT,
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def model_report(path: str, checks: Sequence[Check]) -> str:
    """Return the report on a checked model file, in Markdown."""
    all_hold = all(check.holds for check in checks)
    rows = [f"| {'yes' if check.holds else 'NO'} | {check.question} | {check.found} |" for check in checks]
    parts = [
        f"# Audit of {path}",
        f"**{'No check contradicts its claims' if all_hold else 'NOT all checks hold'}**: "
        f"{sum(check.holds for check in checks)} of {len(checks)} checks hold.",
        "\n".join(["| | question | result |", "|---|---|---|", *rows]),
        "## What cannot be checked from a file",
        "\n".join(f"- {item}" for item in NOT_CHECKABLE),
    ]
    return "\n\n".join(parts) + "\n"


def peer_report(attack: PeerAttack) -> str:
    """Return the report on an attack on another library, in Markdown."""
    seed = (
        "Its trees contain the seeds of their noise: trees that are fitted again from the model are identical. So the "
        "holder of a model can distinguish the true table from any other."
        if attack.seed_in_model
        else "No seed of its noise was found in the model."
    )
    verdict = "REFUTED" if attack.refuted else "not refuted"
    parts = [
        f"# Audit of {attack.peer} {attack.version}, {attack.estimator}",
        f"Claimed epsilon {attack.epsilon:g}; lower bound: **{attack.epsilon_lower_bound:.2f}** "
        f"(with probability {100 * attack.confidence:.7f} %). Verdict: {verdict}.",
        f"One row appended to eighteen moves every boundary between the rows of two trees. The event that reveals "
        f"this happened in {attack.hits_likely} of {attack.runs} fits with the row and in {attack.hits_unlikely} of "
        f"{attack.runs} without it.",
        seed,
    ]
    return "\n\n".join(parts) + "\n"


def write_report(folder: Path, name: str, markdown: str) -> list[Path]:
    """Write a report as Markdown and as HTML, and return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    markdown_path, html_path = folder / f"{name}.md", folder / f"{name}.html"
    markdown_path.write_text(markdown, encoding="utf-8")
    html_path.write_text(html_page(markdown), encoding="utf-8")
    return [markdown_path, html_path]
