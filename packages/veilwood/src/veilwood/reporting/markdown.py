# SPDX-License-Identifier: Apache-2.0
"""Model card in Markdown, with the YAML block that model hubs read. Release packs contain a longer model card."""

from __future__ import annotations

import json
import math

from veilwood.reporting.facts import ReportFacts, describe_guarantee
from veilwood.reporting.quality import verdict


def render_markdown(facts: ReportFacts) -> str:
    """Return the model card as Markdown."""
    model, certificate, schema = facts.model, facts.model.privacy_, facts.model.schema_
    task = f"tabular-{model._task}"
    block = [
        "library_name: veilwood",
        f"license: {json.dumps(facts.card.get('License', 'other'))}",
        f"pipeline_tag: {task}",
        f"tags: [veilwood, differential-privacy, {task}]",
    ]
    lines = ["---", *block, "---", "", f"# {_plain(facts.title)}", "", verdict(facts.evaluation, schema.classes), ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {label} | {number} ({text}) |" for label, number, text in facts.key_numbers()]
    lines += [f"| {label} | {_plain(text)} |" for label, text in facts.head_facts()]
    lines += [f"| {label} | {_plain(text)} |" for label, text in facts.card.items() if label != "Title"]
    lines += ["", "## Guarantee", ""]
    for sentence in describe_guarantee(certificate):
        lines += [_plain(sentence), ""]
    lines += ["## Quality", "", *_quality_lines(facts), "", "## What was assumed public", ""]
    lines += ["| column | kind | bounds or categories | source |", "|---|---|---|---|"]
    lines += [
        f"| {_plain(column.name)} | {column.kind} | {_plain(column.describe())} | {_plain(column.known_from or '-')} |"
        for column in (*schema.features, schema.target)
    ]
    lines += ["", "## Use", "", "```python", "import veilwood as vw", ""]
    lines += ['model = vw.load("model.veilwood")', 'model.predict("new-rows.csv")', "```", ""]
    return "\n".join(lines)


def _quality_lines(facts: ReportFacts) -> list[str]:
    if facts.evaluation is None:
        return ["Not measured on private rows."]
    quality = facts.evaluation.quality
    lines = [f"Measured with noise, epsilon = {facts.evaluation.privacy.epsilon}.", "", "| measure | estimate |"]
    lines += ["|---|---|"]
    lines += [
        f"| {name.replace('_', ' ')} | {each} |"
        for name, each in quality.scores.items()
        if each.value is not None and math.isfinite(each.value)
    ]
    return lines


def _plain(text: str) -> str:
    """Return the text on one line, with Markdown characters escaped."""
    line = " ".join(str(text).split())
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in line)
