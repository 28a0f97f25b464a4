# SPDX-License-Identifier: Apache-2.0
"""Privacy certificates: the guarantee attached to every fitted model.

A certificate holds public facts only. ``build_certificate`` builds every one, for the door and for servers, from the
plan, the charge that a ledger records, and the participation of servers. ``assumptions_of`` lists the assumptions of
the guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any, Final, Literal, TypeAlias

from veilwood._version import __version__
from veilwood.charts import html_card
from veilwood.errors import ModelFileError, VeilwoodError, shorten_text
from veilwood.privacy.ledger import Durability
from veilwood.privacy.loss import GuaranteeStrength, Loss, guarantee_strength
from veilwood.privacy.plan import EACH_TO_ONE_TREE, Layout, Plan

ServerNoise: TypeAlias = Literal["dealt", "sampled", "both"]
Holding: TypeAlias = Literal["counts", "rows", "columns"]

NO_SCHEMA: Final = "none: the release is a schema"
"""Schema hash in the plan of a release that needs no schema."""


class Assumption(Enum):
    """Assumption of a guarantee, with the text that certificates show."""

    PUBLIC_SCHEMA = (
        "the schema (columns, bounds, categories, classes) is public knowledge: nothing in it was read from the data, "
        "except what a separately charged private release published"
    )
    PUBLIC_NAMES = "the names of the columns, and which of them are the target and the id, are public knowledge"
    ROWS_FIT_SCHEMA = (
        "the table is not empty and fits the schema: otherwise the fit is refused, and a refusal can be seen"
    )
    UNIFORM_BITS = "the operating system's random bits are uniform and secret; noise is sampled exactly from them"
    UNIT_IS_COMPLETE = (
        "one unit of the data is {unit}; what the same person has beyond that, in other rows or under another id, is "
        "not covered"
    )
    KEYED_TREE_ASSIGNMENT = (
        "records were given to trees by a keyed hash under a secret key, which is taken to be a random function"
    )
    TREE_COLUMN = "the tree of a record is in a column of the table, filled without looking at other records"
    PERIODS_KEPT = (
        "a record keeps its period once it was counted (one whose period changes counts as two), and of all records of "
        "an id no single one is removed, or arrives late, while others stay (each that does counts as one more)"
    )
    DECLARED_ROWS = "the number of rows that was given (n_rows) is public, or a guess made without the data"
    COUNTED_ROWS = "the number of rows was counted without noise: it is public, as all neighbours have as many"
    TIMING = "no outsider observes the running time of the fit: it depends on the rows, in particular on their number"
    IN_MEMORY = "the ledger was kept in memory only: earlier spends on this data are not recorded in it"
    THIS_FIT_ALONE = (
        "no ledger was given: the loss is that of this fit alone, and other fits on the same data add to it"
    )
    NO_COLLUSION = "no two of the three servers collude, and each of them follows the protocol (semi-honest)"
    ONE_DEVIATES = (
        "no two of the three servers collude; if one does not follow the protocol, the others notice it and stop, "
        "except with probability 2^-40 for each training and each answer"
    )
    DEALT_JOINTLY = (
        "servers add parts of the noise that they know: the guarantee holds towards a server that knows its own part"
    )
    SAMPLED_JOINTLY = "noise is drawn from biased secret bits; its distance from the exact law is contained in delta"
    OWNERS_COUNT = "owners count their own rows: a wrong count harms the model, not the privacy of other owners"
    ONE_CORRUPT = "towards a server the guarantee is that of secret sharing: what it sees does not depend on the data"
    ONE_HOT = "every row was checked, in shares, to hold one value for each feature and at most one class"
    ROWS_SEEN = "servers see how many rows each owner sent, padding included"
    TRAFFIC = "whoever watches the servers' network or times the training can guess how many rows were sent"
    OWNERS_INTERSECT = (
        "owners of columns found their common rows by private set intersection: each owner knows which of its rows the "
        "others have"
    )
    ROWS_ALIGNED = "owners of columns know how many rows there are: they send the same ones"


@dataclass(frozen=True)
class Spend:
    """Charge of a release, and the ledger entry that records it.

    Attributes
    ----------
    ledger : str
        Name of the ledger.
    entry : int
        Number of the entry in the ledger.
    loss : Loss
        The loss that was charged.
    durability : {"file", "memory", "not"}
        Whether the ledger is a file, is held in memory, or replaces one that was not given.
    not_private : str or None
        Why there is no guarantee; None if there is one.
    plan : str or None
        The hash of the plan that the ledger entry holds.
    """

    ledger: str
    entry: int
    loss: Loss
    durability: Durability = "file"
    not_private: str | None = None
    plan: str | None = None


@dataclass(frozen=True)
class ServerParticipation:
    """Participation of three servers in a release.

    Attributes
    ----------
    noise : {"dealt", "sampled", "both"}
        Whether each server dealt noise of its own, all servers sampled noise jointly in shares, or both in different
        steps.
    shared_input : {"counts", "rows", "columns"}
        What owners shared with the servers: counts of their rows, whole rows, or columns of the same rows.
    checked : bool
        Whether the servers check one another, so that one of them may deviate from the protocol.
    intersected : bool
        Whether owners of columns found their common rows among themselves.
    """

    noise: ServerNoise
    shared_input: Holding
    checked: bool = False
    intersected: bool = False


def assumptions_of(plan: Plan, durability: Durability, servers: ServerParticipation | None) -> list[Assumption]:
    """Return the assumptions on which the guarantee of a release rests."""
    shared = servers is not None and servers.shared_input != "counts"
    series = "series" in plan.choices
    applies = {
        Assumption.PUBLIC_SCHEMA: plan.schema_hash != NO_SCHEMA,
        Assumption.PUBLIC_NAMES: plan.schema_hash == NO_SCHEMA,
        Assumption.ROWS_FIT_SCHEMA: plan.parameters.get("invalid") != "drop",
        Assumption.UNIFORM_BITS: True,
        Assumption.UNIT_IS_COMPLETE: True,
        Assumption.KEYED_TREE_ASSIGNMENT: plan.layout.records == EACH_TO_ONE_TREE and not series,
        Assumption.TREE_COLUMN: plan.layout.records == EACH_TO_ONE_TREE and series,
        Assumption.PERIODS_KEPT: series,
        Assumption.DECLARED_ROWS: plan.layout.rows_known == "declared",
        Assumption.COUNTED_ROWS: plan.layout.rows_known == "counted",
        Assumption.TIMING: servers is None,
        Assumption.IN_MEMORY: durability == "memory",
        Assumption.THIS_FIT_ALONE: durability == "not",
        Assumption.NO_COLLUSION: servers is not None and not servers.checked,
        Assumption.ONE_DEVIATES: servers is not None and servers.checked,
        Assumption.DEALT_JOINTLY: servers is not None and servers.noise != "sampled",
        Assumption.SAMPLED_JOINTLY: servers is not None and servers.noise != "dealt",
        Assumption.OWNERS_COUNT: servers is not None and servers.shared_input == "counts",
        Assumption.ONE_CORRUPT: shared,
        Assumption.ONE_HOT: shared,
        Assumption.ROWS_SEEN: shared,
        Assumption.TRAFFIC: shared,
        Assumption.OWNERS_INTERSECT: servers is not None and servers.intersected,
        Assumption.ROWS_ALIGNED: servers is not None and servers.shared_input == "columns",
    }
    return [assumption for assumption, holds in applies.items() if holds]


@dataclass(frozen=True, repr=False)
class PrivacyCertificate:
    """The guarantee of one release, or the reason why there is none.

    Attributes
    ----------
    is_private : bool
        Whether the guarantee below holds.
    epsilon, delta : float or None
        The privacy loss; None if nothing is guaranteed.
    adjacency, unit : str
        How two neighbouring tables differ.
    mechanism : str
        The mechanisms that were applied.
    released : str
        The published values, as text; everything else in the model is computed from them.
    composition : tuple of dict
        The steps whose privacy losses compose to the total.
    assumptions : tuple of str
        The assumptions of the guarantee.
    reason : str or None
        Why the release is not private, if it is not.
    ledger, ledger_entry : str, int
        The entry of the ledger that records the charge.
    schema_hash, plan_hash : str
        Hashes of the schema and the plan. If the plan was refined from released values, ``plan_hash`` is the hash of
        the plan that opened the release door, which could be signed beforehand.
    version : str
        The version of the library that made the release.
    chosen : dict
        The decisions, layout and hash of a plan that was refined from released values; empty for other plans.
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
    chosen: dict[str, Any] = field(default_factory=dict)

    @property
    def strength(self) -> GuaranteeStrength:
        """The strength of the guarantee: grade, label, factor and a sentence if it is weak."""
        return guarantee_strength(self.epsilon if self.is_private else None)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as a dict that can be written as JSON."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """Return the certificate as JSON text."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PrivacyCertificate:
        """Read what ``to_dict`` wrote."""
        try:
            data = dict(data)
            data["composition"] = tuple(data["composition"])
            data["assumptions"] = tuple(data["assumptions"])
            certificate = cls(**data)
        except (TypeError, KeyError, ValueError) as error:
            reason = shorten_text(str(error))
            raise ModelFileError(
                f"the certificate is incomplete or has unknown fields ({reason}). Hint: restore the original file."
            ) from None
        for name, types in _FIELD_TYPES.items():
            if not isinstance(getattr(certificate, name), types):
                raise ModelFileError(f"the certificate's {name!r} has the wrong type.")
        step_keys = {*_STEP_KEYS, *_TYPED_KEYS}
        if not all(isinstance(step, dict) and step_keys <= set(step) for step in certificate.composition):
            raise ModelFileError("the certificate's steps cannot be read.")
        if certificate.chosen and not _is_valid_decisions(certificate.chosen):
            raise ModelFileError("the certificate's adaptive decisions cannot be read.")
        return certificate

    def to_markdown(self) -> str:
        """Return the certificate as one page of Markdown."""
        strength = self.strength
        lines = [f"# Privacy certificate: {strength.label}", ""]
        if self.is_private:
            bound = f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else "")
            lines += [
                f"Guarantee: **{bound}** for {self.unit} ({self.adjacency}).",
                "",
                f"Suppose the data of {self.unit} had been "
                f"{'absent' if self.adjacency == 'add-remove' else 'replaced by any other'}. The probability of any "
                f"given conclusion from the model would change by a factor of at most exp({self.epsilon:g}) = "
                f"{strength.factor}" + (f", plus at most {self.delta:g}." if self.delta else "."),
            ]
            if strength.verdict:
                lines += ["", f"Note: {strength.verdict}"]
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
        if self.chosen:
            lines += ["", "## Adaptive decisions", "", *(f"- {choice}" for choice in self._describe_decisions())]
        lines += ["", "## Composition", "", "| step | mechanism | sensitivity | loss |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(cells)} |" for cells in describe_steps(self.composition)]
        lines += ["", "## Assumptions", "", *(f"- {assumption}" for assumption in self.assumptions)]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        if not self.is_private:
            return f"NOT PRIVATE: {self.reason}"
        n = len(self.composition)
        releases = f"{n} noisy release{'s' * (n != 1)}; .to_markdown() has all"
        return f"{self.strength.label}: {self._guarantee()}; {releases}"

    def _guarantee(self) -> str:
        """Return loss, unit and adjacency in a few words."""
        bound = f"epsilon={self.epsilon:g}" + (f", delta={self.delta:g}" if self.delta else "")
        return f"{bound}, protects {self.unit}, {_ADJACENCY_TEXTS.get(self.adjacency, self.adjacency)}"

    def __repr__(self) -> str:
        return f"PrivacyCertificate({self._guarantee() if self.is_private else 'NOT PRIVATE'})"

    def _repr_html_(self) -> str:
        """Show the certificate in a notebook."""
        summary = str(self.reason) if not self.is_private else self._guarantee()
        head = ("measured", "mechanism", "sensitivity", "loss")
        badge = (self.strength.label, self.strength.colour)
        rows = [head, *describe_steps(self.composition)]
        return html_card(
            "Privacy certificate", f"{summary}\n{self.ledger}, entry {self.ledger_entry}", rows, badge=badge
        )

    def _describe_decisions(self) -> list[str]:
        """Return the decisions of an adaptive plan, one string per decision."""
        layout = ", ".join(Layout.from_dict(self.chosen["layout"]).describe())
        choices = [f"{name}: {value}" for name, value in self.chosen["choices"].items()]
        return [*choices, f"layout: {layout}", f"plan as carried out (sha256): {self.chosen['plan_hash']}"]


