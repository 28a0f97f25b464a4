# SPDX-License-Identifier: Apache-2.0
"""Writing of release packs, and their verification with only a public key.

A pack is a flat folder and one archive of it. ``manifest.json`` lists every other file with its SHA-256; its signature
covers the list. All documents follow from the model, the custodian's card, the extract of the ledger and a date, so
equal inputs give equal bytes, and whoever verifies computes the documents again instead of believing them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.metadata import Distribution, distributions
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, Final

from veilwood._version import __version__
from veilwood.errors import (
    FileError,
    LedgerError,
    SignatureError,
    UseError,
    VeilwoodError,
    short_repr,
    shorten_text,
)
from veilwood.estimators.base import BaseForest
from veilwood.evaluation.evaluate import Evaluation, evaluation_plan, model_hash
from veilwood.models import file as model_file
from veilwood.models.checks import Check, check_certificate, require_checks
from veilwood.models.measurements import check_rebuilds, export_measurements
from veilwood.privacy import signature
from veilwood.privacy.door import parallel_loss
from veilwood.privacy.ledger import Entry, Ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.privacy.signature import PublicKey
from veilwood.privacy.time_factors import replan_series
from veilwood.release_pack.card import CustodianCard, ReleaseFacts, model_card, schema_page
from veilwood.release_pack.checklist import checklist_data, checklist_page
from veilwood.release_pack.registry import record_text
from veilwood.reporting import render_report
from veilwood.safe_io import read_file, read_json, write_file

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MODEL: Final = "model.veilwood"

CONTENTS: Final = {
    "README.md": "model card",
    "card.toml": "what the custodian says",
    "certificate.json": "privacy certificate",
    "certificate.md": "privacy certificate, for readers",
    "checklist.json": "checklist after NIST SP 800-226, for programs",
    "checklist.md": "checklist after NIST SP 800-226",
    "ledger.json": "extract of the ledger",
    "measurements.parquet": "every noisy value that the fit released",
    MODEL: "model",
    f"{MODEL}.sig": "signature of the model",
    "plan-executed.json": "plan with the decisions that followed from released values",
    "plan.json": "plan under which the release door was opened",
    "plan.json.sig": "signature of the plan, by whoever approved it before the rows were read",
    "quality.json": "noisy evaluation",
    "registry.yaml": "record for the registry of deployments",
    "report.html": "report",
    "sbom.cdx.json": "software of the environment that wrote the pack",
    "schema.json": "schema",
    "schema.md": "schema with the sources of its bounds",
    "SHA256SUMS": "hashes, for sha256sum --check",
}
"""Every file that a pack may hold beside the manifest and its signature."""
_OPTIONAL: Final = ("measurements.parquet", "quality.json", "plan-executed.json", "plan.json.sig")
_FROM_THE_ENVIRONMENT: Final = ("report.html", "sbom.cdx.json")  # signed, but not computed again during verification
SETTLED: Final = ("committed", "resolved")  # states of an entry whose charge is final
_MAX_FILE_BYTES: Final = 1 << 31
_MAX_ARCHIVE_BYTES: Final = 1 << 32
_ODD_CONTENT: Final = (VeilwoodError, KeyError, IndexError, TypeError, ValueError, AttributeError, OSError)
"""Exceptions raised by reading a signed file with unexpected content."""


# -- writing ---------------------------------------------------------------------------------------------------------


def write_pack(
    model: str | PathLike[str],
    folder: str | PathLike[str],
    *,
    ledger: Ledger,
    key: str | PathLike[str],
    card: str | PathLike[str],
    evaluation: str | PathLike[str] | None = None,
    plan: str | PathLike[str] | None = None,
) -> Path:
    """Write a release pack: a folder, and the archive ``folder.zip``. Spends no budget.

    Parameters
    ----------
    model : path
        Model file. The model must be private, and the ledger must contain its charge.
    folder : path
        Folder to write. It must not exist yet.
    ledger : Ledger
        The ledger that was charged. Its hash chain is checked.
    key : path
        Private key to sign with.
    card : path
        The custodian's answers; ``card_template`` has the questions.
    evaluation : path, optional
        Result of ``veilwood evaluate`` for this model, charged to the same ledger.
    plan : path, optional
        The plan that was approved before the rows were read, with its signature next to it. Both are packed; readers
        check the signature with the approver's key. By default, the plan is computed again.

    Returns
    -------
    Path
        The archive.

    Notes
    -----
    The date of the pack is ``SOURCE_DATE_EPOCH`` if it is set, and the date of the ledger entry otherwise.
    """
    folder = Path(folder)
    archive = folder.with_name(f"{folder.name}.zip")
    for path in (folder, archive):
        if path.exists():
            raise UseError(f"{short_repr(str(path))} exists already. Hint: pass another folder with -o.")
    answers = CustodianCard.load(card)
    public_key = signature.public_key_of(key)
    try:
        unfinished = Path(tempfile.mkdtemp(prefix=".pack-", dir=folder.parent))
    except OSError as error:
        raise FileError(f"cannot write to {short_repr(str(folder.parent))}: {error.strerror or error}.") from None
    try:
        shutil.copyfile(model, unfinished / MODEL)
        model_file.sign(unfinished / MODEL, key)
        facts = _collect_facts(unfinished / MODEL, ledger, answers, evaluation, plan)
        documents = _documents(facts)
        documents["report.html"] = render_report(
            facts.model, evaluation=facts.evaluation, ledger=ledger, file=unfinished / MODEL
        )
        documents["sbom.cdx.json"] = _to_json(environment_bom(facts.day))
        for name, text in documents.items():
            write_file(unfinished / name, text.encode())
        if plan is not None and signature.signature_path(plan).exists():
            write_file(unfinished / "plan.json.sig", _read_plan_signature(plan, facts.opening_plan))
        if getattr(facts.model, "measurements_", ()):
            export_measurements(facts.model, unfinished / "measurements.parquet")
        _seal(unfinished, facts, key)
        failed = [check for check in verify_pack(unfinished, public_key) if not check.holds]
        if failed:
            raise UseError(f"the pack would not be verified: {failed[0].question} {failed[0].found}")
        unfinished.chmod(0o755)  # mkdtemp lets nobody else in
        os.replace(unfinished, folder)
        content = _archive_bytes({path.name: path.read_bytes() for path in folder.iterdir()})
    except OSError as error:
        raise FileError(f"cannot write the pack: {error.strerror or error}. Hint: check {str(model)!r}.") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    write_file(archive, content)
    return archive


def _collect_facts(
    path: Path,
    ledger: Ledger,
    card: CustodianCard,
    evaluation: str | PathLike[str] | None,
    plan: str | PathLike[str] | None,
) -> ReleaseFacts:
    """Return the facts of a release. Raise an error if the model, its ledger and its evaluation do not match."""
    model: Any = model_file.load(path)
    certificate = model.privacy_
    if not certificate.is_private:
        raise UseError(f"the model is NOT PRIVATE ({certificate.reason}). Hint: pack a model with a guarantee.")
    ledger.verify()
    entry = next((each for each in ledger.entries() if each.id == certificate.ledger_entry), None)
    if entry is None or entry.plan != certificate.plan_hash or not entry.is_counted:
        raise LedgerError(
            f"{ledger.name} has no charge for this model: entry {certificate.ledger_entry} belongs to another release. "
            "Hint: pass the ledger that the fit charged."
        )
    if entry.state == "reserved":
        raise LedgerError(f"entry {entry.id} of {ledger.name} is not settled. Hint: run veilwood ledger resolve.")
    measured, extract = None if evaluation is None else Evaluation.load(evaluation), _ledger_extract(ledger)
    _require_charged_evaluation(measured, model, extract)
    opening = _opening_plan(model) if plan is None else Plan.load(plan)
    if opening.fingerprint() != certificate.plan_hash:
        raise UseError(f"{short_repr(str(plan))} is not the plan of this model. Hint: pass the plan that was approved.")
    return ReleaseFacts(model, opening, card, extract, _day(entry), measured)


def _require_charged_evaluation(evaluation: Evaluation | None, model: Any, ledger: Mapping[str, Any]) -> None:
    """Raise an error unless an evaluation is of this model, private, and charged to the packed ledger."""
    if evaluation is None:
        return
    certificate, plan = evaluation.privacy, evaluation.plan
    if plan.parameters["model"] != model_hash(model):
        raise UseError("the evaluation belongs to another model. Hint: evaluate this model, or omit the evaluation.")
    if not certificate.is_private:
        raise UseError("the evaluation is NOT PRIVATE. Hint: omit it, or evaluate with a finite epsilon.")
    require_checks(check_certificate(certificate, plan, model.schema_))
    planned = evaluation_plan(model, plan.loss, plan.neighbours, plan.parameters["invalid"])
    if [step.to_dict() for step in planned.steps] != [step.to_dict() for step in plan.steps]:
        raise UseError("the evaluation was not measured as planned for this model. Hint: evaluate it again.")
    if not _shares_charge(evaluation, model) and not _has_own_charge(evaluation, ledger):
        raise LedgerError(
            f"{ledger['ledger']} has no charge for the evaluation. Hint: evaluate with --ledger, or omit it."
        )


def _shares_charge(evaluation: Evaluation, model: Any) -> bool:
    """Return True if the entry of the fit covers an evaluation on held-out units, as a ``ParallelDoor`` requires.

    Proof: proofs/evaluation.md, "A held-out fraction". The number of the entry shows nothing by itself: another ledger
    of the same name has it too.
    """
    certificate, plan, own, fitted = evaluation.privacy, evaluation.plan, model.privacy_, model.plan_
    share = plan.parameters.get("share")
    return (
        (certificate.ledger, certificate.ledger_entry) == (own.ledger, own.ledger_entry)
        and isinstance(share, float) and 0 < share < 1
        and plan.neighbours == fitted.neighbours and plan.neighbours.in_one_part
        and plan.loss == parallel_loss(fitted.loss)
    )  # fmt: skip


def _has_own_charge(evaluation: Evaluation, ledger: Mapping[str, Any]) -> bool:
    """Return True if a settled entry of the packed ledger is for this evaluation, and charges no less than it costs."""
    certificate, plan = evaluation.privacy, evaluation.plan
    entry = next((each for each in ledger["entries"] if each["id"] == certificate.ledger_entry), None)
    return (
        entry is not None
        and certificate.ledger == ledger["ledger"]
        and entry["state"] in SETTLED and entry["not_private"] is None
        and entry["plan"] == certificate.plan_hash and entry["neighbours"] == str(plan.neighbours)
        and plan.loss.is_within(Loss.from_dict(entry["loss_exact"]))
    )  # fmt: skip


def _opening_plan(model: BaseForest) -> Plan:
    """Return the plan that opened the release door. It is computed again if later decisions refined it."""
    executed: Plan = model.plan_
    if executed.opened_as is None:
        return executed
    method, series = model._make_method(), "series" in executed.choices
    asked = model._fit_request(model.schema_, executed.public_seed, executed.choices if series else {})
    plan: Plan
    if series:
        method = method.for_series()
        plan = replan_series(
            executed, asked.loss,
            lambda loss, own: method.make_design(replace(asked, loss=loss, decisions=own)).plan, of_all=True,
        )  # fmt: skip
    else:
        plan = method.make_design(asked).plan
    if plan.fingerprint() != executed.opened_as:
        raise UseError(
            "the plan under which the release door was opened cannot be made again from the model: it is of version "
            f"{model.privacy_.version}. Hint: pass it with --plan."
        )
    return plan


def _read_plan_signature(path: str | PathLike[str], plan: Plan) -> bytes:
    """Return the signature file of a plan. Readers, who have the key and the plan, verify the signer."""
    content = read_file(signature.signature_path(path), _MAX_FILE_BYTES)
    try:
        statement = read_json(content)["statement"]
        matches = statement == signature.plan_payload(plan)
    except (VeilwoodError, KeyError, TypeError):
        matches = False
    if not matches:
        raise SignatureError(f"{short_repr(str(path))} has a signature of another plan. Hint: sign it again.")
    return content


def _day(entry: Entry) -> str:
    """Return the date of the pack."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is None:
        return date.fromisoformat(entry.time[:10]).isoformat()
    try:
        return datetime.fromtimestamp(int(epoch), UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        raise UseError(
            f"SOURCE_DATE_EPOCH={short_repr(epoch)} is not a time. Hint: set it to seconds since 1970, or unset it."
        ) from None


def _ledger_extract(ledger: Ledger) -> dict[str, Any]:
    """Return the extract of a ledger for readers, without accounts, keys and names of tables."""
    number, head = ledger.head()
    return {
        "ledger": ledger.name,
        "population": ledger.population,
        "budget": None if ledger.budget is None else str(ledger.budget),
        "budget_exact": None if ledger.budget is None else ledger.budget.to_dict(),
        "spent": str(ledger.spent),
        "spent_exact": ledger.spent.to_dict(),
        "last_event": number,
        "last_hash": head,
        "entries": [
            {
                "id": entry.id, "time": entry.time, "what": entry.what, "state": entry.state, "loss": str(entry.loss),
                "loss_exact": entry.loss.to_dict(), "neighbours": entry.neighbours, "plan": entry.plan,
                "schema": entry.schema, "not_private": entry.not_private,
            }
            for entry in ledger.entries()
        ],
    }  # fmt: skip


def _documents(facts: ReleaseFacts) -> dict[str, str]:
    """Return the documents that are computed from the facts, by file name."""
    model: Any = facts.model
    documents = {
        "README.md": model_card(facts),
        "card.toml": facts.card.text,
        "certificate.json": f"{facts.certificate.to_json()}\n",
        "certificate.md": facts.certificate.to_markdown(),
        "checklist.json": _to_json(checklist_data(facts)),
        "checklist.md": checklist_page(facts),
        "ledger.json": _to_json(facts.ledger),
        "plan.json": f"{facts.opening_plan.to_json()}\n",
        "registry.yaml": record_text(facts),
        "schema.json": _to_json(model.schema_.to_dict()),
        "schema.md": schema_page(facts),
    }
    if model.plan_.opened_as is not None:
        documents["plan-executed.json"] = f"{model.plan_.to_json()}\n"
    if facts.evaluation is not None:
        documents["quality.json"] = f"{facts.evaluation.to_json()}\n"
    return documents


def _seal(folder: Path, facts: ReleaseFacts, key: str | PathLike[str]) -> None:
    """Write the hashes, the manifest and its signature into the folder."""
    contents = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    sums = "".join(f"{_sha256(content)}  {name}\n" for name, content in contents.items()).encode()
    write_file(folder / "SHA256SUMS", sums)
    contents["SHA256SUMS"] = sums
    certificate = facts.certificate
    manifest = {
        "format": FORMAT,
        "title": facts.card.facts["title"],
        "veilwood": __version__,
        "date": facts.day,
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "unit_of_protection": certificate.unit,
        "adjacency": certificate.adjacency,
        "files": {
            name: {"what": CONTENTS[name], "bytes": len(content), "sha256": _sha256(content)}
            for name, content in sorted(contents.items())
        },
    }
    content = _to_json(manifest).encode()
    write_file(folder / MANIFEST, content)
    signature.write_signature(folder / MANIFEST, _pack_payload(content, facts.model, contents[MODEL]), key)


def _pack_payload(manifest: bytes, model: BaseForest, content: bytes) -> dict[str, Any]:
    payload = signature.model_payload(model.privacy_, content)
    del payload["certificate"]
    return {**payload, "kind": "pack", "manifest_hash": _sha256(manifest)}


def environment_bom(day: str) -> dict[str, Any]:
    """Return a CycloneDX bill of materials of this environment: interpreter and all installed distributions."""
    installed = sorted(
        {_distribution_key(each): each for each in distributions() if each.metadata["Name"]}.items()
    )  # fmt: skip
    interpreter = {
        "type": "platform", "bom-ref": "python", "name": platform.python_implementation(),
        "version": platform.python_version(),
    }  # fmt: skip
    components = [_component(name, each) for (name, _), each in installed]
    system = {"os": platform.system(), "machine": platform.machine(), "source-sha256": _source_hash()}
    subject = {"type": "application", "bom-ref": "veilwood-pack", "name": "veilwood", "version": __version__}
    bom: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": f"{day}T00:00:00Z",
            "component": subject,
            "properties": [{"name": f"veilwood:{name}", "value": value} for name, value in system.items()],
        },
        "components": [interpreter, *components],
        "dependencies": [
            {"ref": "veilwood-pack", "dependsOn": [each["bom-ref"] for each in [interpreter, *components]]}
        ],
    }
    # The number of a bill must be unique, and equal bills must have equal bytes: it follows from the content.
    return {**bom, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, _to_json(bom))}"}


