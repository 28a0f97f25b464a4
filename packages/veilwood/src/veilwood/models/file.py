# SPDX-License-Identifier: Apache-2.0
"""Model files: arrays and JSON in one safetensors file with the certificate inside, never pickle.

The model and its method (``estimators.method``) define the arrays. ONNX is in ``onnx``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse_safetensors
from safetensors.numpy import save as write_safetensors
from sklearn.utils.validation import check_is_fitted

from veilwood import errors, estimators
from veilwood._version import __version__
from veilwood.arrays import AnyArray
from veilwood.data.canonical import to_canonical_texts
from veilwood.data.encoding import class_labels
from veilwood.data.schema import Schema
from veilwood.estimators.base import BaseForest
from veilwood.estimators.parameters import parameters_in_file, to_plain_value
from veilwood.models.checks import Check, check_certificate, check_plan, loss_fits_plan, require_checks
from veilwood.privacy import signature
from veilwood.privacy.certificate import PrivacyCertificate
from veilwood.privacy.door import Measurement
from veilwood.privacy.plan import Plan
from veilwood.privacy.signature import PublicKey, model_payload
from veilwood.privacy.signature import require_same_payload as match_signature
from veilwood.privacy.signature import verify_signature as check_signature
from veilwood.safe_io import is_int_in, read_file, read_json, write_file

FORMAT: Final = 1
"""Number of the file format. A new number when a file could no longer be read by the code before; then ``load``
keeps reading every older number. A new estimator parameter with a default needs none."""

Arrays: TypeAlias = dict[str, AnyArray]

_MAX_BYTES: Final = 1 << 33  # larger than any forest that can be grown
_MAX_MESSAGE_CHARACTERS: Final = 1000  # of an error about a file
_DAMAGED: Final = "the file is damaged or was edited: {}. Hint: copy or save it again."


def save(estimator: BaseForest, path: str | PathLike[str]) -> None:
    """Write a fitted model to a file. Spends no budget.

    The file contains what the release made public and nothing else: the schema, the trees, the noisy counts of their
    leaves, every other noisy value that was released (``veilwood export --measurements``), the plan and the
    certificate. It is written atomically.

    Parameters
    ----------
    estimator : fitted estimator of this library
        The ledger and a ``random_state`` that is not an integer are not saved; the trees are.
    path : path
        The file to write, by custom with the ending ``.veilwood``. An existing file is replaced.

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> from veilwood.models.file import load, save
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, n_estimators=5, max_depth=3).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(forest, f"{folder}/car.veilwood")
    ...     again = load(f"{folder}/car.veilwood")
    >>> bool((again.predict(car.X) == forest.predict(car.X)).all()), again.privacy_ == forest.privacy_
    (True, True)
    """
    name = type(estimator).__name__
    if _estimator_class(name) is not type(estimator):
        raise errors.UseError(
            f"{name} cannot be saved. Hint: save one of {', '.join(estimators.__all__)}, outside any pipeline."
        )
    check_is_fitted(estimator, "privacy_")
    if not hasattr(estimator, "model_"):
        raise errors.UseError(f"{name} cannot be saved: it holds more than released values.")
    if not _leaf_reading_matches(estimator):
        raise errors.UseError(
            f"parameters of {name} were changed after the fit: they ask for another guarantee or model. Hint: fit."
        )
    arrays = {key: np.ascontiguousarray(array) for key, array in estimator.model_.to_arrays().items()}
    measured, more = _pack_measurements(estimator, arrays)
    metadata, arrays = {**public_metadata(estimator), "measurements": _to_json(measured)}, arrays | more
    content = sort_header(write_safetensors(arrays, {**metadata, "sha256": _content_digest(metadata, arrays)}))
    try:
        write_file(path, content)
    except errors.FileError as error:
        raise errors.ModelFileError(str(error)) from None


def public_metadata(estimator: BaseForest) -> dict[str, str]:
    """Return the metadata of a model file: everything except the arrays."""
    classes = getattr(estimator, "classes_", None)
    return {
        "format": str(FORMAT),
        "veilwood": __version__,
        "privacy": str(estimator.privacy_),
        "estimator": type(estimator).__name__,
        "parameters": _to_json(_parameter_values(estimator)),
        "schema": _to_json(estimator.schema_.to_dict()),
        "classes_dtype": "" if classes is None else classes.dtype.str,
        "plan": _to_json(estimator.plan_.to_dict()),
        "certificate": _to_json(estimator.privacy_.to_dict()),
    }


def sort_header(content: bytes) -> bytes:
    """Return the same safetensors file with a sorted header, so that equal models have equal bytes."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[start:]


