# SPDX-License-Identifier: Apache-2.0
"""What a report says in words, without numbers of its own: the guarantee, and what was measured and why."""

from __future__ import annotations

import math
from typing import Any

from veilwood.privacy.certificate import PrivacyStatement

__all__ = ["WHY", "afterwards", "guarantee", "why_of"]

_LARGEST = 30.0

WHY = (
    ("strengths of columns", "How much the best column tells, and the mean one: whether one is enough, or all help."),
    ("histogram of column", "How the values of a column are spread: where groups of them begin and end."),
    ("rows by group", "How the values of columns are spread: where groups of them begin and end."),
    ("histogram", "How the target, or what is left of it, is spread: where it lies, and what is far from it."),
    ("weight of tables", "How much all tables should count together: less where columns say the same."),
    ("weight of fine cells", "How much small cells of several columns should count beside the rest."),
    ("round", "What to correct next, and by how much. Each round improves what the rounds before it predict."),
    ("rows", "How many rows there are, about. It decides how fine the rest can be."),
    ("column", "Which columns tell most about the target, so that the rest of the budget goes to them."),
    ("classes by cell", "How many rows of each class have each value, or group of values, of a column."),
    ("cells", "How many rows of each class lie in small cells of several columns together."),
    ("class counts", "How many rows of each class lie in each part of the data. Predictions are their shares."),
    ("target sums", "Sum and number of the targets in each part of the data. Predictions are their means."),
    ("split", "Where to cut a column so that the classes come apart."),
    ("median", "The middle value of a column, to cut there."),
    ("attribute", "Which column to cut next."),
    ("ensemble", "Tables of counts, chosen so that all leaves can be read off them with little noise."),
    ("calibrat", "Whether predicted probabilities happen as often as they say, to correct them."),
)
"""What a step is for, by a word of its name; the first that fits."""


def why_of(name: str) -> str:
    """Say what a step of a plan is measured for.

    >>> why_of("class counts of leaves").split(".")[0]
    'How many rows of each class lie in each part of the data'
    """
    return next((why for word, why in WHY if word in name), "A part of what the model is computed from.")


def afterwards(before: float, epsilon: float, delta: float = 0.0) -> tuple[float, float]:
    """Return the least and the most that a belief can become, whatever else somebody knows, up to delta.

    >>> tuple(round(share, 3) for share in afterwards(0.5, 1.0))
    (0.269, 0.731)
    """
    factor = math.exp(min(epsilon, _LARGEST))
    return before / (before + (1 - before) * factor), min(1.0, before * factor / (1 - before + before * factor) + delta)


def guarantee(statement: PrivacyStatement) -> list[str]:
    """Say what the certificate promises to one unit."""
    if not statement.is_private or statement.epsilon is None:
        return [f"There is no guarantee: {statement.reason}. Do not publish this model as private."]
    unit = statement.unit
    other = "had been left out" if statement.adjacency == "add-remove" else "had been replaced by any other"
    factor = math.exp(min(statement.epsilon, _LARGEST))
    told = [
        f"Whatever anybody concludes from this model about {unit} of the data, they would have concluded nearly as "
        f"surely if it {other}: no conclusion becomes more than {factor:,.3g} times as likely.",
        "That holds for any method of attack, whatever else is known, and for ever: it follows from noise that was "
        "added while training, and nothing done with the model later can undo it.",
        "What the model says about people in general is not hidden. If it shows that smoking goes with illness, it "
        "says so of a smoker too, whether or not that smoker was in the data.",
    ]
    if statement.delta:
        told.insert(1, f"With a probability of at most {statement.delta:g} the bound may fail.")
    if statement.epsilon > 8:
        told.append(f"An epsilon of {statement.epsilon:g} is a weak promise; below 2 is usual.")
    return told


def facts(model: Any) -> list[tuple[str, str]]:
    """Name the model, in a few lines."""
    schema, statement = model.schema_, model.privacy_
    return [
        ("Model", type(model).__name__),
        ("Predicts", f"{schema.target.name} ({model.task})"),
        ("From", f"{len(schema.features)} columns of schema {schema.name!r}"),
        ("Protects", f"{statement.unit}, {statement.adjacency}"),
    ]
