# SPDX-License-Identifier: Apache-2.0
"""The demonstration of secure training."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.slow


def test_the_demo_runs_in_less_than_a_minute_of_two_cores() -> None:
    from rich.console import Console

    from veilwood_secure.roles.local import run_demo

    before = sum(os.times()[:4])
    with open(os.devnull, "w") as nowhere:
        story = run_demo(console=Console(file=nowhere))
    assert story.certificate.is_private
    assert story.accuracy > 0.5
    assert sum(os.times()[:4]) - before < 2 * 60  # CPU seconds of all processes: the clock tells what else runs
