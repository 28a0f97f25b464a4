# SPDX-License-Identifier: Apache-2.0
"""Shared by service/test_access.py and other tests."""

from __future__ import annotations

from typing import Any

from veilwood_testing.serving import Running


def upload(running: Running, content: bytes, kind: str, **headers: str) -> Any:
    told = {"Content-Type": kind, **headers}
    return running.ask("custodian", "PUT", "/v1/datasets/cars/table", content=content, headers=told)
