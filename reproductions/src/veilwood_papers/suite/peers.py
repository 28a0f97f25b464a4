# SPDX-License-Identifier: Apache-2.0
"""Private forests of other libraries, each in its own virtual environment, created on first use.

The libraries may require other versions of scikit-learn than the installed version. ``peer_worker`` fits the models.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from veilwood.errors import SetupError
from veilwood.safe_io import cache_folder
from veilwood_papers.suite.synthetic_tables import SuiteTable
from veilwood_papers.suite.tables import FitJob, result_row, skipped_row, split_rows

WORKER: Final = Path(__file__).with_name("peer_worker.py")
FOLDER_VARIABLE: Final = "VEILWOOD_PEERS"  # environment variable: folder of the virtual environments
_MAX_ERROR_CHARACTERS: Final = 300  # characters of an installer's output that are shown, from its end


class Peer(NamedTuple):
    """Requirements of another library: the packages to install, and the module that must then be importable."""

    requirements: tuple[str, ...]
    module: str


PEERS: Final[dict[str, Peer]] = {
    "DP-EBM": Peer(("interpret-core",), "interpret.privacy"),
    # Its newest release cannot be imported with scikit-learn 1.9.
    "diffprivlib": Peer(("diffprivlib", "scikit-learn<1.9"), "diffprivlib.models"),
}


class PeerError(SetupError):
    """Error raised if another library cannot be installed or run."""


def peer_python(peer: str, print_line: Callable[[str], None] = print) -> Path:
    """Return the interpreter of a library's environment, and create the environment if it is missing.

    It is created in the user's cache, with uv if available and with venv and pip otherwise.
    """
    wanted = PEERS[peer]
    mark = hashlib.sha256(repr((wanted, sys.version_info[:2])).encode()).hexdigest()[:12]
    folder = _environments_folder() / f"{peer}-{mark}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (folder / "ready").exists():
        return python
    print_line(f"making an environment for {peer} in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PeerError(
            f"{folder.parent} cannot be made: {error.strerror}. Hint: set {FOLDER_VARIABLE} to a writable folder."
        ) from None
    if uv := shutil.which("uv"):
        _run_command([uv, "venv", "--python", sys.executable, str(folder)])
        _run_command([uv, "pip", "install", "--python", str(python), *wanted.requirements])
    else:
        _run_command([sys.executable, "-m", "venv", str(folder)])
        _run_command([str(python), "-m", "pip", "install", "--quiet", *wanted.requirements])
    _run_command([str(python), "-c", f"import {wanted.module}"])
    (folder / "ready").touch()
    return python


def _environments_folder() -> Path:
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else cache_folder("peers") or Path(tempfile.gettempdir()) / "veilwood-peers"


def _run_command(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        output = " ".join((error.stderr or error.stdout or "").split())[-_MAX_ERROR_CHARACTERS:]
        raise PeerError(f"{Path(command[0]).name} failed: {output or error.returncode}") from None
    except OSError as error:
        raise PeerError(f"{command[0]} cannot be run: {error.strerror}") from None


def fit_peer_models(
    peer: str, jobs: Sequence[FitJob], table: SuiteTable, print_line: Callable[[str], None] = print
) -> Iterator[dict[str, Any]]:
    """Fit a peer's model for each job of one table, and yield scored lines as they arrive."""
    if any(column.nullable for column in table.schema.features):
        yield from (skipped_row(job, "takes no missing values") for job in jobs)
        return
    python = peer_python(peer, print_line)
    classes = table.schema.classes
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_table(peer, jobs, table, folder)
        worker = subprocess.Popen(
            [str(python), str(WORKER), name], stdout=subprocess.PIPE, stderr=(folder / "errors").open("w"), text=True
        )
        try:
            assert worker.stdout is not None
            for line in worker.stdout:
                answer = json.loads(line)
                job = jobs[answer["job"]]
                if "refused" in answer:
                    yield skipped_row(job, answer["refused"])
                    continue
                with np.load(folder / f"{answer['job']}.npz") as arrays:
                    predicted, shares = arrays["predicted"], arrays["shares"]
                label = np.array(classes, object)[predicted.astype(int)] if classes else predicted
                _, test = split_rows(len(table.y), job.seed)
                yield result_row(job, table, test, label, shares if classes else None, answer["cpu_s"], peer)
            if worker.wait():
                output = " ".join((folder / "errors").read_text().split())[-_MAX_ERROR_CHARACTERS:]
                raise PeerError(f"its worker stopped: {output}")
        finally:
            worker.kill()
            worker.wait()


def _write_table(peer: str, jobs: Sequence[FitJob], table: SuiteTable, folder: Path) -> None:
    """Write a table for the worker: numbers, categories as codes, and the public facts."""
    schema = table.schema
    columns = []
    for column in schema.features:
        values = table.X[column.name]
        if column.kind == "categorical":
            place = {text: code for code, text in enumerate(column.values)}
            columns.append(values.astype(str).map(place).to_numpy(float))
        else:
            columns.append(values.to_numpy(float))
    place = {text: code for code, text in enumerate(schema.classes)}
    y = table.y.astype(str).map(place).to_numpy(np.int64) if schema.classes else table.y.to_numpy(float)
    parts = {}
    for seed in {job.seed for job in jobs}:
        parts[f"train{seed}"], parts[f"test{seed}"] = split_rows(len(y), seed)
    np.savez(folder / "table.npz", X=np.column_stack(columns), y=y, **parts)
    facts = {
        "peer": peer,
        "n_classes": len(schema.classes),
        "target": None if schema.classes else schema.target.bounds,
        "columns": [
            {"bounds": column.bounds if column.kind == "numeric" else None, "n_values": len(column.values)}
            for column in schema.features
        ],
        "jobs": [{"epsilon": job.epsilon, "delta": job.delta, "seed": job.seed} for job in jobs],
    }
    (folder / "table.json").write_text(json.dumps(facts))
