# SPDX-License-Identifier: Apache-2.0
"""Tries to falsify the library's claims. It can refute a guarantee and never proves one: that is in ``proofs/``."""

from veilwood_audit.noninterference import differences, leaks, walk
from veilwood_audit.statistics import (
    ALPHA,
    Distances,
    epsilon_lower_bound,
    neighbouring_tables,
    one_run_lower_bound,
    worst_distances,
    worst_log_ratio,
)

__all__ = [
    "ALPHA",
    "Distances",
    "differences",
    "epsilon_lower_bound",
    "leaks",
    "neighbouring_tables",
    "one_run_lower_bound",
    "walk",
    "worst_distances",
    "worst_log_ratio",
]
