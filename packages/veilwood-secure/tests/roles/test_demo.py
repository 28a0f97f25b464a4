# SPDX-License-Identifier: Apache-2.0
"""The demonstration of secure training, without and with a server that lies."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("lie", [False, True])
def test_the_demo_shows_the_papers_main_flow(lie: bool) -> None:
    from rich.console import Console

    from veilwood_secure.roles.local import run_demo

    before = sum(os.times()[:4])
    with open(os.devnull, "w") as nowhere:
        story = run_demo(console=Console(file=nowhere), lie=lie)
    assert story.certificate.is_private
    assert story.tree_accuracy > 0.5
    assert story.forest_accuracy > 0.6
    assert story.n_charges == 2  # one for each model; a training that opened nothing is taken back
    assert (story.caught is not None) == lie
    assert sum(os.times()[:4]) - before < 2 * 20  # CPU seconds of all processes: the clock tells what else runs
