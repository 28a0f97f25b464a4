# SPDX-License-Identifier: Apache-2.0
"""Worker that fits models of another library. It is run by its path, in an environment with that library.

It does not import Veilwood. ``python peer_worker.py FOLDER`` reads FOLDER/table.json and FOLDER/table.npz, fits the
jobs in order, and writes FOLDER/N.npz for job N. It prints one JSON line per job: number and CPU seconds, or the reason
why the library rejected the job.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def fit_peer(peer: str, facts: dict[str, Any], X: Any, y: Any, job: dict[str, Any]) -> Any:
    """Return one fitted model. Raise ValueError if the library does not support the job."""
    columns, n_classes = facts["columns"], facts["n_classes"]
    if peer == "DP-EBM":
        from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

        if n_classes > 2:
            raise ValueError("takes two classes only")
        if job["delta"] <= 0:
            raise ValueError("needs a delta above 0")
        given = {
            "feature_types": ["continuous" if column["bounds"] else "nominal" for column in columns],
            "privacy_bounds": {i: tuple(column["bounds"]) for i, column in enumerate(columns) if column["bounds"]},
            "epsilon": job["epsilon"], "delta": job["delta"], "random_state": job["seed"], "n_jobs": 1,
        }  # fmt: skip
        frame = np.array(X, dtype=object)
        for i, column in enumerate(columns):
            if not column["bounds"]:
                frame[:, i] = [f"v{int(code)}" for code in X[:, i]]
        if n_classes:
            return CodedModel(DPExplainableBoostingClassifier(**given).fit(frame, y), columns)
        low, high = facts["target"]
        model = DPExplainableBoostingRegressor(**given, privacy_target_min=low, privacy_target_max=high)
        return CodedModel(model.fit(frame, y), columns)
    from diffprivlib.models import RandomForestClassifier  # pure epsilon-DP, which satisfies any delta

    if not n_classes:
        raise ValueError("has no regression")
    lower = [column["bounds"][0] if column["bounds"] else 0 for column in columns]
    upper = [column["bounds"][1] if column["bounds"] else column["n_values"] - 1 for column in columns]
    model = RandomForestClassifier(
        epsilon=job["epsilon"], bounds=(lower, upper), classes=list(range(n_classes)), random_state=job["seed"],
        shuffle=True,
    )  # fmt: skip
    return model.fit(X, y)


class CodedModel:
    """Model that accepts categories as codes."""

    def __init__(self, model: Any, columns: list[dict[str, Any]]) -> None:
        self.model, self.columns = model, columns
        self.classes_ = getattr(model, "classes_", None)

    def _decode_categories(self, X: Any) -> Any:
        frame = np.array(X, dtype=object)
        for i, column in enumerate(self.columns):
            if not column["bounds"]:
                frame[:, i] = [f"v{int(code)}" for code in X[:, i]]
        return frame

    def predict(self, X: Any) -> Any:
        """Return predicted labels or numbers."""
        return self.model.predict(self._decode_categories(X))

    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities."""
        return self.model.predict_proba(self._decode_categories(X))


def main(folder: Path) -> None:
    """Run all jobs of a folder."""
    warnings.simplefilter("ignore")
    facts = json.loads((folder / "table.json").read_text())
    with np.load(folder / "table.npz") as arrays:
        table = dict(arrays)
    X, y = table["X"], table["y"]
    for number, job in enumerate(facts["jobs"]):
        train, test, began = table[f"train{job['seed']}"], table[f"test{job['seed']}"], time.process_time()
        line: dict[str, Any] = {"job": number}
        try:
            model = fit_peer(facts["peer"], facts, X[train], y[train], job)
            predicted = np.asarray(model.predict(X[test]), float)
            shares = np.zeros((0, 0))
            if facts["n_classes"]:
                shares = np.zeros((len(test), facts["n_classes"]))
                shares[:, np.asarray(model.classes_, int)] = model.predict_proba(X[test])
            np.savez(folder / f"{number}.npz", predicted=predicted, shares=shares)
            line["cpu_s"] = time.process_time() - began
        except ImportError:
            raise
        except Exception as error:  # other libraries raise exceptions of any type
            line["refused"] = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