def build_certificate(plan: Plan, spend: Spend, servers: ServerParticipation | None = None) -> PrivacyCertificate:
    """Return the certificate of a finished release.

    Parameters
    ----------
    plan : Plan
        The plan that was executed.
    spend : Spend
        Its charge, and the ledger entry that records it.
    servers : ServerParticipation, optional
        How servers took part, if they did.
    """
    (payload, fingerprint), loss = plan.payload_and_fingerprint(), spend.loss
    private, unit, steps = spend.not_private is None and loss.epsilon is not None, payload["unit"], payload["steps"]
    return PrivacyCertificate(
        is_private=private,
        epsilon=float(loss.epsilon) if private and loss.epsilon is not None else None,
        delta=float(loss.delta) if private else None,
        adjacency=payload["adjacency"],
        unit=unit,
        mechanism="; ".join(dict.fromkeys(step["mechanism"] for step in steps)),
        released=plan.released,
        composition=tuple(steps),
        assumptions=tuple(each.value.format(unit=unit) for each in assumptions_of(plan, spend.durability, servers)),
        reason=spend.not_private,
        ledger=spend.ledger,
        ledger_entry=spend.entry,
        schema_hash=plan.schema_hash,
        plan_hash=plan.opened_as or spend.plan or fingerprint,
        version=__version__,
        chosen=adaptive_decisions(plan, fingerprint),
    )