def load(path: str | PathLike[str], *, signed_by: PublicKey | None = None) -> BaseForest:
    """Read a model that ``save`` wrote: parse, check, construct, and recompute its claims.

    The release is planned again from schema, parameters and public seed. Steps, sensitivities, noise, loss, shape and
    texts must equal those of the plan in the file, and the certificate must be that of the plan. Searches and the
    growth of very large forests are not repeated; ``models.checks`` lists what is not recomputed. The checksum inside
    detects accidents only. None of this is a signature: load models from sources you trust, or require a signature.
    No file can run code.

    Parameters
    ----------
    path : path
        The file.
    signed_by : path or PEM text, optional
        A public key. The model is rejected unless the holder of the key has signed exactly this file (``veilwood sign``
        writes the signature next to it). A signature shows who vouches for the file, not that the run was honest.

    Returns
    -------
    estimator
        The fitted estimator. It predicts exactly like the saved estimator; its ``ledger`` is None.

    Raises
    ------
    ModelFileError
        If the file is missing, not a model, truncated, altered, or of a later format.
    SignatureError
        With ``signed_by``, if the signature is missing or invalid, or belongs to another key or another file.
    """
    return load_signed(path, signed_by)[0]


def load_signed(path: str | PathLike[str], signed_by: PublicKey | None) -> tuple[BaseForest, dict[str, Any]]:
    """Return the model in a file and the payload of its signature, verified if there is a key."""
    try:
        content = _read_file(Path(path))
        statement = None if signed_by is None else check_signature(path, signed_by, "model")
        if statement is not None and statement.get("model_hash") != hashlib.sha256(content).hexdigest():
            # Before anything is parsed: nothing unsigned is read.
            raise errors.SignatureError(
                f"{errors.short_repr(str(path))} is not the file that was signed: its bytes differ."
            )
        model = _build_estimator(_parse_file(content))
        require_checks(check_plan(model))
        truth = model_payload(model.privacy_, content)
        if statement is not None:
            match_signature(path, statement, truth)
        return model, truth
    except errors.SignatureError:
        raise
    except errors.VeilwoodError as error:
        raise errors.ModelFileError(
            f"cannot load {errors.short_repr(str(path))}: {errors.shorten_text(str(error), _MAX_MESSAGE_CHARACTERS)}"
        ) from None


# -- parse -------------------------------------------------------------------------------------------------------


class _ParsedFile(NamedTuple):
    """A parsed file. Nothing in it has been checked yet."""

    metadata: dict[str, str]
    arrays: Arrays


def _read_file(path: Path) -> bytes:
    try:
        size = os.stat(path).st_size
        if size > _MAX_BYTES:  # a sparse file may report this size and take no space
            raise errors.ModelFileError(f"it has {size:,} bytes, more than any model.")
        return read_file(path, size)
    except FileNotFoundError:
        raise errors.ModelFileError("there is no such file. Hint: check the path.") from None
    except errors.UnreadableError as error:
        raise errors.ModelFileError(f"{error}. Hint: give the path of a model file.") from None
    except OSError as error:
        raise errors.ModelFileError(
            f"{error.strerror or error}. Hint: give the path of a readable model file."
        ) from None
    except MemoryError:
        raise errors.ModelFileError("there is not enough memory for it. Hint: use a larger machine.") from None
    except errors.ModelFileError:
        raise
    except ValueError:
        raise errors.ModelFileError("that is not a path. Hint: give the path of a model file.") from None


def _parse_file(content: bytes) -> _ParsedFile:
    try:
        header = _from_json(content[8 : 8 + int.from_bytes(content[:8], "little")].decode())
        metadata = header["__metadata__"]
        number = int(metadata["format"])
        if not all(isinstance(text, str) for text in metadata.values()):
            raise TypeError
    except (errors.ModelFileError, KeyError, TypeError, ValueError, AttributeError):
        raise errors.ModelFileError("this is not a Veilwood model, or its beginning is damaged or cut off.") from None
    if number != FORMAT:
        raise errors.ModelFileError(
            f"it has format {errors.short_repr(number)} and this version ({__version__}) reads format {FORMAT}: it was "
            "written by a newer Veilwood. Hint: run pip install --upgrade veilwood"
        )
    try:
        arrays = parse_safetensors(content)
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        raise errors.ModelFileError(_DAMAGED.format(errors.shorten_text(str(error)))) from None
    claimed = metadata.pop("sha256", None)
    if claimed != _content_digest(metadata, arrays):
        raise errors.ModelFileError(_DAMAGED.format("its contents do not match its check sum"))
    return _ParsedFile(metadata, arrays)


