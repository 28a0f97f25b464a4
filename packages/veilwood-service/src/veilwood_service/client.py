# SPDX-License-Identifier: Apache-2.0
"""HTTP client of the service, with retries that never charge twice."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import pandas as pd

from veilwood.errors import BudgetExceededError, ParameterError, UseError, VeilwoodError

_MAX_TRIES: Final = 5
_FIRST_WAIT_SECONDS: Final = 0.2  # doubled after each attempt
_MEDIA_TYPES: Final = {".csv": "text/csv", ".parquet": "application/vnd.apache.parquet"}
_FINAL_STATES: Final = frozenset({"done", "failed", "cancelled"})


class ServiceError(VeilwoodError):
    """The service rejected a request or is unreachable. ``status`` is the HTTP status, or 0 without a response."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """HTTP client of a running service.

    Requests that fail in transit are sent again. Requests that may charge a ledger carry an idempotency key, so a retry
    returns the outcome of the first request and charges nothing.

    Parameters
    ----------
    address : str
        Address of the service, such as ``https://forest.example``.
    token : str
        Token of an account.
    timeout : float
        Seconds to wait for a response.
    transport : httpx.BaseTransport, optional
        Transport to use instead of the network, for tests.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8400", token="vw_...") as client:  # doctest: +SKIP
    ...     plan = client.plan("visits", epsilon=1.0)
    ...     print(plan["words"])
    ...     model = client.run(plan["id"])  # after a custodian has signed it
    ...     client.predict(model["id"], [{"age": 31, "ward": "A"}])
    """

    def __init__(
        self, address: str, token: str, *, timeout: float = 60.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=address, headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"Client({str(self._http.base_url)!r})"  # never the token

    # -- data sets, for custodians ---------------------------------------------------------------------------------

    def datasets(self) -> list[dict[str, Any]]:
        """List the data sets, with the remaining budget of each."""
        return self._request_list("GET", "/v1/datasets")

    def add_dataset(self, name: str, people: str, epsilon: float, delta: float = 0.0, source: str | None = None) -> Any:
        """Register a data set with the population that it protects and its budget."""
        body = {"name": name, "people": people, "epsilon": epsilon, "delta": delta, "source": source}
        return self._request_json("POST", "/v1/datasets", json=body)

    def upload(self, dataset: str, table: str | PathLike[str]) -> None:
        """Upload a table: a CSV or Parquet file."""
        path = Path(table)
        media_type = _MEDIA_TYPES.get(path.suffix)
        if media_type is None:
            raise ParameterError("table", path.name, "is not a table file", "pass a .csv or .parquet file")
        self._request_json(
            "PUT", f"/v1/datasets/{dataset}/table", content=path.read_bytes(), headers={"Content-Type": media_type}
        )

    def set_schema(self, dataset: str, schema: Mapping[str, Any]) -> None:
        """Declare the schema of a data set."""
        self._request_json("PUT", f"/v1/datasets/{dataset}/schema", json=dict(schema))

    def schema(self, dataset: str) -> dict[str, Any]:
        """Return the schema of a data set."""
        return self._request_dict("GET", f"/v1/datasets/{dataset}/schema")

    def ledger(self, dataset: str) -> dict[str, Any]:
        """Return the ledger of a data set with all entries; for custodians and auditors."""
        return self._request_dict("GET", f"/v1/datasets/{dataset}/ledger")

    # -- plans and models ------------------------------------------------------------------------------------------

    def plan(
        self, dataset: str, estimator: str = "private-forest", *, epsilon: float = 1.0, delta: float = 0.0, **more: Any
    ) -> dict[str, Any]:
        """Plan a training and return the plan. Further keywords are parameters of the estimator."""
        body = {"estimator": estimator, "epsilon": epsilon, "delta": delta, "parameters": more}
        return self.get_plan(self._request_dict("POST", f"/v1/datasets/{dataset}/plans", json=body)["id"])

    def plan_evaluation(self, model: str, *, epsilon: float = 0.1, delta: float = 0.0) -> dict[str, Any]:
        """Plan an evaluation of a model on the private rows, and return the plan."""
        body = {"epsilon": epsilon, "delta": delta}
        return self.get_plan(self._request_dict("POST", f"/v1/models/{model}/evaluations", json=body)["id"])

    def get_plan(self, plan: str) -> dict[str, Any]:
        """Return a plan, as text and as JSON."""
        return self._request_dict("GET", f"/v1/plans/{plan}")

    def sign(self, plan: str, fingerprint: str) -> dict[str, Any]:
        """Sign a plan whose hash you have read; for custodians."""
        return self._request_dict("POST", f"/v1/plans/{plan}/signature", json={"fingerprint": fingerprint})

    def run(self, plan: str, *, wait_seconds: float = 3600.0) -> dict[str, Any]:
        """Run a signed plan, wait until it is done and return the release.

        Raises
        ------
        ServiceError
            If the job fails, is cancelled or takes longer than ``wait_seconds``.
        """
        job = self._request_dict("POST", f"/v1/plans/{plan}/jobs", headers={"Idempotency-Key": secrets.token_hex(16)})
        deadline = time.monotonic() + wait_seconds
        while job["state"] not in _FINAL_STATES:
            if time.monotonic() > deadline:
                raise ServiceError(f"job {job['id']} is still {job['state']}. Hint: fetch the model later.", 0)
            time.sleep(0.2)
            job = self._request_dict("GET", f"/v1/jobs/{job['id']}")
        if job["state"] != "done":
            raise ServiceError(f"job {job['id']} {job['state']}: {job['message']}", 0)
        return self.model(job["id"])

    def models(self) -> list[dict[str, Any]]:
        """List the releases."""
        return self._request_list("GET", "/v1/models")

    def model(self, model: str) -> dict[str, Any]:
        """Return one release with its certificate."""
        return self._request_dict("GET", f"/v1/models/{model}")

    def download(self, model: str, path: str | PathLike[str], *, onnx: bool = False) -> None:
        """Save a trained model to a file, for ``vw.load``, or as ONNX."""
        response = self._send_with_retries("GET", f"/v1/models/{model}/{'onnx' if onnx else 'file'}")
        Path(path).write_bytes(response.content)

    def predict(self, model: str, rows: pd.DataFrame | list[dict[str, Any]]) -> dict[str, Any]:
        """Predict rows. Free."""
        return self._request_dict("POST", f"/v1/models/{model}/predict", json={"rows": _to_row_dicts(rows)})

    def quote(self, model: str, rows: pd.DataFrame | list[dict[str, Any]], epsilon: float | None = None) -> Any:
        """Return the loss and the expected error of a batch of private answers. Free."""
        return self._request_json(
            "POST", f"/v1/models/{model}/quote", json={"rows": _to_row_dicts(rows), "epsilon": epsilon}
        )

    def answer(self, model: str, rows: pd.DataFrame | list[dict[str, Any]], epsilon: float | None = None) -> Any:
        """Answer a batch privately. It is charged first; repeating the same batch is free, and so is a retry."""
        return self._request_json(
            "POST", f"/v1/models/{model}/answers", json={"rows": _to_row_dicts(rows), "epsilon": epsilon}
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _request_dict(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        content: dict[str, Any] = self._request_json(method, path, **more)
        return content

    def _request_list(self, method: str, path: str) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = self._request_json(method, path)
        return content

    def _request_json(self, method: str, path: str, **more: Any) -> Any:
        return self._send_with_retries(method, path, **more).json()

    def _send_with_retries(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request, with retries after errors of the network or the service."""
        wait, failure = _FIRST_WAIT_SECONDS, ""
        for _ in range(_MAX_TRIES):
            try:
                response = self._http.request(method, path, **more)
            except httpx.TransportError as error:
                failure = type(error).__name__
            except httpx.InvalidURL:
                raise UseError(
                    "the address of the service is not a URL. Hint: pass an address like http://127.0.0.1:8400."
                ) from None
            else:
                if response.status_code < 500 and response.status_code != 429:
                    return _raise_for_problem(response)
                failure = f"status {response.status_code}"
            time.sleep(wait)
            wait *= 2
        raise ServiceError(f"the service at {self._http.base_url} does not respond ({failure}).", 0)


def _raise_for_problem(response: httpx.Response) -> httpx.Response:
    if response.status_code < 400:
        return response
    try:
        problem = response.json()
        detail, title = str(problem["detail"]), problem["title"]
    except (ValueError, KeyError, TypeError):
        raise ServiceError(f"the service returned status {response.status_code}.", response.status_code) from None
    if title == "budget":
        raise BudgetExceededError(detail, remaining=problem.get("remaining"))
    raise ServiceError(detail, response.status_code)


def _to_row_dicts(rows: pd.DataFrame | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(rows, pd.DataFrame):
        return [
            {str(name): None if pd.isna(value) else value for name, value in row.items()}
            for row in rows.astype(object).to_dict("records")
        ]
    return rows
