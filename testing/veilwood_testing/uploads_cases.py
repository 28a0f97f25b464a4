# SPDX-License-Identifier: Apache-2.0
"""Shared by secure/roles/test_uploads.py and other tests."""

from __future__ import annotations

from veilwood_testing.places import Place


def entries(here: Place) -> list[list[str]]:
    return [[str(entry.state) for entry in server._ledger.entries()] for server in here.servers]
