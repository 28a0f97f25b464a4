# SPDX-License-Identifier: Apache-2.0
"""One-page report on a fitted model: a page that needs no other file, or a model card in Markdown."""

from veilwood.reporting.facts import describe_guarantee
from veilwood.reporting.page import render_report, report
from veilwood.reporting.steps import STEP_PURPOSES, purpose_of

__all__ = ["STEP_PURPOSES", "describe_guarantee", "purpose_of", "render_report", "report"]
