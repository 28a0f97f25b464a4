# SPDX-License-Identifier: Apache-2.0
"""Who draws the noise that a plan asks for, as chosen by an environment variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.privacy import samplers
from veilwood.privacy.steps import BACKEND_VARIABLE

SCHEMA = vw.Schema.numeric((0, 1), classes=[0, 1], n_features=2)


def forest(n_estimators: int = 2, **parameters: Any) -> vw.RandomTreesClassifier:
    return vw.RandomTreesClassifier(SCHEMA, n_estimators=n_estimators, max_depth=2, random_state=0, **parameters)


def certificate(epsilon: float, delta: float, trees: int) -> tuple[dict[str, Any], list[str]]:
    """What a fit states, without the name of its backend and the hash that depends on it; and these names."""
    X = np.random.default_rng(0).random((500, 2))
    fitted = forest(trees, epsilon=epsilon, delta=delta, ledger=vw.MemoryLedger()).fit(X, (X[:, 0] > 0.5).astype(int))
    assert fitted.predict(X).shape == (500,)
    stated = fitted.privacy_.to_dict()
    assert stated.pop("plan_hash") == fitted.plan_.fingerprint()
    return stated, [step["exact"]["mechanism"].pop("backend") for step in stated["composition"]]


@pytest.mark.parametrize(("sampler", "delta"), [("opendp_laplace", 0.0), ("opendp_gaussian", 1e-6)])
def test_opendp_draws_and_the_certificate_stays(sampler: str, delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opendp")
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    drawn: list[int] = []
    draw = getattr(samplers, sampler)

    def spy(parameter: Any, n: int) -> Any:
        drawn.append(n)
        return draw(parameter, n)

    monkeypatch.setattr(samplers, sampler, spy)
    trees = 2 if delta == 0 else 200  # so many that Gaussian noise is the smaller one
    ours, names = certificate(4.0, delta, trees)
    assert (names, drawn) == (["veilwood"], [])
    monkeypatch.setenv(BACKEND_VARIABLE, "opendp")
    theirs, names = certificate(4.0, delta, trees)
    assert (names, drawn) == (["opendp"], [8 * trees])  # of 4 leaves, 2 classes
    assert theirs == ours
    assert theirs["is_private"]
    assert theirs["epsilon"] == 4.0


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_an_unknown_backend_is_refused_before_the_data(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "numpy")
    with pytest.raises(vw.VeilwoodError, match="'veilwood' or 'opendp', got 'numpy'"):
        forest(epsilon=1.0, delta=delta).plan()
