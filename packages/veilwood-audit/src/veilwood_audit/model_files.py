# SPDX-License-Identifier: Apache-2.0
"""Reports for people: Markdown written by hand here, and a page of HTML made from it; nothing is measured here."""

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

__all__ = [
    "NOT_CHECKABLE",
    "Check",
    "attack_report",
    "attack_table",
    "check_file",
    "check_model",
    "model_report",
    "peer_report",
    "replay_table",
    "write_report",
]


NOT_CHECKABLE = (
    "that the numbers inside are noisy by the stated law, and that its random bits were secret: any numbers look like "
    "some noise",
    "that the schema was public and not read off the data",
    "that one unit of the data is what the certificate calls it (a person with two rows has two units)",
    "that earlier spends on the same data are in a ledger: ask for the ledger and run veilwood ledger verify",
    "who made the file: its check sum is not a signature",
)
"""What no one can tell from a file."""

# Keys under which a file could hold what must stay private.
_FORBIDDEN_KEYS = frozenset(
    ("n", "n_rows", "n_samples", "n_samples_", "rows", "row", "class_counts", "exact_counts", "totals", "noise",
     "seed", "noise_seed", "key", "secret", "assignment", "data", "X", "y", "min", "max", "mean", "std")
)  # fmt: skip
_MIN_TREES = 8  # noisy totals of so many trees do not agree by chance


