# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by the tests of all packages. Never published."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
"""The clone."""
FILES: Final = Path(__file__).parent
"""Files that tests read: ledgers of version 0.1.0, chosen constants."""
SOURCES: Final = {
    folder.name: folder
    for folder in (*ROOT.glob("packages/*/src/*"), *ROOT.glob("reproductions/src/*"))
    if (folder / "__init__.py").exists()
}
"""The folder of each package by its import name."""
