# SPDX-License-Identifier: Apache-2.0
"""Checklist of a release, based on NIST SP 800-226: questions, each with one of three answers.

NIST Special Publication 800-226, "Guidelines for Evaluating Differential Privacy Guarantees" (March 2025), builds a
claim of differential privacy on layers, from epsilon down to the collection of the rows, and names hazards on each.
The rows below follow its topics, in words of our own. An answer is ``PROVED``, with the page of the proof,
``ASSUMED``, with who states it, or ``NOT_COVERED``: then the guarantee does not speak about it, and a reader must.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from veilwood.estimators import family_of
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.neighbours import RowsOf
from veilwood.privacy.plan import EACH_TO_ONE_TREE
from veilwood.release_pack.card import ReleaseFacts, _plain

PROVED: Final = "proved"
ASSUMED: Final = "assumed"
NOT_COVERED: Final = "not covered"

_GUARANTEE: Final = "2. Guarantee: parameters and unit"
_ALGORITHMS: Final = "3. Algorithms: correctness, utility, bias"
_DEPLOYMENT: Final = "4. Deployment: trust, side channels, security, collection"

_SUSPICIOUS_DELTA: Final = 1e-5  # SP 800-226 calls larger values suspicious

_MECHANISM_PAGES: Final = {
    "DiscreteLaplace": "discrete-laplace",
    "DiscreteGaussian": "discrete-gaussian",
    "JointLaplace": "joint-laplace",
    "SparseLaplace": "sparse-counts",
    "ThresholdedGaussian": "discover",
    "NoisyMax": "noisy-max",
    "PermuteAndFlip": "permute-and-flip",
    "ExponentialMechanism": "exponential",
    "SeriesNoise": "release-series",
    "RandomStopping": "private-search",
}
"""Proof page of each mechanism, by class name."""


@dataclass(frozen=True)
class Row:
    """Question of the checklist with its answer.

    Attributes
    ----------
    part, topic : str
        Where it stands in the publication.
    answer : {"proved", "assumed", "not covered"}
        Whether the guarantee rests on a proof, on an assumption, or does not speak about it.
    text : str
        The finding for this release.
    proofs : tuple of str
        Names of proof pages.
    """

    part: str
    topic: str
    answer: str
    text: str
    proofs: tuple[str, ...] = ()


def checklist(facts: ReleaseFacts) -> list[Row]:
    """Return the rows of the checklist of a release."""
    return [*_guarantee_rows(facts), *_algorithm_rows(facts), *_deployment_rows(facts)]


def estimator_page(facts: ReleaseFacts) -> str:
    """Return the name of the proof page of the estimator."""
    return family_of(type(facts.model).__name__)


def mechanism_pages(facts: ReleaseFacts) -> tuple[str, ...]:
    """Return the names of the proof pages of all mechanisms of the plan."""
    names = {type(step.mechanism).__name__ for step in facts.model.plan_.steps}
    return tuple(dict.fromkeys(page for name, page in _MECHANISM_PAGES.items() if name in names))


def _guarantee_rows(facts: ReleaseFacts) -> Iterator[Row]:
    certificate, plan, said = facts.certificate, facts.model.plan_, facts.card.sentences
    strength, loss, unit = certificate.strength, plan.loss, plan.neighbours.unit
    estimator, exact = estimator_page(facts), loss.to_dict()
    yield Row(
        _GUARANTEE, "Epsilon and its meaning", PROVED,
        f"epsilon = {certificate.epsilon:g} ({strength.label}): the odds of any conclusion about one unit change by a "
        f"factor of at most {strength.factor}. {strength.verdict}".strip(),
        (estimator, "door"),
    )  # fmt: skip
    yield Row(
        _GUARANTEE, "Choice of epsilon", ASSUMED,
        f"No figure is right for everybody. The custodian says: {said['decision']}",
    )  # fmt: skip
    if not loss.delta:
        delta = Row(_GUARANTEE, "Variant, and delta", PROVED, "Pure differential privacy: delta is 0.", (estimator,))
    else:
        size = "above" if loss.delta > _SUSPICIOUS_DELTA else "at most"
        text = (
            f"delta = {float(loss.delta):g}, {size} {_SUSPICIOUS_DELTA:g}. It must be far below 1 over the number of "
            "people, better below its square; that number is not published, so the custodian has to compare."
        )
        delta = Row(_GUARANTEE, "Variant, and delta", ASSUMED, text)
    yield delta
    parameters = ", ".join(f"{name} = {value}" for name, value in exact.items() if value is not None)
    yield Row(
        _GUARANTEE, "All parameters reported, before any conversion", PROVED,
        f"Exact: {parameters}. Every step has its own loss in certificate.json and plan.json.", ("door",),
    )  # fmt: skip
    is_removed = certificate.adjacency == "add-remove"
    yield Row(
        _GUARANTEE, "Adding or changing a unit (unbounded or bounded)", PROVED,
        f"{certificate.adjacency}: " + (
            "a unit is added or removed, so the number of rows is protected too."
            if is_removed else "a unit is changed, so the number of rows is public."
        ),
        ("neighbours",),
    )  # fmt: skip
    yield Row(
        _GUARANTEE, "Unit of protection", PROVED,
        f"The unit of protection is {certificate.unit}. Sensitivities are those of this unit.", ("neighbours",),
    )  # fmt: skip
    by_person = isinstance(unit, RowsOf)
    yield Row(
        _GUARANTEE, "One person's data (event or person)", ASSUMED,
        ("All rows with the same id count as one person; rows of the same person under another id do not. " if by_person
         else "Rows are protected, not persons: who has more rows than the unit is protected less. ")
        + f"The custodian says: {said['people']}",
    )  # fmt: skip
    yield Row(
        _GUARANTEE, "Bounded contributions", PROVED,
        f"All rows of one {unit.id} count as {unit.at_most} at most, whatever their number." if isinstance(unit, RowsOf)
        else "A row counts once in each measurement, with bounded values and weight.",
        ("neighbours",),
    )  # fmt: skip
    yield _budget_row(facts)
    yield Row(
        _GUARANTEE, "Other releases from the same rows, with or without noise", ASSUMED,
        f"The ledger adds up what was charged to it, and knows nothing else. The custodian says: {said['other_uses']}",
    )  # fmt: skip
    yield Row(
        _GUARANTEE, "Facts about groups", NOT_COVERED,
        "What the model says about people in general holds for each of them, whether in the rows or not. Differential "
        "privacy does not hide it.",
    )  # fmt: skip
    yield Row(
        _GUARANTEE, "Audits and attacks", ASSUMED,
        "An attack can refute a guarantee and never prove one. Each proof page names the test that attacks its claim, "
        "also with half the noise, which must be caught. This model itself was not attacked.",
    )  # fmt: skip


def _budget_row(facts: ReleaseFacts) -> Row:
    topic, ledger, entry = "Composition and budget", facts.ledger, facts.entry
    text = f"Entry {entry['id']} of the ledger charges {entry['loss']}. Spent in total: {ledger['spent']}"
    void = [each["id"] for each in ledger["entries"] if each["not_private"] and each["state"] != "cancelled"]
    if void:
        text += f". Entry {void[0]} is NOT PRIVATE: no number bounds what all releases together say about these people."
        return Row(_GUARANTEE, topic, NOT_COVERED, text)
    if ledger["budget"] is None:
        return Row(_GUARANTEE, topic, ASSUMED, f"{text}. No budget is set: nothing limits what is charged next.")
    text += (
        f" of a budget of {ledger['budget']}. That there is one ledger for these people is for the custodian to keep."
    )
    return Row(_GUARANTEE, topic, PROVED, text, ("ledger",))


def _algorithm_rows(facts: ReleaseFacts) -> Iterator[Row]:
    certificate, missing, plan = facts.certificate, facts.columns_without_source, facts.model.plan_
    pages = mechanism_pages(facts)
    estimator = (estimator_page(facts), *(("disjoint-trees",) if plan.layout.records == EACH_TO_ONE_TREE else ()))
    columns = len(facts.model.schema_.features) + 1
    yield Row(
        _ALGORITHMS, "A proof for the algorithm", PROVED,
        f"{type(facts.model).__name__}: claim, proof, code and attacks are on one page.", estimator,
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Tested code, not written for the occasion", ASSUMED,
        f"veilwood {certificate.version}, with all that is installed beside it in sbom.cdx.json. No independent "
        "review can be named here.",
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Sensitivity", PROVED,
        "By formula in one place, and in tests by enumerating neighbours.", ("neighbours", *estimator),
    )  # fmt: skip
    yield Row(_ALGORITHMS, "Mechanisms", PROVED, f"{certificate.mechanism}.", pages)
    sources = f"{columns - len(missing)} of {columns} columns state a source"
    yield Row(
        _ALGORITHMS, "Clipping bounds not read from the rows", ASSUMED,
        f"Values are clamped to the bounds of the schema, which is declared; {sources} (schema.md)."
        + (f" Open: {len(missing)} without a source." if missing else ""),
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Bins and categories not read from the rows", ASSUMED,
        "Categories and classes are those of the schema. Boundaries inside bounds are public, random, or chosen with "
        "noise as a step of the plan.",
    )  # fmt: skip
    if facts.evaluation is None:
        yield Row(
            _ALGORITHMS,
            "Utility, measured privately",
            NOT_COVERED,
            "Not measured on private rows; see the expectation in report.html.",
        )
    else:
        epsilon = facts.evaluation.privacy.epsilon
        yield Row(
            _ALGORITHMS, "Utility, measured privately", PROVED,
            f"Measured with noise at epsilon {epsilon:g}, with intervals (quality.json): no exact score was published.",
            ("evaluation",),
        )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Systemic bias: small groups", NOT_COVERED,
        "Noise weighs more on small groups, and their predictions are worse. Whether that is tolerable here was not "
        "measured.",
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Human bias: odd numbers", NOT_COVERED,
        "Predictions are probabilities, or values within bounds. The noisy counts in measurements.parquet may be "
        "negative: that is correct, and rounding them up would bias sums.",
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Statistical bias", NOT_COVERED,
        "Noise on counts has mean 0. Leaf values are shrunk after the release, which lowers error and biases small "
        "leaves; clamping biases columns whose bounds are narrow.",
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Attacks on learned models (membership, extraction)", PROVED,
        "Bounded by epsilon for one unit, whatever the attack knows: the model is computed from noisy values alone. "
        "veilwood verify computes it again from them, if they are in the pack.", ("door", *estimator),
    )  # fmt: skip
    yield Row(
        _ALGORITHMS, "Pretraining and public data", ASSUMED,
        "No other rows were used. Constants of the library were set on public tables.",
    )  # fmt: skip
    yield Row(_ALGORITHMS, "Synthetic data", NOT_COVERED, "The pack has none.")
    yield Row(
        _ALGORITHMS, "Unstructured data (texts, pictures)", NOT_COVERED,
        "Columns are numbers and categories. Texts in a category column would be published with the "
        "schema.",
    )  # fmt: skip


def _deployment_rows(facts: ReleaseFacts) -> Iterator[Row]:
    certificate, said = facts.certificate, facts.card.sentences
    yield Row(
        _DEPLOYMENT, "Query model", PROVED,
        "One release under a plan that was fixed before the rows were read. Predictions read the model alone: "
        "they cost nothing, however many.", ("door",),
    )  # fmt: skip
    if Assumption.NO_COLLUSION.value in certificate.assumptions:
        yield Row(
            _DEPLOYMENT, "Trust model", ASSUMED, _sentence(Assumption.NO_COLLUSION.value), ("secure", "secure-joint")
        )
    else:
        yield Row(
            _DEPLOYMENT, "Trust model", ASSUMED,
            "Central: the custodian holds the rows and is trusted. A signature states who vouches for the run, not "
            "that it was honest: no file can prove that its numbers were drawn with that noise.",
        )  # fmt: skip
    pages = mechanism_pages(facts)
    yield Row(
        _DEPLOYMENT, "Floating point", PROVED,
        "Counts are integers and noise is drawn exactly, on integers; division follows the release.", pages,
    )  # fmt: skip
    yield Row(_DEPLOYMENT, "Random bits", ASSUMED, f"{_sentence(Assumption.UNIFORM_BITS.value)}")
    yield Row(
        _DEPLOYMENT, "Timing", ASSUMED if Assumption.TIMING.value in certificate.assumptions else NOT_COVERED,
        "The running time of a fit depends on the rows: no outsider may observe it. Predictions read no private rows.",
    )  # fmt: skip
    yield Row(
        _DEPLOYMENT, "Messages, refusals, types, lengths", PROVED,
        "With equal noise, two neighbouring tables leave the same bytes in files, messages and exit codes. "
        + ("Assumed: the table fits the schema; a refusal can be seen."
           if Assumption.ROWS_FIT_SCHEMA.value in certificate.assumptions
           else "Rows that do not fit the schema were dropped one by one."), ("door", estimator_page(facts)),
    )  # fmt: skip
    yield Row(
        _DEPLOYMENT, "Backends and formats", PROVED if not _server_side(facts) else ASSUMED,
        "Every source gives the same integers as rows in memory. A database, cluster or cloud that holds the rows sees "
        "them, as before.", ("counting-in-sql",) if not _server_side(facts) else (),
    )  # fmt: skip
    yield Row(
        _DEPLOYMENT, "Tuning of settings", ASSUMED,
        "Settings are those of the plan. A search that the library makes is charged to the ledger; what a person tried "
        "by hand is not known to it.",
    )  # fmt: skip
    yield Row(
        _DEPLOYMENT, "Crashes, copies and backups of the ledger", ASSUMED,
        "A charge is durable before noise is drawn, and the hash chain was intact when the pack was made. An older "
        "copy that was put back is found only by a hash noted elsewhere: it is in ledger.json.", ("ledger",),
    )  # fmt: skip
    yield Row(
        _DEPLOYMENT, "Data security and access control", NOT_COVERED,
        f"The guarantee is about what is published, not about the stored rows. The custodian says: {said['access']}",
    )  # fmt: skip
    yield Row(
        _DEPLOYMENT, "Data collection exposure", NOT_COVERED,
        f"Rows that were not collected cannot leak. The custodian says: {said['people']}",
    )  # fmt: skip


def _server_side(facts: ReleaseFacts) -> bool:
    return Assumption.NO_COLLUSION.value in facts.certificate.assumptions


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def checklist_page(facts: ReleaseFacts) -> str:
    """Return the checklist as Markdown."""
    rows = checklist(facts)
    counts = {answer: sum(row.answer == answer for row in rows) for answer in (PROVED, ASSUMED, NOT_COVERED)}
    lines = [
        "# Checklist after NIST SP 800-226", "",
        'The topics of "Guidelines for Evaluating Differential Privacy Guarantees" (NIST, March 2025) for this '
        f"release. {counts[PROVED]} are proved, {counts[ASSUMED]} rest on a stated assumption, and "
        f"{counts[NOT_COVERED]} are not covered: there, the reader has to judge.", "",
        f"Pages of proofs are in the source of veilwood {facts.certificate.version}, folder proofs.",
    ]  # fmt: skip
    for part in (_GUARANTEE, _ALGORITHMS, _DEPLOYMENT):
        lines += ["", f"## {part}", "", "| topic | answer | finding | proof |", "|---|---|---|---|"]
        lines += [
            f"| {row.topic} | **{row.answer}** | {_plain(row.text)} | {_links(row.proofs, facts)} |"
            for row in rows
            if row.part == part
        ]
    return "\n".join(lines) + "\n"


def checklist_data(facts: ReleaseFacts) -> dict[str, Any]:
    """Return the checklist as plain values for JSON."""
    rows = [{**asdict(row), "proofs": [f"proofs/{page}.md" for page in row.proofs]} for row in checklist(facts)]
    return {"publication": "NIST SP 800-226", "version": facts.certificate.version, "rows": rows}


def _links(pages: tuple[str, ...], facts: ReleaseFacts) -> str:
    base = str(facts.card.facts["documentation"]).rstrip("/")
    return ", ".join(f"[{page}]({base}/proofs/{page}.html)" if base else f"proofs/{page}.md" for page in pages)
