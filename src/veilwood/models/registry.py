# SPDX-License-Identifier: Apache-2.0
"""Fitted forests in registries that keep scikit-learn models with skops, as MLflow does by default.

skops opens no type that was not named. Here are the names for one model, and nothing but our own types among them.
"""

from __future__ import annotations

from typing import Any

from veilwood.errors import ModelFileError, UseError

__all__ = ["skops_types"]

_EXACT = "fractions.Fraction"  # what losses are written in


def skops_types(model: Any) -> list[str]:
    """Return the types that skops, and so MLflow, must trust to open a fitted model again.

    Parameters
    ----------
    model : estimator
        A fitted forest of this library.

    Returns
    -------
    list of str
        Names of classes of this library, and of exact fractions. A model that holds anything else is refused.

    Examples
    --------
    >>> import veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X, car.y)
    >>> import skops.io
    >>> written = skops.io.dumps(forest)
    >>> again = skops.io.loads(written, trusted=vw.skops_types(forest))
    >>> bool((again.predict(car.X) == forest.predict(car.X)).all())
    True
    """
    try:
        from skops import io
    except ModuleNotFoundError:
        raise UseError("skops is not installed. Hint: pip install 'veilwood[registry]'.") from None
    if not hasattr(model, "privacy_"):
        raise ModelFileError(f"{type(model).__name__} is not a fitted forest of this library.")
    found = sorted(io.get_untrusted_types(data=io.dumps(model)))
    strange = [name for name in found if name != _EXACT and not name.startswith("veilwood.")]
    if strange:
        raise ModelFileError(f"this model holds {', '.join(strange)}, which no forest of this library needs.")
    return found