def _distribution_key(distribution: Distribution) -> tuple[str, str]:
    name = re.sub(r"[-_.]+", "-", str(distribution.metadata["Name"])).lower()
    return name, str(distribution.version)


def _component(name: str, distribution: Distribution) -> dict[str, Any]:
    metadata, version = distribution.metadata, str(distribution.version)
    address = f"pkg:pypi/{name}@{version}"
    component = {"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address}
    texts = (metadata[name] for name in ("License-Expression", "License") if name in metadata)
    licence = next((" ".join(text.split()) for text in texts if 0 < len(text) < 100), "")
    return component | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def _source_hash() -> str:
    """Return the SHA-256 hash of the installed code of this package. A wheel of the same version has the same hash."""
    root = Path(str(files("veilwood")))
    digest = hashlib.sha256()
    for path in sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")):
        digest.update(f"{path} {_sha256((root / path).read_bytes())}\n".encode())
    return digest.hexdigest()


def _archive_bytes(contents: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive without compression and dates, so that its bytes depend on the files alone."""
    title = str(read_json(contents[MANIFEST])["title"])
    root = "-".join(re.findall("[a-z0-9]+", title.lower())) or "release"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(f"{root}/{name}", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # the same on every platform
            archive.writestr(entry, contents[name])
    return buffer.getvalue()


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- verifying -------------------------------------------------------------------------------------------------------


def is_pack(path: str | PathLike[str]) -> bool:
    """Return True if a path is a folder or a ZIP archive, as a pack is and a model or plan is not."""
    try:
        return Path(path).is_dir() or read_file(path, 1) == b"PK"
    except (OSError, ValueError):
        return False


def verify_pack(path: str | PathLike[str], signed_by: PublicKey) -> list[Check]:
    """Check a pack (a folder or its archive) with only the signer's public key.

    Returns
    -------
    list of Check
        Question, result and finding of each check. Files that were changed, added or removed are named.

    Raises
    ------
    SignatureError
        If the manifest or its signature is missing or invalid, or belongs to another key. Then no other file is read.
    """
    path = Path(path)
    if path.is_dir():
        return list(_check_folder(path, signed_by))
    checks = []
    with tempfile.TemporaryDirectory(prefix="veilwood-") as folder:
        same = _unpack(path, Path(folder))
        checks = list(_check_folder(Path(folder), signed_by))
    found = (
        "its bytes follow from the files in it" if same else f"{path.name} itself was changed, outside the files in it"
    )
    return [*checks, Check("Is the archive as it was written?", same, found)]


def _unpack(path: Path, folder: Path) -> bool:
    """Unpack an archive. Return True if an archive of its files has the same bytes."""
    try:
        content = read_file(path, _MAX_ARCHIVE_BYTES)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            contents = {}
            for entry in archive.infolist():
                name = entry.filename.rpartition("/")[2]
                if not name or entry.compress_type != zipfile.ZIP_STORED or entry.file_size > len(content):
                    raise ValueError(f"{entry.filename} is not a file of a pack")
                if name in contents or not re.fullmatch(r"[\w.-]+", name) or set(name) == {"."}:
                    raise ValueError(f"{entry.filename} occurs twice or has no usable name")
                contents[name] = archive.read(entry)
        for name, each in contents.items():
            (folder / name).write_bytes(each)
        return _archive_bytes(contents) == content
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        raise SignatureError(
            f"{short_repr(str(path))} is damaged: {shorten_text(str(error))}. Hint: get the archive again."
        ) from None


def _check_folder(folder: Path, signed_by: PublicKey) -> Iterator[Check]:
    manifest = folder / MANIFEST
    payload = signature.verify_signature(manifest, signed_by, "pack")
    try:
        content = read_file(manifest, _MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise SignatureError(f"cannot read {MANIFEST}: {getattr(error, 'strerror', None) or error}.") from None
    if payload.get("manifest_hash") != _sha256(content):
        raise SignatureError(f"{short_repr(str(manifest))} is not the list that was signed: its bytes differ.")
    listed = _read_manifest(content)
    yield Check("Who signed?", True, f"the holder of the given key signed this list of {len(listed)} files")
    yield from _check_bytes(folder, listed)
    present = {path.name for path in folder.iterdir()}
    extra = sorted(present - {*listed, MANIFEST, f"{MANIFEST}.sig"})
    yield Check(
        "Is anything else in it?", not extra, f"not signed: {', '.join(map(short_repr, extra))}" if extra else "no"
    )
    intact = all(_is_as_signed(folder / name, facts) for name, facts in listed.items())
    if not intact:
        yield Check("Do the documents say what the model says?", False, "not checked: files differ from those signed")
        return
    yield from _check_claims(folder, signed_by, payload, read_json(content))


def _read_manifest(content: bytes) -> dict[str, Any]:
    try:
        data = read_json(content)
        listed: dict[str, Any] = data["files"]
        if data["format"] != FORMAT or not {*CONTENTS} - {*_OPTIONAL} <= {*listed} <= {*CONTENTS}:
            raise KeyError
        if not all(isinstance(facts["sha256"], str) for facts in listed.values()):
            raise TypeError
    except (VeilwoodError, KeyError, TypeError, AttributeError):
        raise SignatureError(f"{MANIFEST} is not a list of a pack that this version ({__version__}) knows.") from None
    return listed


def _is_as_signed(path: Path, facts: Mapping[str, Any]) -> bool:
    try:
        return not path.is_symlink() and _sha256(read_file(path, _MAX_FILE_BYTES)) == facts["sha256"]
    except (OSError, ValueError):
        return False


def _check_bytes(folder: Path, listed: Mapping[str, Any]) -> Iterator[Check]:
    for name, facts in listed.items():
        path, question = folder / name, f"{name} ({CONTENTS[name]})"
        if not path.exists():
            yield Check(question, False, "it is missing")
        else:
            same = _is_as_signed(path, facts)
            yield Check(question, same, "as signed" if same else "CHANGED: its bytes are not those that were signed")


def _check_claims(
    folder: Path, signed_by: PublicKey, payload: dict[str, Any], manifest: dict[str, Any]
) -> Iterator[Check]:
    """Check the content of the files, after their bytes have been checked against the signed list."""
    question = "Is the model what its certificate claims?"
    try:
        model: Any = model_file.load(folder / MODEL, signed_by=signed_by)
    except VeilwoodError as error:
        yield Check(question, False, str(error))
        return
    certificate = model.privacy_
    yield Check(
        question, True,
        "planned again from schema, parameters and public seed: steps, sensitivities, noise and loss are the same",
    )  # fmt: skip
    yield Check("What is the guarantee?", certificate.is_private, str(certificate).split(";")[0])
    of_model = all(payload.get(name) == getattr(certificate, name) for name in ("plan_hash", "schema_hash", "ledger"))
    yield Check("Is the signature about this model and plan?", of_model, f"plan {certificate.plan_hash}")
    yield _attempt("Does the model follow from its released measurements?", lambda: _check_measurements(folder, model))
    try:
        facts = _read_facts(folder, model, manifest)
    except _ODD_CONTENT as error:
        yield Check("Can the documents be computed again?", False, shorten_text(str(error), 300))
        return
    yield _attempt("Does the ledger have the charge, within its budget?", lambda: _check_ledger(facts))
    yield _attempt("Do the documents say what the model says?", lambda: _check_documents(folder, facts, manifest))
    yield _attempt("Which code wrote the pack?", lambda: _describe_code(folder))


def _attempt(question: str, check: Callable[[], str]) -> Check:
    try:
        return Check(question, True, check())
    except _ODD_CONTENT as error:
        return Check(question, False, shorten_text(str(error), 300))


def _check_measurements(folder: Path, model: Any) -> str:
    path = folder / "measurements.parquet"
    if not path.exists():
        return "not in this pack: a model that was trained among servers keeps none"
    check_rebuilds(model, path)
    n_values = sum(each.values[-1].size for each in model.measurements_)
    return f"computed again without rows from {n_values:,} noisy values: the same model"


def _read_facts(folder: Path, model: Any, manifest: dict[str, Any]) -> ReleaseFacts:
    ledger = read_json(read_file(folder / "ledger.json", _MAX_FILE_BYTES))
    quality = folder / "quality.json"
    evaluation = Evaluation.load(quality) if quality.exists() else None
    _require_charged_evaluation(evaluation, model, ledger)
    plan = Plan.load(folder / "plan.json")
    if plan.fingerprint() != model.privacy_.plan_hash:
        raise UseError("plan.json is not the plan of the certificate.")
    return ReleaseFacts(model, plan, CustodianCard.load(folder / "card.toml"), ledger, manifest["date"], evaluation)


def _check_ledger(facts: ReleaseFacts) -> str:
    ledger, entry, certificate = facts.ledger, facts.entry, facts.certificate
    counted = [each for each in ledger["entries"] if each["state"] != "cancelled"]
    total = Loss.total(Loss.from_dict(each["loss_exact"]) for each in counted)
    if any(each["not_private"] for each in counted):
        total = Loss.unbounded()
    if entry["plan"] != certificate.plan_hash or entry["state"] not in SETTLED:
        raise LedgerError(f"entry {certificate.ledger_entry} is not the charge of this model.")
    if not facts.model.plan_.loss.is_within(Loss.from_dict(entry["loss_exact"])):
        raise LedgerError(f"entry {certificate.ledger_entry} charges less than the model costs.")
    if total.to_dict() != ledger["spent_exact"]:
        raise LedgerError("its entries do not add up to its recorded total.")
    budget = ledger["budget_exact"]
    if budget is not None and not total.is_within(Loss.from_dict(budget)):
        raise LedgerError("its entries add up to more than its budget.")
    limit = "no budget is set" if budget is None else f"of {ledger['budget']}"
    return f"entry {entry['id']} charges {entry['loss']}; {len(counted)} charges add up to {ledger['spent']}, {limit}"


def _check_documents(folder: Path, facts: ReleaseFacts, manifest: dict[str, Any]) -> str:
    if manifest["veilwood"] != __version__:
        return f"not computed again: version {manifest['veilwood']} wrote them, and this is {__version__}"
    documents = _documents(facts)
    different = [name for name, text in documents.items() if read_file(folder / name, _MAX_FILE_BYTES) != text.encode()]
    if different:
        raise UseError(f"the documents differ from those of these facts: {', '.join(different)}.")
    return (
        f"{len(documents)} documents were computed again, with the same bytes; the registry's fields allow the record; "
        f"signed only: {', '.join(_FROM_THE_ENVIRONMENT)}"
    )


def _describe_code(folder: Path) -> str:
    """Return a sentence on whether the installed code wrote the pack. Both cases are valid."""
    bill = read_json(read_file(folder / "sbom.cdx.json", _MAX_FILE_BYTES))
    values = {each["name"]: each["value"] for each in bill["metadata"]["properties"]}
    digest, version = values["veilwood:source-sha256"], bill["metadata"]["component"]["version"]
    relation = "the same as" if digest == _source_hash() else "other than"
    return f"veilwood {version}, {relation} the code installed here (sha256 of the sources: {digest})"


NOT_SHOWN: Final = (
    "that the noise was drawn as planned: no file can show it",
    "that the custodian's sentences are true, and that this ledger is the only one for these people",
)
"""Claims that no verification of a pack can check."""
