# SPDX-License-Identifier: Apache-2.0
"""Signing and verifying models and plans. What is signed is said in ``privacy.signature``."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from veilwood.bounded import read_file
from veilwood.errors import PlanError, SignatureError, VeilwoodError
from veilwood.models import file as model_file
from veilwood.privacy import signature
from veilwood.privacy.plan import Plan
from veilwood.privacy.signature import PublicKey
from veilwood.wording import shown

__all__ = ["is_plan", "sign", "verify"]


def sign(path: str | PathLike[str], key: str | PathLike[str]) -> Path:
    """Sign a model file or a plan, and write the signature beside it.

    Parameters
    ----------
    path : path
        A model that ``save`` wrote, or a plan. It is read and checked first, a model as by ``load``. Of a plan only
        what needs no schema is recomputed: what each step costs, and that all of them keep the promise. That schema and
        parameters lead to it is checked by ``fit(plan=...)``.
    key : path
        The private key, as ``veilwood sign --new-key`` made it.

    Returns
    -------
    Path
        Of the signature: the path with ``.sig`` added.
    """
    plan = _plan_in(path)
    if plan is not None:
        return signature.write(path, signature.statement_of_plan(plan), key)
    return signature.write(path, model_file.load_signed(path, None)[1], key)


def verify(
    path: str | PathLike[str], signed_by: PublicKey, plan: Plan | str | PathLike[str] | None = None
) -> dict[str, Any]:
    """Return the statement that the holder of a key has signed about a model or a plan, or refuse.

    Parameters
    ----------
    path : path
        The file; its signature stands beside it.
    signed_by : path or PEM text
        The signer's public key, from a source that is trusted.
    plan : Plan or path, optional
        The plan that the model is said to carry out, perhaps signed by somebody else before.

    Raises
    ------
    SignatureError
        If the signature is missing, broken, of another key or of another file, or the model is of another plan.
    """
    signed = _plan_in(path)
    if signed is not None:
        statement = signature.check(path, signed_by, "plan")
        signature.match(path, statement, signature.statement_of_plan(signed))
    else:
        statement = model_file.load_signed(path, signed_by)[1]
    if plan is not None:
        planned = plan if isinstance(plan, Plan) else Plan.load(plan)
        if statement["plan_hash"] != planned.fingerprint():
            raise SignatureError(
                f"{shown(str(path))} carries out the plan {shown(statement['plan_hash'][:12])}, not "
                f"{planned.fingerprint()[:12]}."
            )
    return statement


def is_plan(path: str | PathLike[str]) -> bool:
    """Whether a file holds JSON, as a plan does and a model does not."""
    try:
        return read_file(path, 0) == b"{"
    except (OSError, ValueError):
        return False  # the model file says it better


def _plan_in(path: str | PathLike[str]) -> Plan | None:
    """Return the plan in a file, or None where there is none."""
    if not is_plan(path):
        return None
    try:
        return Plan.load(path)
    except PlanError:
        raise
    except VeilwoodError as error:
        raise PlanError(f"{shown(str(path))} is not a plan: {error}") from None
