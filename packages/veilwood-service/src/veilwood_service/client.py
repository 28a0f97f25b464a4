# SPDX-License-Identifier: Apache-2.0
"""A client of the service: typed, with retries that never spend twice."""

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

__all__ = ["Client", "ServiceError"]

_MAX_TRIES: Final = 5
_FIRST_WAIT_SECONDS: Final = 0.2
_MEDIA_TYPES: Final = {".csv": "text/csv", ".parquet": "application/vnd.apache.parquet"}
_FINAL_STATES: Final = frozenset({"done", "failed", "cancelled"})


class ServiceError(VeilwoodError):
    """The service refused, or could not be reached; ``status`` is that of its answer, 0 without one."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Talks to a running service.

    Requests that failed on the way are sent again. What may spend carries a key that the service knows it by, so that
    a retry is answered with the outcome of the first and charges nothing.

    Parameters
    ----------
    address : str
        ``https://forest.example``
    token : str
        As the service shows it once, when it is made.
    timeout : float
        Seconds to wait for one answer.
    transport : httpx.BaseTransport, optional
        For tests.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8400", token="vw_...") as client:  # doctest: +SKIP
    ...     plan = client.plan("visits", epsilon=1.0)
    ...     print(plan["words"])
    ...     model = client.run(plan["id"])  # once a custodian has_table signed it
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
        """List the data sets, with what is left of each."""
        return self._request_list("GET", "/v1/datasets")

    def add_dataset(self, name: str, people: str, epsilon: float, delta: float = 0.0, source: str | None = None) -> Any:
        """Register a data set under a budget."""
        asked = {"name": name, "people": people, "epsilon": epsilon, "delta": delta, "source": source}
        return self._request_json("POST", "/v1/datasets", json=asked)

    def upload(self, dataset: str, table: str | PathLike[str]) -> None:
        """Upload the rows: a CSV or Parquet file."""
        path = Path(table)
        kind = _MEDIA_TYPES.get(path.suffix)
        if kind is None:
            raise ParameterError("table", path.name, "is not a table that can be uploaded", ".csv or .parquet")
        self._request_json(
            "PUT", f"/v1/datasets/{dataset}/table", content=path.read_bytes(), headers={"Content-Type": kind}
        )

    def set_schema(self, dataset: str, schema: Mapping[str, Any]) -> None:
        """Declare the schema."""
        self._request_json("PUT", f"/v1/datasets/{dataset}/schema", json=dict(schema))

    def schema(self, dataset: str) -> dict[str, Any]:
        """Return the schema."""
        return self._request_dict("GET", f"/v1/datasets/{dataset}/schema")

    def ledger(self, dataset: str) -> dict[str, Any]:
        """Return every spend; for custodians and auditors."""
        return self._request_dict("GET", f"/v1/datasets/{dataset}/ledger")

    # -- plans and models ------------------------------------------------------------------------------------------

    def plan(
        self, dataset: str, estimator: str = "private-forest", *, epsilon: float = 1.0, delta: float = 0.0, **more: Any
    ) -> dict[str, Any]:
        """Plan a training; further keywords are parameters of the estimator."""
        asked = {"estimator": estimator, "epsilon": epsilon, "delta": delta, "parameters": more}
        return self.get_plan(self._request_dict("POST", f"/v1/datasets/{dataset}/plans", json=asked)["id"])

    def plan_evaluation(self, model: str, *, epsilon: float = 0.1, delta: float = 0.0) -> dict[str, Any]:
        """Plan an evaluation of a model on the private rows."""
        asked = {"epsilon": epsilon, "delta": delta}
        return self.get_plan(self._request_dict("POST", f"/v1/models/{model}/evaluations", json=asked)["id"])

    def get_plan(self, plan: str) -> dict[str, Any]:
        """Return a plan, in words and whole."""
        return self._request_dict("GET", f"/v1/plans/{plan}")

    def sign(self, plan: str, fingerprint: str) -> dict[str, Any]:
        """Sign a plan by the hash that was read; for custodians."""
        return self._request_dict("POST", f"/v1/plans/{plan}/signature", json={"fingerprint": fingerprint})

    def run(self, plan: str, *, wait_seconds: float = 3600.0) -> dict[str, Any]:
        """Run a signed plan, wait until it is done and return what it made."""
        job = self._request_dict("POST", f"/v1/plans/{plan}/jobs", headers={"Idempotency-Key": secrets.token_hex(16)})
        until = time.monotonic() + wait_seconds
        while job["state"] not in _FINAL_STATES:
            if time.monotonic() > until:
                raise ServiceError(f"job {job['id']} is still {job['state']}. Hint: look again later.", 0)
            time.sleep(0.2)
            job = self._request_dict("GET", f"/v1/jobs/{job['id']}")
        if job["state"] != "done":
            raise ServiceError(f"job {job['id']} {job['state']}: {job['message']}", 0)
        return self.model(job["id"])

    def models(self) -> list[dict[str, Any]]:
        """List what was released."""
        return self._request_list("GET", "/v1/models")

    def model(self, model: str) -> dict[str, Any]:
        """Return one of them, with its certificate."""
        return self._request_dict("GET", f"/v1/models/{model}")

    def download(self, model: str, path: str | PathLike[str], *, onnx: bool = False) -> None:
        """Save a trained model; ``vw.load`` reads it."""
        answer = self._send_with_retries("GET", f"/v1/models/{model}/{'onnx' if onnx else 'file'}")
        Path(path).write_bytes(answer.content)

    def predict(self, model: str, rows: pd.DataFrame | list[dict[str, Any]]) -> dict[str, Any]:
        """Predict for rows; free."""
        return self._request_dict("POST", f"/v1/models/{model}/predict", json={"rows": _to_row_dicts(rows)})

    def quote(self, model: str, rows: pd.DataFrame | list[dict[str, Any]], epsilon: float | None = None) -> Any:
        """Say what a batch of private answers would cost."""
        return self._request_json(
            "POST", f"/v1/models/{model}/quote", json={"rows": _to_row_dicts(rows), "epsilon": epsilon}
        )

    def answer(self, model: str, rows: pd.DataFrame | list[dict[str, Any]], epsilon: float | None = None) -> Any:
        """Ask for private answers. Charged first; the same batch again is free, so a retry is too."""
        return self._request_json(
            "POST", f"/v1/models/{model}/answers", json={"rows": _to_row_dicts(rows), "epsilon": epsilon}
        )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _request_dict(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._request_json(method, path, **more)
        return found

    def _request_list(self, method: str, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._request_json(method, path)
        return found

    def _request_json(self, method: str, path: str, **more: Any) -> Any:
        return self._send_with_retries(method, path, **more).json()

    def _send_with_retries(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request, again where the network or the service failed on the way."""
        wait, refused = _FIRST_WAIT_SECONDS, ""
        for _ in range(_MAX_TRIES):
            try:
                answer = self._http.request(method, path, **more)
            except httpx.TransportError as error:
                refused = type(error).__name__
            except httpx.InvalidURL:
                raise UseError("the address of the service is not understood. Hint: http://127.0.0.1:8400") from None
            else:
                if answer.status_code < 500 and answer.status_code != 429:
                    return _raise_for_problem(answer)
                refused = f"status {answer.status_code}"
            time.sleep(wait)
            wait *= 2
        raise ServiceError(f"the service at {self._http.base_url} does not answer ({refused}).", 0)


def _raise_for_problem(answer: httpx.Response) -> httpx.Response:
    if answer.status_code < 400:
        return answer
    try:
        problem = answer.json()
        detail, title = str(problem["detail"]), problem["title"]
    except (ValueError, KeyError, TypeError):
        raise ServiceError(f"the service answered {answer.status_code}.", answer.status_code) from None
    if title == "budget":
        raise BudgetExceededError(detail, remaining=problem.get("remaining"))
    raise ServiceError(detail, answer.status_code)


def _to_row_dicts(rows: pd.DataFrame | list[dict[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(rows, pd.DataFrame):
        return [
            {str(name): None if pd.isna(value) else value for name, value in row.items()}
            for row in rows.astype(object).to_dict("records")
        ]
    return rows
