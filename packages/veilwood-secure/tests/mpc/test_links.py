# SPDX-License-Identifier: Apache-2.0
"""Three threads as servers: different programs and failures are told."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography")
from veilwood.errors import PartyError
from veilwood_secure.mpc.engine import Engine
from veilwood_testing.mpc_engines import at_three


def test_servers_that_run_different_programs_are_told_so() -> None:
    with pytest.raises(PartyError, match="unexpected length"):
        at_three(lambda engine: engine.open(engine.constant(np.zeros(2 if engine.party == 0 else 3, dtype=int))))


def test_the_error_of_the_server_that_failed_is_reported() -> None:
    def program(engine: Engine) -> None:
        if engine.party == 2:
            raise ArithmeticError("out of ink")
        engine.open(engine.constant([1]))

    with pytest.raises(ArithmeticError, match="out of ink"):
        at_three(program)
