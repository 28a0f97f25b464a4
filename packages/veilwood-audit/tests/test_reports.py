# SPDX-License-Identifier: Apache-2.0
"""Reports of audits are pages that nothing from outside can write into."""

from __future__ import annotations

import pytest

from veilwood.markdown_page import html_page
from veilwood_testing.commands import NestedTags

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_html_is_escaped() -> None:
    page = html_page("# A\n\n| <script> | b |\n|---|---|\n| `x<y` | **z** |\n\n- one\n- two <b>")
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<code>x&lt;y</code>" in page
    assert NestedTags(page).seen.count("li") == 2