# -- check and construct -------------------------------------------------------------------------------------------


def load_to_audit(path: str | PathLike[str]) -> tuple[BaseForest, list[Check]]:
    """Return the model in a file with the result of every check of its claims."""
    try:
        checks: list[Check] = []
        model = _build_estimator(_parse_file(_read_file(Path(path))), checks)
        return model, [*checks, *check_plan(model, grow=True)]
    except errors.VeilwoodError as error:
        raise errors.ModelFileError(
            f"cannot load {errors.short_repr(str(path))}: {errors.shorten_text(str(error), _MAX_MESSAGE_CHARACTERS)}"
        ) from None


def _build_estimator(parts: _ParsedFile, checks: list[Check] | None = None) -> BaseForest:
    """Return the model. Append certificate checks to ``checks``; if that is None, raise on the first failure."""
    metadata, arrays = parts
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise errors.ModelFileError(_DAMAGED.format(f"array {name!r} holds something other than finite numbers"))
    estimator = construct_estimator(metadata, checks)
    schema, plan = estimator.schema, estimator.plan_
    measured = {name: arrays.pop(name) for name in _measured_names(arrays)}
    estimator._set_model(schema, estimator._make_method().restore_model(schema, plan, arrays))
    if set(arrays) != set(estimator.model_.to_arrays()):
        raise errors.ModelFileError(_DAMAGED.format("it holds other arrays than such a model has"))
    estimator.measurements_ = _unpack_measurements(metadata, {**arrays, **measured}, plan)
    if schema.classes:
        estimator.classes_ = _class_labels(schema, _label_dtype(_metadata_entry(metadata, "classes_dtype")))
        try:
            estimator._prediction_model()
        except errors.ParameterError:
            raise errors.ModelFileError(_DAMAGED.format("the class weights do not match the classes")) from None
    return estimator


def construct_estimator(metadata: Mapping[str, str], checks: list[Check] | None = None) -> BaseForest:
    """Return the estimator of a file with its certificate and plan, checked as in ``_build_estimator``; no model."""
    family = _estimator_class(_metadata_entry(metadata, "estimator"))
    if family is None:
        raise errors.ModelFileError(
            f"it holds a {errors.short_repr(metadata['estimator'])}, which this version ({__version__}) lacks."
        )
    parameters = _from_json(_metadata_entry(metadata, "parameters"))
    known = parameters_in_file(family)  # a file can name these and nothing else
    if not isinstance(parameters, dict) or not known.issuperset(parameters):
        raise errors.ModelFileError(_DAMAGED.format(f"the parameters are not those of {family.__name__}"))
    if parameters.get("epsilon") == "inf":
        parameters["epsilon"] = math.inf
    schema = Schema.from_dict(_from_json(_metadata_entry(metadata, "schema")))
    plan = Plan.from_dict(_from_json(_metadata_entry(metadata, "plan")))
    certificate = _from_json(_metadata_entry(metadata, "certificate"))
    if not isinstance(certificate, dict):
        raise errors.ModelFileError(_DAMAGED.format("there is no certificate"))
    statement = PrivacyCertificate.from_dict(certificate)
    found = check_certificate(statement, plan, schema)
    if checks is None:
        require_checks(found)
    else:
        checks += found
    # For readers of the header. Other versions may have worded it otherwise.
    if statement.version == __version__ and _metadata_entry(metadata, "privacy") != str(statement):
        raise errors.ModelFileError(_DAMAGED.format("its text about privacy is not that of its certificate"))
    if schema.task != family._task:
        raise errors.ModelFileError(_DAMAGED.format(f"{family.__name__} does not do {schema.task}"))
    _label_dtype(_metadata_entry(metadata, "classes_dtype"))

    estimator = family(schema=schema, **parameters)
    method = estimator._make_method()
    requested, neighbours = estimator._requested_privacy(schema)
    if neighbours != plan.neighbours or not loss_fits_plan(method, requested, plan):
        raise errors.ModelFileError(_DAMAGED.format("the guarantee of the parameters differs from that of the plan"))
    estimator.privacy_ = statement
    estimator.plan_ = plan
    return estimator