def adaptive_decisions(plan: Plan, fingerprint: str) -> dict[str, Any]:
    """Return the decisions of a plan that was refined from released values; empty for any other plan."""
    if plan.opened_as is None:
        return {}
    return {"choices": plan.choices, "layout": plan.layout.to_dict(), "plan_hash": fingerprint}


_ADJACENCY_TEXTS: Final = {"add-remove": "added or removed", "replace-one": "replaced by any other"}
_STEP_KEYS: Final = ("name", "mechanism", "sensitivity", "loss")  # columns of the table of steps
_TYPED_KEYS: Final = ("kind", "at")  # decide which steps share a row of this table
_FIELD_TYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(("adjacency", "unit", "mechanism", "released", "ledger"), str),
    **dict.fromkeys(("schema_hash", "plan_hash", "version"), str),
    **dict.fromkeys(("epsilon", "delta"), float | int | None),
    "is_private": bool,
    "reason": str | None,
    "ledger_entry": int,
    "chosen": dict,
}


def _is_valid_decisions(decisions: dict[str, Any]) -> bool:
    """Return True if decisions from a file have the form that ``adaptive_decisions`` returns."""
    if set(decisions) != {"choices", "layout", "plan_hash"} or not isinstance(decisions["plan_hash"], str):
        return False
    try:
        Layout.from_dict(decisions["layout"])
    except (TypeError, VeilwoodError):
        return False
    return isinstance(decisions["choices"], dict)


