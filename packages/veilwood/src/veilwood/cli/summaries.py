# SPDX-License-Identifier: Apache-2.0
"""Summaries of plans and evaluations in a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from veilwood.cli.terminal import labelled, terminal_width
from veilwood.data.schema import Schema
from veilwood.evaluation.quality import Quality
from veilwood.forests.expected_skill import describe_skill_scale
from veilwood.privacy.certificate import describe_steps, merge_steps
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.plan import Plan
from veilwood.reporting.steps import noise_of

_MAX_STEPS: Final = 8  # lines; all steps are in the JSON


def describe_plan(plan: Plan, schema: Schema, ledger: Ledger | None = None, expected: Sequence[str] = ()) -> str:
    """Return a summary of a plan: estimator, budget, steps and expected quality."""
    left = ""
    if ledger is not None and ledger.budget is not None:
        left = f" ({ledger.remaining} left in {ledger.name})"
    what = [f"{plan.estimator}, {len(schema.features)} columns of {schema.name} -> {schema.target.name}"]
    rows: list[tuple[str, str | Sequence[str]]] = [
        ("Plan", ", ".join(what + plan.layout.describe())),
        ("Budget", f"{plan.loss}{left}; protects {plan.neighbours}"),
        ("Steps", _step_lines(plan)),
    ]
    if expected:
        rows.append(("Expect", [describe_skill_scale(schema.classes), *expected]))
    if not plan.loss.is_bounded:
        rows.append(("Note", "No bound holds: the result is NOT PRIVATE."))
    elif plan.expected_leaf_mse > 0:
        rows.append(("Noise", f"on one count of a leaf: about {plan.expected_leaf_mse**0.5:.3g} rows"))
    rows += [(key.capitalize(), str(text)) for key, text in plan.notes.items() if key not in plan.expected]
    return labelled(rows)


def _step_lines(plan: Plan) -> list[str]:
    """Return one line per merged step of a plan, with its noise and loss in aligned columns."""
    by_name = {step.name: step for step in plan.steps}
    lines: list[tuple[str, str]] = []
    for group in merge_steps(step.to_dict() for step in plan.steps):
        name, *_, loss = describe_steps(group)[0]
        noise = noise_of(by_name[group[0]["name"]])
        lines.append((f"{name}, noise {noise}", loss))
    if len(lines) > _MAX_STEPS:
        lines[_MAX_STEPS - 1 :] = [(f"and {len(lines) - _MAX_STEPS + 1} more steps, see --json", "")]
    if plan.choices.get("method") == "adaptive":
        whole, spent = plan.loss.epsilon, sum((step.loss.epsilon or Fraction(0)) for step in plan.steps)
        rest = "" if whole is None or whole <= spent else f"epsilon={float(whole - spent):g}"
        lines.append(("then adaptive steps that depend on released values, at most", rest))
    width = max(len(text) for text, _ in lines)
    if width > terminal_width() - 26:
        return [f"{text}, {loss}".rstrip(", ") for text, loss in lines]
    return [f"{text:<{width}}  {loss}".rstrip() for text, loss in lines]


def describe_quality(quality: Quality) -> str:
    """Return the quality of a model in one line, with the most informative measure first."""
    scores = quality.scores
    if "auc" not in scores:
        return ", ".join(f"{name.replace('_', ' ')} {scores[name]}" for name in ("r2", "mae"))
    text = f"AUC {scores['auc']}; accuracy {scores['accuracy']}"
    if (usual := quality.most_frequent) is not None:
        than = "more than" if scores["accuracy"].low > usual[1] else "no better than"
        text += f", {than} always {usual[0]!r} ({usual[1]:.3f})"
    best = quality.best_threshold
    if best is not None and best.sensitivity.value is not None and best.specificity.value is not None:
        text += (
            f"; threshold {best.probability:.0%}: sensitivity {best.sensitivity.value:.0%}, specificity "
            f"{best.specificity.value:.0%}"
        )
    return text