# -- measurements --------------------------------------------------------------------------------------------------

_MEASURED: Final = "measured_"  # begins the names of arrays that hold released values and no part of the model


def _pack_measurements(estimator: BaseForest, arrays: Arrays) -> tuple[list[Any], Arrays]:
    """Return the released values of each step as names of arrays, and those arrays that the model does not have."""
    measured: list[Any] = []
    more: Arrays = {}
    for measurement in getattr(estimator, "measurements_", ()):
        names = []
        for values in measurement.values:
            # Leaf counts are part of many models: they are written once.
            name = next((key for key, each in arrays.items() if _is_same(each, values)), f"{_MEASURED}{len(more)}")
            if name not in arrays:
                more[name] = np.ascontiguousarray(values)
            names.append(name)
        measured.append([measurement.step, names])
    return measured, more


def _unpack_measurements(metadata: Mapping[str, str], arrays: Arrays, plan: Plan) -> tuple[Measurement, ...]:
    """Return the released values in a file. It may have none, as after joint training."""
    steps = {step.name: step for step in plan.steps}
    try:
        listed = _from_json(metadata.get("measurements", "[]"))
        measured = tuple(Measurement(step, tuple(arrays[name] for name in names)) for step, names in listed)
        used = {name for _, names in listed for name in names}
        fit = len({each.step for each in measured}) == len(measured) and used.issuperset(_measured_names(arrays))
        fit = fit and all(steps[each.step].may_release(each.values) for each in measured)
    except (KeyError, TypeError, ValueError):
        fit = False
    if not fit:
        raise errors.ModelFileError(_DAMAGED.format("its measurements do not fit the steps of its plan"))
    return measured


def _is_same(one: AnyArray, other: AnyArray) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)


def _measured_names(arrays: Arrays) -> list[str]:
    return [name for name in arrays if name.startswith(_MEASURED)]


def _leaf_reading_matches(estimator: BaseForest) -> bool:
    """Return True if the parameters still lead to the guarantee and the model of the executed plan."""
    plan = estimator.plan_
    request = estimator._fit_request(estimator.schema_, plan.public_seed, plan.choices)
    promises_the_same = loss_fits_plan(estimator._make_method(), request.loss, plan)
    return request.parameters == plan.parameters and request.neighbours == plan.neighbours and promises_the_same


def _estimator_class(name: str) -> type[BaseForest] | None:
    """Return the estimator class with this name, or None if there is none."""
    found: type[BaseForest] | None = getattr(estimators, name) if name in estimators.__all__ else None
    return found


def _metadata_entry(metadata: Mapping[str, str], key: str) -> str:
    if not isinstance(metadata.get(key), str):
        raise errors.ModelFileError(_DAMAGED.format(f"it has no {key!r}"))
    return metadata[key]


def _label_dtype(text: str) -> np.dtype[Any]:
    """Return the dtype of class labels: numbers, booleans or strings. For regression, ``text`` is empty."""
    if re.fullmatch(r"([<>|=]?[biufUO][0-9]{0,6})?", text):
        with suppress(TypeError, ValueError):
            return np.dtype(text or "O")
    raise errors.ModelFileError(_DAMAGED.format(f"classes of type {errors.short_repr(text)}"))


def _class_labels(schema: Schema, dtype: np.dtype[Any]) -> AnyArray:
    """Return the classes. Files of earlier versions may have another type than the schema declares."""
    labels = class_labels(schema)
    if schema.target.label_type != "text" or dtype.kind == "O":
        return labels
    if dtype.kind == "U":
        return labels.astype(str)
    try:
        earlier = labels == "True" if dtype.kind == "b" else labels.astype(dtype)
    except (ValueError, OverflowError):
        return labels
    return earlier if to_canonical_texts(earlier) == list(schema.classes) else labels


# -- to and from JSON ----------------------------------------------------------------------------------------------


