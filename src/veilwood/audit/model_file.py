# SPDX-License-Identifier: Apache-2.0
"""What can be checked of a model file without the data: its hashes, its plan, its noise and what it holds.

What a model claims is recomputed in ``models.checks``, which loading asks too; the audit lists all of it, grows all
trees again, and looks for what should not be there. Attacks that need fits are in ``attacks``.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

import numpy as np

from veilwood.audit import walk
from veilwood.estimators.base import BaseForest
from veilwood.models.checks import Check, check_certificate, check_plan
from veilwood.models.file import load_to_audit
from veilwood.privacy.plan import ALL_TO_EVERY_TREE

__all__ = ["NOT_CHECKABLE", "Check", "check_file", "check_model"]

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
_FORBIDDEN = frozenset(
    ("n", "n_rows", "n_samples", "n_samples_", "rows", "row", "class_counts", "exact_counts", "totals", "noise",
     "seed", "noise_seed", "key", "secret", "assignment", "data", "X", "y", "min", "max", "mean", "std")
)  # fmt: skip
_FEWEST_TREES = 8  # noisy totals of so many trees do not agree by chance


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
    return [whole, *checks, *_contents(model)]


def check_model(model: BaseForest) -> list[Check]:
    """Check what a loaded model claims against what it holds."""
    certificate = check_certificate(model.privacy_, model.plan_, model.schema_)
    return [*certificate, *check_plan(model, grow=True), *_contents(model)]


def _contents(model: BaseForest) -> Iterator[Check]:
    if not model.privacy_.is_private:
        yield Check("Is it private?", False, f"NOT PRIVATE, as it says itself: {model.privacy_.reason}")
    plan = {key: value for key, value in model.plan_.to_dict().items() if key != "parameters"}  # what a user declared
    held = {"schema": model.schema_.to_dict(), "plan": plan, "certificate": model.privacy_.to_dict()}
    arrays = model.model_.arrays()
    names = [str(value) for path, value in walk(held) if path.endswith(f"[{value!r}]")] + list(arrays)
    private = sorted(_FORBIDDEN.intersection(names))
    found = f"entries named {', '.join(private)}" if private else f"{len(names)} names, none of something private"
    yield Check("Does it hold nothing else?", not private, found)
    layout, counts = model.plan_.layout, arrays.get("leaf_counts")
    shared = layout.records == ALL_TO_EVERY_TREE and layout.trees >= _FEWEST_TREES
    if not model.privacy_.is_private or counts is None or counts.dtype != np.int64 or not shared:
        return
    totals = np.add.reduceat(counts.sum(axis=1), model.model_.forest.tree_leaves[:-1])
    yield Check(
        "Do the counts look noisy?", len(set(totals.tolist())) > 1,
        "the trees disagree on how many rows there were, as noisy counts do" if len(set(totals.tolist())) > 1
        else "all trees agree on how many rows there were: these counts are exact",
    )  # fmt: skip
