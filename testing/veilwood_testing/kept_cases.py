# SPDX-License-Identifier: Apache-2.0
"""Shared by data/cluster/test_kept.py and other tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veilwood.engines.cluster.worker import PartSums


class Here:
    """Partitions in this process."""

    def __init__(self, held: list[Any]) -> None:
        self.held, self.closed = held, False

    def moved(self, move: Callable[[Any], Any]) -> Here:
        return Here([move(each) for each in self.held])

    def ask(self, answer: Callable[[Any], PartSums]) -> PartSums:
        return PartSums.total([answer(each) for each in self.held])

    def close(self) -> None:
        self.closed = True
