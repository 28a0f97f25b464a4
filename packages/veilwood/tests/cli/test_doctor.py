# SPDX-License-Identifier: Apache-2.0
"""The doctor finds what is ill, and says that the rest is well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.cli.doctor import SAMPLERS, _check_packages, run_checks
from veilwood.cli.main import main
from veilwood.privacy import entropy
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Geometric
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip

BROKEN = 4


def facts(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, Any]:
    assert main(["doctor", "--json", *words]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["whole"] is (code == 0)
    return {finding["what"]: (finding["state"], finding["detail"]) for finding in answer["findings"]}


def test_a_healthy_house_and_ledger(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    vw.SQLiteLedger(tmp_path / "visits.db", epsilon=3)
    found = facts(capsys, 0, "--ledger", str(tmp_path / "visits.db"))
    assert found["veilwood"][1].startswith(vw.__version__)
    assert found["numpy"] == ("well", np.__version__)
    assert {f"sampler {name}" for name in SAMPLERS} <= set(found)
    assert "epsilon=3 left" in found[f"ledger {tmp_path / 'visits.db'}"][1]
    assert any(name.startswith("extra [") for name in found)
    assert main(["doctor"]) == 0
    assert "All checks passed." in capsys.readouterr().out


def test_a_package_without_wheels_for_this_platform_is_missing_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numba>=0.61; sys_platform == 'linux'", "numpy>=2.0", "onnx>=1.18; extra == 'onnx'"]
    monkeypatch.setattr("veilwood.cli.doctor.metadata.requires", lambda name: lines)
    monkeypatch.setattr("veilwood.cli.doctor._installed_version", lambda name: None)
    states = {finding.what: finding.state for finding in _check_packages()}
    assert states == {"numba": "missing", "numpy": "broken", "extra [onnx]": "missing"}


def test_a_damaged_ledger_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = tmp_path / "visits.db"
    place.write_text("no ledger")
    assert facts(capsys, BROKEN, "--ledger", str(place))[f"ledger {place}"][0] == "broken"


TWINS: dict[str, tuple[str, Any]] = {
    "geometric": ("sample", Geometric(1)),
    "discrete Laplace": ("sample", DiscreteLaplace(1)),
    "discrete Gaussian": ("sample", DiscreteGaussian(1)),
    "noisy max": ("select", NoisyMax(2, 1)),
    "permute-and-flip": ("select", PermuteAndFlip(2, 1)),
    "exponential": ("select", ExponentialMechanism(2, 1)),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_with_half_the_noise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, control = TWINS[name]
    honest = getattr(control, method)  # bound to the twin, and called in place of the sound one
    monkeypatch.setattr(type(control), method, lambda _, given: honest(given))
    states = {finding.what: finding.state for finding in run_checks()}
    assert states[f"sampler {name}"] == "broken"


def test_seeded_or_repeated_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(vw.PrivacyWarning), entropy.seeded_for_tests(1):
        found = {finding.what: finding for finding in run_checks()}
    assert found["entropy source"].state == "broken"
    assert "test stream" in found["entropy source"].detail
    monkeypatch.setattr("veilwood.privacy.entropy.os.urandom", lambda n: bytes(n))
    assert {finding.what: finding.state for finding in run_checks()}["entropy source"] == "broken"