def _parameter_values(estimator: BaseForest) -> dict[str, Any]:
    given = estimator.get_params(deep=False)
    seed = given["random_state"]
    if not is_int_in(seed, 0) or int(seed) != estimator.plan_.public_seed:
        given["random_state"] = None  # a generator is no value; the plan has the seed that was used
    listed = parameters_in_file(type(estimator))
    return {name: to_plain_value(name, value) for name, value in given.items() if name in listed}


def _content_digest(metadata: Mapping[str, str], arrays: Mapping[str, AnyArray]) -> str:
    """Return the SHA-256 of the contents of a file, without the digest itself."""
    digest = hashlib.sha256(_to_json(dict(metadata)).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _to_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _from_json(text: str) -> Any:
    try:
        return read_json(text)
    except errors.VeilwoodError as error:
        raise errors.ModelFileError(_DAMAGED.format(error)) from None


_EXACT = "fractions.Fraction"  # the type of privacy losses


def skops_types(model: Any) -> list[str]:
    """Return the names of the types that skops, and hence MLflow, must trust to load a fitted model.

    Parameters
    ----------
    model : estimator
        A fitted forest of this library.

    Returns
    -------
    list of str
        Names of classes of this library and of exact fractions. A model with any other type is rejected.

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
        raise errors.UseError("skops is not installed. Hint: run pip install 'veilwood[registry]'.") from None
    if not hasattr(model, "privacy_"):
        raise errors.ModelFileError(f"{type(model).__name__} is not a fitted forest of this library.")
    found = sorted(io.get_untrusted_types(data=io.dumps(model)))
    strange = [name for name in found if name != _EXACT and not name.startswith("veilwood.")]
    if strange:
        raise errors.ModelFileError(f"this model contains {', '.join(strange)}, which no forest of this library needs.")
    return found


def sign(path: str | PathLike[str], key: str | PathLike[str]) -> Path:
    """Sign a model file or a plan, and write the signature next to it.

    Parameters
    ----------
    path : path
        A model that ``save`` wrote, or a plan. It is read and checked first, a model as by ``load``. For a plan, only
        what needs no schema is recomputed: the loss of each step and that their sum is within the loss of the plan.
        ``fit(plan=...)`` checks that schema and parameters lead to it.
    key : path
        The private key that ``veilwood sign --new-key`` wrote.

    Returns
    -------
    Path
        The signature: the path with ``.sig`` appended.
    """
    plan = _load_plan(path)
    if plan is not None:
        return signature.write_signature(path, signature.plan_payload(plan), key)
    return signature.write_signature(path, load_signed(path, None)[1], key)


def verify(
    path: str | PathLike[str], signed_by: PublicKey, plan: Plan | str | PathLike[str] | None = None
) -> dict[str, Any]:
    """Return the payload that the holder of a key has signed for a model or a plan, or raise SignatureError.

    Parameters
    ----------
    path : path
        The file; its signature is next to it.
    signed_by : path or PEM text
        The public key of the signer, from a trusted source.
    plan : Plan or path, optional
        The plan that the model must have executed, perhaps signed by another person.

    Raises
    ------
    SignatureError
        If the signature is missing or invalid, or belongs to another key or file, or if the model has another plan.
    """
    signed = _load_plan(path)
    if signed is not None:
        statement = signature.verify_signature(path, signed_by, "plan")
        signature.require_same_payload(path, statement, signature.plan_payload(signed))
    else:
        statement = load_signed(path, signed_by)[1]
    if plan is not None:
        planned = plan if isinstance(plan, Plan) else Plan.load(plan)
        if statement["plan_hash"] != planned.fingerprint():
            name, signed_plan = errors.short_repr(str(path)), errors.short_repr(statement["plan_hash"][:12])
            raise errors.SignatureError(f"{name} carries out the plan {signed_plan}, not {planned.fingerprint()[:12]}.")
    return statement


def is_plan(path: str | PathLike[str]) -> bool:
    """Return True if a file contains JSON, as a plan does and a model does not."""
    try:
        return read_file(path, 0) == b"{"
    except (OSError, ValueError):
        return False  # reading it as a model gives the clearer error


def _load_plan(path: str | PathLike[str]) -> Plan | None:
    """Return the plan in a file, or None if the file is not a plan."""
    if not is_plan(path):
        return None
    try:
        return Plan.load(path)
    except errors.PlanError:
        raise
    except errors.VeilwoodError as error:
        raise errors.PlanError(f"{errors.short_repr(str(path))} is not a plan: {error}") from None
