# SPDX-License-Identifier: Apache-2.0
"""Checks of a model: its claims are recomputed from schema, parameters, plan and certificate, without data.

Loading, signing and reports reject a model for which a check fails; the audit lists all checks. A forger who changes
schema, parameters, plan, certificate and arrays consistently has made another model, which no check can detect. The
following are not recomputed:

- the released values: any values are possible under the noise,
- consequences of released values that are not in the file: the number of rows counted, the text of adaptive
  decisions, and the values and error bars of effects (their columns, pairs and groups are checked when a model is
  restored),
- whether the ledger has the entry,
- the expectations in a plan that another version of the library wrote, and the trees of large forests
  (``MAX_REGROWN_LEAVES``): ``not_recomputed`` lists them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Final, get_args

import numpy as np

from veilwood._version import __version__
from veilwood.data.schema import Schema
from veilwood.errors import ModelFileError, VeilwoodError, short_repr, shorten_text
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import Method
from veilwood.privacy import certificate as certificates
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger import NO_LEDGER, Durability
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import SAMPLING_DELTA, Loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood.privacy.time_factors import SeriesNoise, replan_series
from veilwood.safe_io import is_int_in

MAX_REGROWN_LEAVES: Final = 1 << 12
"""Maximum number of leaves for which every load regrows the trees from the public seed, in a few milliseconds."""
_BY_SERVERS: Final = (certificates.ServerNoise, certificates.Holding)
_VERSION: Final = re.compile(r"\d{1,9}(\.\d{1,9}){1,2}[-+.a-z0-9]{0,40}")
_CLOSE: Final = 1e-6  # relative; sums of floats differ in their last digits between machines


@dataclass(frozen=True)
class Check:
    """One check of a model: the question, whether it holds, and the finding."""

    question: str
    holds: bool
    found: str

    def to_dict(self) -> dict[str, Any]:
        """Return the check as a dict."""
        return asdict(self)


def require_checks(checks: Iterator[Check]) -> None:
    """Raise ModelFileError for the first check that does not hold."""
    for check in checks:
        if not check.holds:
            raise ModelFileError(f"{check.question} No: {check.found.removesuffix('.')}.")


def require_unchanged(model: BaseForest) -> None:
    """Raise ModelFileError if a model in memory does not match its certificate.

    This detects parameters set after the fit, and replaced arrays, plans and certificates.
    """
    require_checks(check_certificate(model.privacy_, model.plan_, model.schema_))
    learned = getattr(model, "model_", None)
    if learned is None:  # it answers batches, each under a plan of its own
        return
    require_checks(check_plan(model))
    arrays = learned.to_arrays()
    restored = model._make_method().restore_model(model.schema_, model.plan_, arrays)
    first, other = (np.asarray(vars(one).get("leaf_values", 0.0)) for one in (learned, restored))
    if set(arrays) != set(restored.to_arrays()) or first.shape != other.shape or not np.allclose(first, other):
        raise ModelFileError("it predicts with values other than the released values.")


# -- the certificate -------------------------------------------------------------------------------------------------


def check_certificate(certificate: certificates.PrivacyCertificate, plan: Plan, schema: Schema) -> Iterator[Check]:
    """Compare a certificate with its plan and schema."""
    fingerprint = plan.fingerprint()
    opened, foreign = plan.opened_as or fingerprint, "the certificate belongs to another plan or schema"
    of_plan = certificate.plan_hash == opened and certificate.chosen == certificates.adaptive_decisions(
        plan, fingerprint
    )
    yield Check("Is the certificate of this plan?", of_plan, f"sha256 {opened}" if of_plan else foreign)
    versions = (certificate.version, plan.version)
    one_version = _VERSION.fullmatch(plan.version) is not None and certificate.version == plan.version
    yield Check(
        "Did one version of this library plan and release it?", one_version,
        " and ".join(short_repr(each) for each in dict.fromkeys(versions)),
    )  # fmt: skip
    known = schema.fingerprint()
    of_schema = certificate.schema_hash == plan.schema_hash == known and plan.schema_name == schema.name
    yield Check("Is the certificate of this schema?", of_schema, f"sha256 {known}" if of_schema else foreign)

    private, loss = certificate.is_private, plan.loss
    claims = (certificate.adjacency, certificate.unit, certificate.mechanism, certificate.released)
    facts = (plan.neighbours.adjacency, str(plan.neighbours.unit), plan.mechanism, plan.released)
    fits = claims == facts and list(certificate.composition) == [step.to_dict() for step in plan.steps]
    fits = fits and private is (certificate.reason is None)
    fits = fits and not (private and (schema.inferred or not loss.is_bounded))
    texts = "adjacency, unit, mechanisms, what is released, and every step of the composition"
    yield Check(
        "Does the certificate say what the plan says?", fits, texts if fits else "the certificate contradicts the plan"
    )
    rests = certificate.assumptions in _possible_assumptions(certificate, plan)
    yield Check(
        "Does the certificate name what it rests on?", rests,
        f"{len(certificate.assumptions)} assumptions" if rests else "these are not the assumptions of such a release",
    )  # fmt: skip
    entered = certificate.ledger.strip() != "" and certificate.ledger_entry >= 1
    yield Check(
        "Can such an entry stand in a ledger?", entered,
        f"{short_repr(certificate.ledger)}, entry {certificate.ledger_entry}; ask for the ledger to see that it does",
    )  # fmt: skip
    promised = (None, None) if loss.epsilon is None or not private else (float(loss.epsilon), float(loss.delta))
    same = (certificate.epsilon, certificate.delta) == promised
    # That the steps add up to no more is checked whenever a Plan is made, so also when this one was loaded.
    yield Check(
        "Is the certified loss that of the plan, and do its steps add up to it?", same,
        str(loss) if same else "the certificate contradicts the plan: it claims another loss",
    )  # fmt: skip


def _possible_assumptions(certificate: certificates.PrivacyCertificate, plan: Plan) -> list[tuple[str, ...]]:
    """Return the possible assumptions of a release under this plan, for each ledger durability and use of servers."""
    unit = str(plan.neighbours.unit)
    # Certificates of version 0.1.0 name a ledger in memory where none was given.
    by_name: dict[str, tuple[Durability, ...]] = {NO_LEDGER.name: ("not",), MemoryLedger.name: ("memory", "not")}
    alone = by_name.get(certificate.ledger, ("file",))
    ways: list[tuple[Durability, certificates.ServerParticipation | None]] = [(kept, None) for kept in alone]
    ways += [
        (kept, certificates.ServerParticipation(*how))
        for kept in get_args(Durability)
        for how in product(*map(get_args, _BY_SERVERS))
    ]
    return [tuple(each.value.format(unit=unit) for each in certificates.assumptions_of(plan, *way)) for way in ways]


# -- the plan ----------------------------------------------------------------------------------------------------------


def check_plan(model: BaseForest, *, grow: bool = False) -> Iterator[Check]:
    """Plan again from schema, parameters and public seed, and compare; recompute the loss of each step.

    Parameters
    ----------
    grow : bool
        Whether trees of any size are regrown from the public seed, as the audit does.
    """
    plan, question = model.plan_, "Do the parameters lead to this plan?"
    structure = plan.choices.get("structure")
    forest = getattr(model.model_, "forest", None)
    own = structure is None or (forest is not None and forest.fingerprint() == structure)
    if structure is not None:
        yield Check(
            "Are the trees those of the plan?", own,
            f"sha256 {structure}" if own else "the plan names other trees than it has",
        )  # fmt: skip
    try:
        request = model._fit_request(model.schema_, plan.public_seed, plan.choices)
        if own and not grow and _is_large(plan):
            request = replace(request, known_forest=forest)
        method = model._make_method()
        if "series" in plan.choices:
            method = method.for_series()
            planned = replan_series(
                plan,
                request.loss,
                lambda loss, own: method.make_design(replace(request, loss=loss, decisions=own)).plan,
            )
        else:
            planned = method.replan_request(request, plan)
        differs = _plan_differences(model, planned)
    except (VeilwoodError, NotImplementedError) as error:
        yield Check(question, False, f"they cannot be planned: {shorten_text(str(error))}")
        return
    except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        yield Check(question, False, f"they cannot be planned: the plan holds odd values ({type(error).__name__})")
        return
    note = "planned afresh from schema, parameters and public seed: the same steps, sensitivities, noise and loss"
    found = f"the parameters ask for another guarantee or model than the plan gives: {', '.join(differs)}"
    yield Check(question, not differs, found if differs else note)
    if plan.loss.is_bounded:
        for step in plan.steps:
            holds, texts = _noise_keeps_loss(step)
            yield Check(f"Does the noise of {short_repr(step.name)} keep its loss?", holds, texts)


def _plan_differences(model: BaseForest, planned: Plan) -> list[str]:
    """Return the names of the fields in which the plan of a model differs from the recomputed one."""
    plan = model.plan_
    first, other = _comparable_fields(plan), _comparable_fields(planned)
    if plan.version == __version__:
        for fields, one in ((first, plan), (other, planned)):
            fields |= {"notes": one.notes, "expected quality": one.expected}
            fields |= {"the plan that opened the door": one.opened_as}
    else:  # texts and forecasts change between versions, and that hash with them
        first["whether it was refined"] = plan.opened_as is None
        other["whether it was refined"] = planned.opened_as is None
    different = [name for name in other if _to_json_text(first.get(name)) != _to_json_text(other[name])]
    seed = model.random_state
    drawn = seed is None or isinstance(seed, np.random.RandomState | np.random.Generator)
    if not drawn and not (is_int_in(seed, 0) and int(seed) == plan.public_seed):
        different.append("random_state")
    request, neighbours = model._requested_privacy(model.schema_)
    if plan.loss != planned.loss and not _sampled_together(model, planned.loss):
        different.append("loss")
    if neighbours != plan.neighbours:
        different.append("whom it protects")
    if not loss_fits_plan(model._make_method(), request, plan):
        different.append("epsilon or delta")
    if not _same_noise(model, planned.expected_leaf_mse):
        different.append("expected noise")
    return different


def _comparable_fields(plan: Plan) -> dict[str, Any]:
    steps = [step.to_dict() for step in plan.steps]
    for step in steps:  # the fit, not the plan, decides who draws the noise
        (step["exact"]["mechanism"] or {}).pop("backend", None)
    return {
        "estimator": plan.estimator, "parameters": plan.parameters, "steps": steps, "what is released": plan.released,
        "schema": [plan.schema_name, plan.schema_hash], "layout": plan.layout.to_dict(), "choices": plan.choices,
    }  # fmt: skip


def _to_json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def loss_fits_plan(method: Method[Any], requested: Loss, plan: Plan) -> bool:
    """Return True if a plan has the requested loss, or a stronger one. Jointly sampled noise adds a tiny delta."""
    if requested.delta == 0 < plan.loss.delta < SAMPLING_DELTA and plan.loss.rho is None:
        return plan.loss == Loss(requested.epsilon, plan.loss.delta)
    return plan.loss in method.may_promise(requested)


def _sampled_together(model: BaseForest, planned: Loss) -> bool:
    """Return True if the loss of the plan is the planned one plus the tiny delta of jointly sampled noise."""
    named = certificates.Assumption.SAMPLED_JOINTLY.value in model.privacy_.assumptions
    return (
        named
        and model.plan_.loss.epsilon == planned.epsilon
        and loss_fits_plan(model._make_method(), planned, model.plan_)
    )


def _same_noise(model: BaseForest, planned: float) -> bool:
    """Return True if the expected noise is as planned, or larger if each server dealt noise of its own."""
    noise = model.plan_.expected_leaf_mse
    dealt = certificates.Assumption.DEALT_JOINTLY.value in model.privacy_.assumptions
    return math.isclose(noise, planned, rel_tol=_CLOSE) or (dealt and noise > planned)


def _noise_keeps_loss(step: Step) -> tuple[bool, str]:
    """Recompute the loss of a step from sensitivity and scale. Return whether it holds, and the calculation as text."""
    loss, sensitivity = step.loss, step.sensitivity
    mechanism: Any = step.mechanism
    match mechanism:
        case DiscreteLaplace(scale=scale) | JointLaplace(scale=scale) | SparseLaplace(scale=scale):
            text = f"sensitivity {sensitivity} / scale {scale} = {sensitivity / scale} <= {loss.epsilon}"
        case DiscreteGaussian(sigma_squared=variance):
            cost = float(sensitivity / (2 * variance))
            text = f"squared sensitivity {sensitivity} / (2 sigma^2) = {cost:.6g} <= rho {float(loss.rho or 0):.6g}"
        case SeriesNoise(factor=factor):
            norm = factor.norm(squared=mechanism.is_gaussian)
            text = f"sensitivity {sensitivity} times {norm} over {factor.releases} releases: {step.loss_text}"
        case None:
            text = "no noise"
        case ThresholdedGaussian():
            text = str(step.loss_text)
        case choice:
            text = (
                f"{step.selections_per_row} selections per row at epsilon {choice.epsilon}, "
                f"range {choice.score_range}: {step.loss_text}"
            )
    return step.has_enough_noise, text


# -- what was not checked ----------------------------------------------------------------------------------------------


def _is_large(plan: Plan) -> bool:
    return "structure" in plan.choices and plan.layout.leaves > MAX_REGROWN_LEAVES


def not_recomputed(model: BaseForest) -> list[str]:
    """List the claims of this model that were not recomputed."""
    plan, texts = model.plan_, list[str]()
    if not hasattr(model, "model_"):
        texts.append("its plan: each batch that it answers has one of its own, made from rows that no report holds")
    if plan.version != __version__:
        texts.append(
            "what its plan tells people to expect, and the text about privacy in its header: version "
            f"{plan.version} wrote them, and this is {__version__}"
        )
    if _is_large(plan):
        texts.append(
            f"that its trees grow from the public seed: they have more than {MAX_REGROWN_LEAVES:,} leaves "
            "(veilwood audit model grows them)"
        )
    if plan.learned:
        texts.append("the text of its adaptive decisions, and the values of effects and their error bars")
    if "strategies" in plan.choices:
        texts.append("that no strategy with less noise exists: the search is not run again")
    texts.append(f"that {model.privacy_.ledger} has entry {model.privacy_.ledger_entry}: pass the ledger to see it")
    return texts