def check_file(path: str | PathLike[str]) -> list[Check]:
    """Load a model file and check what it claims.

    Raises
    ------
    ModelFileError
        If the file is not a model, or is damaged.

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
    whole = Check("Is the file whole?", True, "its check sum matches all of its contents")
    return [whole, *checks, *_check_contents(model)]


def check_model(model: BaseForest) -> list[Check]:
    """Check what a loaded model claims against what it holds."""
    certificate = check_certificate(model.privacy_, model.plan_, model.schema_)
    return [*certificate, *check_plan(model, grow=True), *_check_contents(model)]


def _check_contents(model: BaseForest) -> Iterator[Check]:
    if not model.privacy_.is_private:
        yield Check("Is it private?", False, f"NOT PRIVATE, as it says itself: {model.privacy_.reason}")
    plan = {key: value for key, value in model.plan_.to_dict().items() if key != "parameters"}  # what a user declared
    held = {"schema": model.schema_.to_dict(), "plan": plan, "certificate": model.privacy_.to_dict()}
    arrays = model.model_.to_arrays()
    names = [str(value) for path, value in walk_values(held) if path.endswith(f"[{value!r}]")] + list(arrays)
    private = sorted(_FORBIDDEN_KEYS.intersection(names))
    found = f"entries named {', '.join(private)}" if private else f"{len(names)} names, none of something private"
    yield Check("Does it hold nothing else?", not private, found)
    layout, counts = model.plan_.layout, arrays.get("leaf_counts")
    shared = layout.records == ALL_TO_EVERY_TREE and layout.trees >= _MIN_TREES
    if not model.privacy_.is_private or counts is None or counts.dtype != np.int64 or not shared:
        return
    totals = np.add.reduceat(counts.sum(axis=1), model.model_.forest.tree_leaves[:-1])
    yield Check(
        "Do the counts look noisy?", len(set(totals.tolist())) > 1,
        "the trees disagree on how many rows there were, as noisy counts do" if len(set(totals.tolist())) > 1
        else "all trees agree on how many rows there were: these counts are exact",
    )  # fmt: skip


_LIMITS_TEXT = """\
An attack can refute a claim and never proves one: the proofs are in `proofs/`. The bound is a lower one: the true loss
is at least that large, with the stated confidence. It stays below the claim when the claim is true, and a little below
even when it is tight, as the number of canaries is finite. The twin is the same estimator with half the noise it
needs: an attack that does not refute the twin is too weak to say anything about the original.
"""


def attack_table(attacks: Sequence[Attack]) -> str:
    """Return the table of claimed against attacked epsilon."""
    lines = [
        "| estimator | setting | claimed epsilon | shown by attack | broken twin | guesses right | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for found in attacks:
        claim = f"{found.epsilon:g}" + (f" (delta {found.delta:g})" if found.delta else "")
        lines.append(
            f"| {found.estimator} | {found.setting} | {claim} | {found.sound.epsilon_lower_bound:.2f} | "
            f"{found.twin.epsilon_lower_bound:.2f} | {found.sound.correct:,} of {found.sound.guesses:,} | "
            f"{describe_verdict(found)} |"
        )
    return "\n".join(lines)


def replay_table(attacks: Sequence[tuple[str, float, ReplayResult, ReplayResult]]) -> str:
    """Return the table of replayed fits: what was attacked, the claim, and what was found of it and of its twin."""
    lines = [
        "| what was attacked | claimed epsilon | shown by attack | twin, half the noise | guesses right | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, claim, sound, twin in attacks:
        word = "REFUTED" if sound.epsilon_lower_bound > claim else "holds"
        word += "; twin caught" if twin.epsilon_lower_bound > claim else "; attack too weak to catch the twin"
        lines.append(
            f"| {name} | {claim:g} | {sound.epsilon_lower_bound:.2f} | {twin.epsilon_lower_bound:.2f} | "
            f"{sound.correct:,} of {sound.guesses:,} | {word} |"
        )
    return "\n".join(lines)


def describe_verdict(found: Attack) -> str:
    """Return one word or two on an attack."""
    if found.refuted:
        return "REFUTED"
    return "holds; twin caught" if found.has_power else "holds; attack too weak to catch the twin"


def attack_report(attacks: Sequence[Attack], picture: str | None = None) -> str:
    """Return the report of audited estimators."""
    confidence = attacks[0].confidence
    parts = [
        "# Audit of estimators",
        "Each estimator was fitted once on canaries: records made up for the purpose, each included by a fair coin. "
        "From what was released alone it was guessed which were included.",
        attack_table(attacks),
        f"Each bound holds with probability {100 * confidence:.7f} %.",
        *([f"![claimed and attacked epsilon]({picture})"] if picture else []),
        "## What this can and cannot show",
        _LIMITS_TEXT,
    ]
    return "\n\n".join(parts).rstrip() + "\n"


def model_report(path: str, checks: Sequence[Check]) -> str:
    """Return the report of a checked model file."""
    good = all(check.holds for check in checks)
    rows = [f"| {'yes' if check.holds else 'NO'} | {check.question} | {check.found} |" for check in checks]
    parts = [
        f"# Audit of {path}",
        f"**{'Nothing contradicts its claims' if good else 'NOT everything holds'}**: "
        f"{sum(check.holds for check in checks)} of {len(checks)} checks hold.",
        "\n".join(["| | question | found |", "|---|---|---|", *rows]),
        "## What cannot be checked from a file",
        "\n".join(f"- {item}" for item in NOT_CHECKABLE),
    ]
    return "\n\n".join(parts) + "\n"


def peer_report(found: PeerAttack) -> str:
    """Return the report of an attack on another library."""
    seed = (
        "Its trees keep the seeds of their noise: fitted again with what is in the model, they come out the same, so "
        "whoever holds the model can tell any guessed table from the true one."
        if found.seed_in_model
        else "No seed of its noise was found in the model."
    )
    parts = [
        f"# Audit of {found.peer} {found.version}, {found.estimator}",
        f"Claimed epsilon {found.epsilon:g}; shown by attack: at least **{found.epsilon_lower_bound:.2f}** "
        f"(with probability {100 * found.confidence:.7f} %). Verdict: {'REFUTED' if found.refuted else 'not refuted'}.",
        f"One row appended to eighteen moves every boundary between the parts given to its trees. The event that shows "
        f"it happened in {found.hits_likely} of {found.runs} fits with the row and {found.hits_unlikely} of "
        f"{found.runs} without.",
        seed,
    ]
    return "\n\n".join(parts) + "\n"


def write_report(folder: Path, name: str, markdown: str) -> list[Path]:
    """Write a report as Markdown and as a page of HTML, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    text, page = folder / f"{name}.md", folder / f"{name}.html"
    text.write_text(markdown, encoding="utf-8")
    page.write_text(html_page(markdown), encoding="utf-8")
    return [text, page]
