# SPDX-License-Identifier: Apache-2.0
"""The commands sign and verify. What a signature says is in ``privacy.signature``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.options import AsJson, Force, say
from veilwood.errors import UseError
from veilwood.models import signed
from veilwood.privacy import signature

__all__ = ["sign", "verify"]


def sign(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A model, or a plan in JSON.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="KEY", help="The private key.")] = None,
    new_key: Annotated[Path | None, typer.Option(metavar="KEY", help="Make a key pair: KEY and KEY.pub.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Sign a model or a plan; the signature stands beside it, as FILE.sig.

    It says who vouches for the file, its certificate, plan, schema and ledger entry. It does not say that the run was
    honest. Give the public key to others by a way that they trust: a key beside the file proves nothing.

    \b
    Example:
      veilwood sign --new-key clinic.key
      veilwood sign visits.veilwood --key clinic.key
    """
    if new_key is not None:
        if file is not None or key is not None:
            raise UseError("--new-key makes a key and signs nothing. Hint: sign with --key afterwards.")
        public = signature.new_key(new_key)
        text = f"Made {new_key}, to be kept secret, and {public}, to be given to those who verify."
        say(as_json, {"private_key": str(new_key), "public_key": str(public)}, text)
        return
    if file is None or key is None:
        raise UseError("what is signed, and by which key? Hint: veilwood sign FILE --key KEY")
    place = signature.signature_path(file)
    if place.exists() and not force:
        raise UseError(f"{place} exists already. Hint: --force to sign again.")
    signed.sign(file, key)
    told = f"Signed {file}: {place}"
    if signed.is_plan(file):
        told += "\nIts steps keep its loss; that schema and parameters lead to it is checked by veilwood fit --plan."
    say(as_json, {"signature": str(place)}, told, short=str(place))


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model, or a plan in JSON, with FILE.sig beside it.")],
    signed_by: Annotated[Path, typer.Option("--signed-by", metavar="PUB", help="The signer's public key.")],
    plan: Annotated[Path | None, typer.Option(metavar="PLAN", help="The plan that a model must carry out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check who signed a model or a plan, and that nothing in it was changed since.

    \b
    Example:
      veilwood verify visits.veilwood --signed-by clinic.key.pub --plan plan.json
    """
    statement = signed.verify(file, signed_by, plan)
    lines = [f"{file} is what the holder of {signed_by} has signed, a {statement['kind']}."]
    lines += [f"plan {statement['plan_hash']}", f"schema {statement['schema_hash']}"]
    if statement["kind"] == "model":
        lines.append(f"{statement['ledger']}, entry {statement['ledger_entry']}")
    lines.append("A signature says who vouches for it, not that the run was honest.")
    say(as_json, {"signed": True, **statement}, "\n".join(lines))
