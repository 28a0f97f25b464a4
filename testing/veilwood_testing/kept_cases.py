# SPDX-License-Identifier: Apache-2.0
"""Shared by data/cluster/test_kept.py and other tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veilwood.engines.cluster.worker import PartialSums


class Here:
    """Partitions in this process."""

    def __init__(self, held: list[Any]) -> None:
        self.held, self.closed = held, False

    def update(self, function: Callable[[Any], Any]) -> Here:
        return Here([function(each) for each in self.held])

    def aggregate(self, query: Callable[[Any], PartialSums]) -> PartialSums:
        return PartialSums.total([query(each) for each in self.held])

    def close(self) -> None:
        self.closed = True
