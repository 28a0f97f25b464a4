# SPDX-License-Identifier: Apache-2.0
"""A model on one page, for people who would rather look. Everything on it is public; nothing is measured here."""

from veilwood.report.page import page_of, report

__all__ = ["page_of", "report"]
