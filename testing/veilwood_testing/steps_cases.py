# SPDX-License-Identifier: Apache-2.0
"""Shared by privacy/test_steps.py and other tests."""

from __future__ import annotations

from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.steps import Step, counting_step
from veilwood_testing.one_step_plan import ONE


def step_of(name: str = "counts", loss: Loss = ONE) -> Step:
    return counting_step(name, (3,), loss, Neighbours(), l1=1, squared_l2=1)


def plan_of(*steps: Step, loss: Loss = ONE) -> Plan:
    return Plan("Test", loss, Neighbours(), steps, "three counts", "test", "0", Layout(leaves=3), 1.0)
