# SPDX-License-Identifier: Apache-2.0
"""HTTP client of the service, with retries that never charge twice."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import httpx
import pandas as pd

from veilwood.errors import BudgetExceededError, ParameterError, UseError, VeilwoodError

_MAX_TRIES: Final = 5
_FIRST_WAIT_SECONDS: Final = 0.2  # doubled after each attempt
_MEDIA_TYPES: Final = {".csv": "text/csv", ".parquet": "application/vnd.apache.parquet"}
_FINAL_STATES: Final = frozenset({"done", "failed", "cancelled"})
Rows = pd.DataFrame | list[dict[str, Any]]
Json = dict[str, Any]


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
        Token of an account. Without one, ``log_in`` or ``accept`` opens a session.
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
        self,
        address: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
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

    # -- accounts, in a session ------------------------------------------------------------------------------------

    def log_in(self, name: str, password: str) -> None:
        """Open a session, in which accounts and tokens can be created."""
        self._open_session("/v1/session", {"name": name, "password": password})

    def accept(self, invitation: str, password: str, name: str | None = None) -> None:
        """Set the password of an invited account, and open a session. The first account chooses its name."""
        body = {"invitation": invitation.rpartition("=")[2], "password": password, "name": name}
        self._open_session("/v1/accounts/accept", body)

    def _open_session(self, path: str, body: Json) -> None:
        self._http.headers["X-CSRF-Token"] = self._call_json("POST", path, json=body)["csrf"]

    def invite(self, name: str, roles: Sequence[str] = (), subject: str | None = None) -> str | None:
        """Create an account with these roles, or reuse an existing account, and return an invitation link."""
        path, body = "/v1/accounts", {"name": name, "roles": list(roles), "subject": subject}
        if not roles:
            path, body = f"/v1/accounts/{name}/invitation", {}
        invitation = self._call_json("POST", path, json=body)["invitation"]
        address = str(self._http.base_url).rstrip("/")
        return None if invitation is None else f"{address}/page/index.html#invitation={invitation}"

    def accounts(self) -> list[Json]:
        """List all accounts, with roles and state."""
        return cast("list[Json]", self._call_json("GET", "/v1/accounts"))

    def change_account(self, name: str, roles: Sequence[str] = (), disabled: bool | None = None) -> None:
        """Change the roles of another account, disable it or enable it. Its tokens and sessions end."""
        body = {"roles": list(roles) or None, "disabled": disabled}
        self._call_json("PATCH", f"/v1/accounts/{name}", json=body)

    def change_password(self, old: str, new: str) -> None:
        """Change your password. All tokens and other sessions end."""
        session = self._call_json("PUT", "/v1/session/password", json={"old": old, "new": new})
        self._http.headers["X-CSRF-Token"] = session["csrf"]

    def tokens(self) -> list[Json]:
        """List your tokens and sessions."""
        return cast("list[Json]", self._call_json("GET", "/v1/tokens"))

    def revoke(self, token: str) -> None:
        """Revoke a token, or end a session, by its id."""
        self._send_request("DELETE", f"/v1/tokens/{token}")

    def issue_token(self, name: str, scopes: Sequence[str], days: int = 30) -> str:
        """Create a token for scripts and return it. The token is shown only once."""
        body = {"name": name, "scopes": list(scopes), "days": days}
        return cast("str", self._call_json("POST", "/v1/tokens", json=body)["token"])

    def events(self, limit: int = 100) -> list[Json]:
        """List the recorded actions of all accounts, newest first; for custodians and auditors."""
        return self._list_records("/v1/events", limit)

    # -- data sets, for custodians ---------------------------------------------------------------------------------

    def datasets(self) -> list[Json]:
        """List the data sets, with the remaining budget of each."""
        return self._list_records("/v1/datasets")

    def add_dataset(
        self, name: str, people: str, epsilon: float, delta: float = 0.0, source: str | None = None
    ) -> Json:
        """Register a data set with the population that it protects and its budget."""
        body = {"name": name, "people": people, "epsilon": epsilon, "delta": delta, "source": source}
        return self._request_record("POST", "/v1/datasets", json=body)

    def upload(self, dataset: str, table: str | PathLike[str] | IO[bytes], media_type: str | None = None) -> None:
        """Upload a table: a CSV or Parquet file, or a stream in one of these formats with its media type."""
        if isinstance(table, str | PathLike):
            media_type = media_type or _MEDIA_TYPES.get(Path(table).suffix)
            if media_type is None:
                raise ParameterError("table", Path(table).name, "is not a table file", "pass a .csv or .parquet file")
            with Path(table).open("rb") as file:
                self.upload(dataset, file, media_type)
            return
        with tempfile.TemporaryFile() as spooled:  # a pipe has no length, and cannot be sent again
            size = sum(spooled.write(piece) for piece in _read_pieces(table))
            headers = {"Content-Type": media_type or "text/csv", "Content-Length": str(size)}
            self._send_request("PUT", f"/v1/datasets/{dataset}/table", file=spooled, headers=headers)

    def set_schema(self, dataset: str, schema: Mapping[str, Any]) -> None:
        """Declare the schema of a data set."""
        self._call_json("PUT", f"/v1/datasets/{dataset}/schema", json=dict(schema))

    def schema(self, dataset: str) -> Json:
        """Return the schema of a data set."""
        return self._request_record("GET", f"/v1/datasets/{dataset}/schema")

    def draft(self, dataset: str, target: str | None = None) -> Json:
        """Return a draft of the schema, inferred from the private rows; for custodians."""
        params = {} if target is None else {"target": target}
        return self._request_record("POST", f"/v1/datasets/{dataset}/draft", params=params)

    def add_allowance(self, dataset: str, epsilon: float, account: str = "", period: str = "") -> Json:
        """Add an allowance: a limit within the budget, for one account or all, in total or per "year" or "month"."""
        body = {"epsilon": epsilon, "account": account, "period": period}
        return self._request_record("POST", f"/v1/datasets/{dataset}/allowances", json=body)

    def allowances(self, dataset: str) -> list[Json]:
        """List the allowances of a data set, with the remaining budget of each."""
        return cast("list[Json]", self._call_json("GET", f"/v1/datasets/{dataset}/allowances"))

    def remove_allowance(self, dataset: str, allowance: str) -> None:
        """Remove an allowance. Its charges stay in the ledger."""
        self._send_request("DELETE", f"/v1/datasets/{dataset}/allowances/{allowance}")

    def ledger(self, dataset: str, limit: int = 100) -> Json:
        """Return the ledger of a data set with its newest entries; for custodians and auditors."""
        return self._request_record("GET", f"/v1/datasets/{dataset}/ledger", params={"limit": limit})

    def verify_ledger(self, dataset: str) -> str:
        """Verify the hash chain of a ledger and return its last hash."""
        return cast("str", self._call_json("POST", f"/v1/datasets/{dataset}/ledger/verify")["head"])

    def charge_certificates(self, dataset: str, certificates: Sequence[Mapping[str, Any]]) -> Json:
        """Charge the certificates of releases that a restored ledger has lost."""
        body = {"certificates": [dict(facts) for facts in certificates]}
        return self._request_record("POST", f"/v1/datasets/{dataset}/ledger/certificates", json=body)

    def thaw(self, dataset: str, reason: str, missing_epsilon: float | str) -> Json:
        """Thaw a frozen ledger. The loss of releases without a certificate must be stated, even if it is 0."""
        body = {"reason": reason, "missing_epsilon": missing_epsilon}
        return self._request_record("POST", f"/v1/datasets/{dataset}/ledger/thaw", json=body)

    def resolve(self, dataset: str, entry: int, reason: str) -> Json:
        """Settle a reservation that a crash left open. Its loss counts as spent."""
        return self._request_record("POST", f"/v1/datasets/{dataset}/ledger/{entry}/resolve", json={"reason": reason})

    def delete_table(self, dataset: str) -> None:
        """Delete the rows of a data set."""
        self._send_request("DELETE", f"/v1/datasets/{dataset}/table")

    def retire(self, dataset: str, reason: str) -> Json:
        """Delete the rows of a data set, and reject all further releases from it."""
        return self._request_record("POST", f"/v1/datasets/{dataset}/retire", json={"reason": reason})

    # -- plans and models ------------------------------------------------------------------------------------------

    def estimators(self) -> list[Json]:
        """List the estimators with their parameters."""
        return cast("list[Json]", self._call_json("GET", "/v1/estimators"))

    def plan(
        self,
        dataset: str,
        estimator: str = "private-forest",
        *,
        epsilon: float = 1.0,
        delta: float = 0.0,
        name: str = "",
        note: str = "",
        **more: Any,
    ) -> Json:
        """Plan a training run and return the plan. Further keyword arguments are parameters of the estimator."""
        body: Json = {"estimator": estimator, "epsilon": epsilon, "delta": delta, "parameters": more}
        body |= {"name": name, "note": note}
        return self.get_plan(self._call_json("POST", f"/v1/datasets/{dataset}/plans", json=body)["id"])

    def plan_evaluation(self, model: str, *, epsilon: float = 0.1, delta: float = 0.0) -> Json:
        """Plan an evaluation of a model on the private rows, and return the plan."""
        body = {"epsilon": epsilon, "delta": delta}
        return self.get_plan(self._call_json("POST", f"/v1/models/{model}/evaluations", json=body)["id"])

    def plans(self, limit: int = 100) -> list[Json]:
        """List the plans, newest first."""
        return self._list_records("/v1/plans", limit)

    def get_plan(self, plan: str) -> Json:
        """Return a plan, as text and as JSON."""
        return self._request_record("GET", f"/v1/plans/{plan}")

    def sign(
        self,
        plan: str,
        fingerprint: str,
        *,
        runs: int = 1,
        total_epsilon: float | None = None,
        askers: Sequence[str] | None = None,
    ) -> Json:
        """Sign a plan that you have read, by its hash, for a number of runs or a total epsilon; for custodians."""
        body = {"fingerprint": fingerprint, "runs": runs, "total_epsilon": total_epsilon, "askers": askers}
        return self._request_record("POST", f"/v1/plans/{plan}/signature", json=body)

    def run(self, plan: str, *, wait_seconds: float = 3600.0) -> Json:
        """Run a signed plan, wait until it is done and return the release.

        Raises
        ------
        ServiceError
            If the job fails, is cancelled or takes longer than ``wait_seconds``.
        """
        job = self._call_json("POST", f"/v1/plans/{plan}/jobs", headers={"Idempotency-Key": secrets.token_hex(16)})
        deadline = time.monotonic() + wait_seconds
        while job["state"] not in _FINAL_STATES:
            if time.monotonic() > deadline:
                raise ServiceError(f"job {job['id']} is still {job['state']}. Hint: fetch the model later.", 0)
            time.sleep(0.2)
            job = self.job(job["id"])
        if job["state"] != "done":
            raise ServiceError(f"job {job['id']} {job['state']}: {job['message']}", 0)
        return self.model(job["id"])

    def job(self, job: str) -> Json:
        """Return a job and its state."""
        return self._request_record("GET", f"/v1/jobs/{job}")

    def jobs(self, limit: int = 100) -> list[Json]:
        """List the jobs, newest first."""
        return self._list_records("/v1/jobs", limit)

    def cancel(self, job: str) -> Json:
        """Cancel a job. Its reserved loss counts as spent."""
        return self._request_record("DELETE", f"/v1/jobs/{job}")

    def models(self, limit: int = 100) -> list[Json]:
        """List the releases, newest first."""
        return self._list_records("/v1/models", limit)

    def model(self, model: str) -> Json:
        """Return one release with its certificate."""
        return self._request_record("GET", f"/v1/models/{model}")

    def rename(self, model: str, name: str, note: str | None = None) -> Json:
        """Change the name and the note of a model."""
        return self._request_record("PATCH", f"/v1/models/{model}", json={"name": name, "note": note})

    def evaluations(self, model: str) -> list[Json]:
        """List the evaluations of a model, newest first."""
        return cast("list[Json]", self._call_json("GET", f"/v1/models/{model}/evaluations"))

    def download(self, model: str, path: str | PathLike[str], *, onnx: bool = False) -> None:
        """Save a trained model to a file, for ``vw.load``, or as ONNX."""
        response = self._send_request("GET", f"/v1/models/{model}/{'onnx' if onnx else 'file'}")
        Path(path).write_bytes(response.content)

    def predict(self, model: str, rows: Rows) -> Json:
        """Return predictions for rows. They spend no budget."""
        return self._request_record("POST", f"/v1/models/{model}/predict", json={"rows": _to_row_dicts(rows)})

    def quote(self, model: str, rows: Rows, epsilon: float | None = None) -> Json:
        """Return the privacy loss and the expected error of a batch of private queries, without charging it."""
        body = {"rows": _to_row_dicts(rows), "epsilon": epsilon}
        return self._request_record("POST", f"/v1/models/{model}/quote", json=body)

    def answer(self, model: str, rows: Rows, epsilon: float | None = None) -> Json:
        """Ask a private predictor about a batch of public rows. The batch is charged once, even if repeated."""
        body = {"rows": _to_row_dicts(rows), "epsilon": epsilon}
        return self._request_record("POST", f"/v1/models/{model}/answers", json=body)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _request_record(self, method: str, path: str, **more: Any) -> Json:
        return cast("Json", self._call_json(method, path, **more))

    def _list_records(self, path: str, limit: int = 500) -> list[Json]:
        """Return the newest records of a list, page by page."""
        items, after = list[Json](), None
        while len(items) < limit:
            params = {"limit": min(limit - len(items), 500)} | ({} if after is None else {"after": after})
            page = self._call_json("GET", path, params=params)
            items += page["items"]
            after = page["next"]
            if after is None:
                break
        return items

    def _call_json(self, method: str, path: str, **more: Any) -> Any:
        return self._send_request(method, path, **more).json()

    def _send_request(self, method: str, path: str, file: IO[bytes] | None = None, **more: Any) -> httpx.Response:
        """Send a request, with retries after errors of the network or the service."""
        wait, failure = _FIRST_WAIT_SECONDS, ""
        for _ in range(_MAX_TRIES):
            if file is not None:
                file.seek(0)
                more["content"] = _read_pieces(file)
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
        raise ServiceError(
            f"the service at {self._http.base_url} does not respond ({failure}). Hint: check the address.", 0
        )


def _read_pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(1 << 20):
        yield piece


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


def _to_row_dicts(rows: Rows) -> list[dict[str, Any]]:
    if isinstance(rows, pd.DataFrame):
        return [
            {str(name): None if pd.isna(value) else value for name, value in row.items()}
            for row in rows.astype(object).to_dict("records")
        ]
    return rows