def describe_steps(steps: Iterable[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the name, mechanism, sensitivity and loss of all steps as table rows.

    Consecutive steps with equal noise are merged. Numbered steps of one kind with equal noise, such as the selections
    of all rounds, are merged too.
    """
    return [(_merged_name(group), *_noise_columns(group[0])) for group in merge_steps(steps)]


def merge_steps(steps: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group steps by kind and noise: ``describe_steps`` returns one row per group."""
    groups: dict[object, list[dict[str, Any]]] = {}
    for place, (columns, equal_steps) in enumerate(groupby(steps, key=_noise_columns)):
        for step in equal_steps:
            groups.setdefault((step["kind"] if step["at"] else place, columns), []).append(step)
    return list(groups.values())


def _noise_columns(step: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(step[key]) for key in _STEP_KEYS[1:])


def _merged_name(steps: list[dict[str, Any]]) -> str:
    """Return one name for merged steps: round 1, round 2, ..., round 48 are 48 rounds.

    >>> _merged_name([{"name": f"round {i}: choice", "at": [i]} for i in (1, 3)])
    '2 rounds: choice, each'
    """
    names = [str(step["name"]) for step in steps]
    if len(names) == 1:
        return names[0]
    word = names[0].partition(" ")[0]
    stems = {_without_numbers(name, step["at"]) for name, step in zip(names, steps, strict=True)}
    rests = {stem.removeprefix(word) for stem in stems if stem == word or stem.startswith(f"{word}:")}
    if len(stems) == len(rests) == 1:
        return f"{len(names)} {word}s{min(rests)}, each"
    return f"{names[0]} to {names[-1]}, {len(names)} steps, each"


def _without_numbers(name: str, numbers: Iterable[int]) -> str:
    for number in numbers:
        name = name.replace(f" {number}", "", 1)
    return name
