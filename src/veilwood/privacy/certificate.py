# SPDX-License-Identifier: Apache-2.0
"""What a finished release says about itself: the certificate that travels with every fitted model.

It holds public facts only, and is built by ``release`` from the plan and the ledger's entry.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Final

from veilwood.errors import ModelFileError
from veilwood.wording import shorten

_WEAK: Final = 8.0  # epsilon from which a statement says so,
_LARGEST_SHOWN: Final = 30.0  # and from which the factor is no longer worth its digits


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of one release, or the reason why there is none.

    Attributes
    ----------
    is_private : bool
        Whether the guarantee below holds.
    epsilon, delta : float or None
        The loss; None when nothing is guaranteed.
    adjacency, unit : str
        Which two tables must look alike.
    mechanism : str
        How the noise was drawn.
    released : str
        What left the private side; everything else in the model is computed from it.
    composition : tuple of dict
        The steps that add up to the loss.
    assumptions : tuple of str
        What the guarantee rests on.
    reason : str or None
        Why the result is not private, when it is not.
    ledger, ledger_entry : str, int
        Where the spend is recorded.
    schema_hash, plan_hash, version : str
        What was released, exactly, and by which version of the library.
    """

    is_private: bool
    epsilon: float | None
    delta: float | None
    adjacency: str
    unit: str
    mechanism: str
    released: str
    composition: tuple[dict[str, Any], ...]
    assumptions: tuple[str, ...]
    reason: str | None
    ledger: str
    ledger_entry: int
    schema_hash: str
    plan_hash: str
    version: str

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """Return the statement as JSON text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PrivacyStatement:
        """Read what ``to_dict`` wrote."""
        try:
            data = dict(data)
            data["composition"] = tuple(data["composition"])
            data["assumptions"] = tuple(data["assumptions"])
            made = cls(**data)
        except (TypeError, KeyError, ValueError) as error:
            told = shorten(str(error))
            raise ModelFileError(f"the certificate is incomplete or has unknown fields ({told}).") from None
        for name, kinds in _KINDS.items():
            if not isinstance(getattr(made, name), kinds):
                raise ModelFileError(f"the certificate's {name!r} is of the wrong kind.")
        if not all(isinstance(step, dict) and {*_STEP} <= set(step) for step in made.composition):
            raise ModelFileError("the certificate's steps cannot be read.")
        return made

    def to_markdown(self) -> str:
        """Return a one-page statement for people."""
        lines = [f"# Privacy certificate: {'private' if self.is_private else 'NOT PRIVATE'}", ""]
        if self.is_private:
            bound = f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")
            lines += [
                f"Guarantee: **{bound}** for {self.unit} ({self.adjacency}).",
                "",
                "In words: whatever anyone concludes from this model, they would have concluded with the same "
                f"probability, within a factor of {_factor(self.epsilon or 0.0)}, had the data of {self.unit} been "
                f"{'absent' if self.adjacency == 'add-remove' else 'replaced by any other'}.",
            ]
        else:
            lines += [f"No guarantee holds: {self.reason}."]
        lines += ["", "| | |", "|---|---|"]
        facts = {
            "released": self.released,
            "mechanism": self.mechanism,
            "ledger": f"{self.ledger}, entry {self.ledger_entry}",
            "schema (sha256)": self.schema_hash,
            "plan (sha256)": self.plan_hash,
            "veilwood": self.version,
        }
        lines += [f"| {name} | {value} |" for name, value in facts.items()]
        lines += ["", "## Composition", "", "| step | mechanism | sensitivity | loss |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(str(step[key]) for key in _STEP)} |" for step in self.composition]
        lines += ["", "## Assumptions", "", *(f"- {assumption}" for assumption in self.assumptions)]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        if not self.is_private:
            return f"NOT PRIVATE: {self.reason}"
        bound = f"epsilon={self.epsilon:g}" + (f", delta={self.delta:g}" if self.delta else "")
        return f"{bound}, {self.adjacency}, protects {self.unit}; {self.mechanism}"


_STEP: Final = ("name", "mechanism", "sensitivity", "loss")  # what is shown of each
_KINDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("adjacency", "unit", "mechanism", "released", "ledger"), str),
    **dict.fromkeys(("schema_hash", "plan_hash", "version"), str),
    **dict.fromkeys(("epsilon", "delta"), float | int | None),
    "is_private": bool,
    "reason": str | None,
    "ledger_entry": int,
}


def _factor(epsilon: float) -> str:
    """exp(epsilon) in words."""
    if epsilon > _LARGEST_SHOWN:
        return f"exp({epsilon:g}), which bounds next to nothing"
    factor = f"{math.exp(epsilon):,.3g}" if epsilon < _WEAK else f"{math.exp(epsilon):,.0f}, a weak bound"
    return f"exp({epsilon:g}) = {factor}"
