# SPDX-License-Identifier: Apache-2.0
"""Command ``pack``, and verification of release packs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.fit import evaluation_path
from veilwood.cli.ledger import open_existing_ledger
from veilwood.cli.options import AsJson, check_output, print_result
from veilwood.errors import SignatureError, UseError
from veilwood.release_pack.card import card_template
from veilwood.release_pack.pack import NOT_SHOWN, verify_pack, write_pack
from veilwood.reporting.custodian import SENTENCES
from veilwood.safe_io import write_file


def pack(
    model: Annotated[Path | None, typer.Argument(metavar="MODEL", help="Model file written by veilwood fit.")] = None,
    ledger: Annotated[str | None, typer.Option(metavar="LEDGER", help="Ledger that the fit charged.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="KEY", help="Private key to sign with.")] = None,
    card: Annotated[
        Path | None,
        typer.Option(metavar="CARD.toml", help="Card that you filled in: facts that no other file contains."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Output folder; the archive is DIR.zip.")
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(metavar="QUALITY.json", help="Output of veilwood evaluate. Default: MODEL.quality.json."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN.json", help="Approved plan; its signature is included.")
    ] = None,
    new_card: Annotated[
        Path | None,
        typer.Option(metavar="CARD.toml", help="Output file for an empty card; no other option is allowed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a signed release pack: a model with all its documents.

    The folder contains the model, certificate, plan, schema with the sources of its bounds, measurements, report, model
    card, an extract of the ledger, a record for the registry of deployments, a checklist based on NIST SP 800-226, a
    bill of materials, and hashes. Anyone can check the pack with veilwood verify and the public key. Spends no budget.

    \b
    Example:
      veilwood pack --new-card card.toml
      veilwood pack visits.veilwood --ledger visits.db --key clinic.key --card card.toml -o visits-pack
    """
    if new_card is not None:
        if any(each is not None for each in (model, ledger, key, card, out, evaluation, plan)):
            raise UseError(
                "--new-card only writes a card and must be the only option. Hint: fill in the card, "
                "then pack with --card."
            )
        check_output(new_card, force=False)
        write_file(new_card, card_template().encode())
        text = f"Wrote {new_card}. Answer its {len(SENTENCES)} questions and the facts above them."
        print_result(as_json, {"card": str(new_card)}, text, quiet_text=str(new_card))
        return
    if model is None or ledger is None or key is None or card is None or out is None:
        raise UseError(
            "pack needs a model, ledger, key, card and folder. "
            "Hint: run veilwood pack MODEL --ledger L --key K --card card.toml -o DIR."
        )
    default = evaluation_path(model)
    evaluation = default if evaluation is None and default.exists() else evaluation
    opened = open_existing_ledger(ledger)
    archive = write_pack(model, out, ledger=opened, key=key, card=card, evaluation=evaluation, plan=plan)
    text = f"Wrote {out} and {archive}.\nTo check it: veilwood verify {archive} --signed-by {key}.pub"
    print_result(as_json, {"pack": str(out), "archive": str(archive)}, text, quiet_text=str(out))


def verify_and_print(path: Path, signed_by: Path, as_json: bool) -> None:
    """Verify a pack and print one line per check. Raise SignatureError if any check fails, naming each."""
    checks = verify_pack(path, signed_by)
    failed = [check for check in checks if not check.holds]
    lines = [f"{'holds' if check.holds else 'FAILS':<6} {check.question}: {check.found}" for check in checks]
    lines += [f"{'open':<6} Not shown: {each}." for each in NOT_SHOWN]
    data = {"holds": not failed, "checks": [check.to_dict() for check in checks], "not_shown": list(NOT_SHOWN)}
    problems = "\n".join(line for line in lines if line.startswith("FAILS"))
    print_result(as_json, data, "\n".join(lines), quiet_text=problems or "holds")
    if failed:
        raise SignatureError(
            f"{path} is not the pack that was signed, or is inconsistent: "
            f"{'; '.join(check.question for check in failed)}. Hint: get it from the publisher again."
        )
