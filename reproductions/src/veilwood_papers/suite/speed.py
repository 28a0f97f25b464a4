# SPDX-License-Identifier: Apache-2.0
"""Speed of estimators compared with other libraries: single-threaded CPU seconds, and how they grow.

Each fit runs in its own process (``speed_worker``). Ratios to HistGradientBoosting in the same run are comparable
between machines; ``find_slowdowns`` compares two results files.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from veilwood._version import __version__
from veilwood.errors import FileError
from veilwood.safe_io import read_json, read_text
from veilwood_papers.suite.peers import PEERS, PeerError, peer_python

WORKER: Final = Path(__file__).with_name("speed_worker.py")
REFERENCE: Final = "HistGradientBoosting"
MIN_SLOWDOWN: Final = 1.25  # ratio above which a slowdown is reported
MIN_CPU_SECONDS: Final = 0.05  # differences below this are noise
ESTIMATORS: Final = ("PrivateForest", "DP-EBM", REFERENCE, "ExtraTrees", "RandomTrees", "MedianForest", "GreedyForest",
                     "MatrixForest")  # fmt: skip
MAX_ROWS: Final = {"ExtraTrees": 100_000, "MatrixForest": 100_000}  # estimators that take minutes on more rows
ONE_THREAD: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "VEILWOOD_CACHE": "off",  # a cached strategy would hide the cost of the search
}
GROWTH: Final[dict[str, tuple[float, ...]]] = {
    "rows": (10_000,), "columns": (10, 20, 40, 80), "classes": (2, 4, 8),
    "epsilon": (0.1, 1, 4, 20), "trees": (10, 100),
}  # fmt: skip

Case = dict[str, Any]
PrintLine = Callable[[str], None]


def list_cases(*, quick: bool = False) -> list[Case]:
    """Return the cases: first all estimators on the same tables, then a few with one growing parameter at a time."""
    sizes = (2_000,) if quick else (100_000, 1_000_000)
    usual = {"columns": 20, "classes": 2, "epsilon": 1.0}
    cases = [
        {"estimator": name, "rows": rows, **usual, "one_row": rows == sizes[0]}
        for rows in sizes for name in ESTIMATORS if rows <= MAX_ROWS.get(name, rows)
    ]  # fmt: skip
    base = {"rows": sizes[0], **usual}
    for axis, values in GROWTH.items():
        # The reference grows with classes and columns too; for trees, the comparison is an ordinary forest.
        names = ("RandomTrees", "ExtraTrees") if axis == "trees" else ("PrivateForest", REFERENCE)
        for name in names if axis != "epsilon" else names[:1]:
            for value in values[:1] if quick else values:
                rows = {"rows": 20_000} if axis in ("columns", "classes", "trees") and not quick else {}
                cases.append({"estimator": name, **base, **rows, axis: value, "grows": axis})
    cases += [{"estimator": name, **base, "classes": 0} for name in ("PrivateForest", REFERENCE)]
    return cases


def run_speed(*, quick: bool = False, peers: bool = True, print_line: PrintLine = print) -> dict[str, Any]:
    """Measure every case, and return the results as JSON-compatible values."""
    pythons: dict[str, Path | None] = {}
    if peers:
        for peer in PEERS:
            if peer in ESTIMATORS:
                pythons[peer] = _find_peer_python(peer, print_line)
    results = []
    for case in list_cases(quick=quick):
        name = case["estimator"]
        python = pythons.get(name) if name in PEERS else Path(sys.executable)
        if python is None:
            continue
        figures = _measure_case(case, python)
        results.append({**case, **figures})
        print_line(_format_result(results[-1]))
    return {
        "veilwood": __version__, "python": platform.python_version(), "machine": platform.machine(),
        "cores": os.cpu_count(), "import": time_imports(), "core_bytes": installed_bytes(), "results": results,
    }  # fmt: skip


def _find_peer_python(peer: str, print_line: PrintLine) -> Path | None:
    try:
        return peer_python(peer, print_line)
    except PeerError as error:
        print_line(f"{peer} is skipped: {error}")
        return None


def _measure_case(case: Case, python: Path) -> dict[str, Any]:
    done = subprocess.run(
        [str(python), str(WORKER), json.dumps(case)], capture_output=True, text=True, env={**os.environ, **ONE_THREAD}
    )
    if done.returncode:
        return {"failed": " ".join(done.stderr.split())[-300:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _format_result(result: dict[str, Any]) -> str:
    what = f"{result['estimator']}, {result['rows']:,} x {result['columns']}, epsilon {result['epsilon']:g}"
    if "failed" in result:
        return f"{what}: failed, {result['failed']}"
    return f"{what}: fit {result['fit']:.2f} s, predict {result['predict']:.2f} s"


def time_imports(times: int = 5) -> dict[str, float]:
    """Return the minimal CPU seconds of importing scikit-learn's forests, and then Veilwood in the same process."""
    clocked = (
        "import time; began = time.process_time(); import sklearn.ensemble; check_between = time.process_time(); "
        "import veilwood; print(check_between - began, time.process_time() - check_between)"
    )
    runs = [subprocess.run([sys.executable, "-c", clocked], capture_output=True, text=True) for _ in range(times)]
    both = [[float(seconds) for seconds in run.stdout.split()] for run in runs]
    return {"sklearn": min(each[0] for each in both), "veilwood_on_top": min(each[1] for each in both)}


def installed_bytes() -> dict[str, int]:
    """Return the bytes on disk of Veilwood without extras, per required package, largest first."""
    sizes: dict[str, int] = {}
    left = ["veilwood"]
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in sizes:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement of other platforms
        files = [Path(str(file.locate())) for file in package.files or ()]
        sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
        needed = [line for line in package.requires or () if "extra ==" not in line]
        left += [match.group() for line in needed if (match := re.match(r"[\w.-]+", line))]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


# -- results files -------------------------------------------------------------------------------------------------


def to_markdown(found: dict[str, Any]) -> str:
    """Return results as Markdown."""
    results = [each for each in found["results"] if "failed" not in each]
    lines = [
        "# Speed", "",
        f"Veilwood {found['veilwood']}, Python {found['python']}, {found['machine']}, {found['cores']} cores. CPU "
        "seconds of one thread, each fit in a process of its own after a small one that loads everything. Default "
        f"settings; DP-EBM with a delta of 1e-6. In brackets: times {REFERENCE} in this run.", "",
        *_side_by_side(results), "",
        "Memory is the highest during the fit, beyond what was there before it, the table among that; the table has "
        "8 bytes a cell.", "",
    ]  # fmt: skip
    for axis in GROWTH:
        lines += [f"## How it grows with {axis}", "", *_growth_table(results, axis), ""]
    numbers = [each for each in results if each["classes"] == 0]
    if numbers:
        lines += ["## Regression", "", "| | rows | fit | predict |", "|---|---|---|---|"]
        lines += [f"| {each['estimator']} | {each['rows']:,} | {each['fit']:.2f} | {each['predict']:.3f} |"
                  for each in numbers]  # fmt: skip
        lines.append("")
    imported, sizes = found["import"], found["core_bytes"]
    largest = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in list(sizes.items())[:5])
    lines += [
        "## Import and size", "",
        f"`import sklearn.ensemble` takes {imported['sklearn']:.2f} CPU s, Veilwood "
        f"{imported['veilwood_on_top']:.2f} on top. Installed without extras: {sum(sizes.values()) / 1e6:.0f} MB "
        f"({largest}).", "",
    ]  # fmt: skip
    apart = [_format_result(each) for each in found["results"] if "failed" in each]
    apart += found.get("notes", [])
    return "\n".join([*lines, *([*apart, ""] if apart else [])])


def _side_by_side(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| | rows | fit | predict | memory, MB | one row, ms | as a frame, ms |"
    yield "|---" * 7 + "|"
    plain = [each for each in results if "grows" not in each and each["classes"]]
    for each in plain:
        (reference,) = [o for o in plain if o["estimator"] == REFERENCE and o["rows"] == each["rows"]]
        cells = [f"{each[key]:.2f} ({each[key] / max(reference[key], 1e-9):.2f})" for key in ("fit", "predict")]
        cells.append(f"{each['memory_bytes'] / 1e6:.0f}" if "memory_bytes" in each else "")
        cells += [f"{each[key]:.2f}" if key in each else "" for key in ("row_ms", "frame_ms")]
        yield f"| {each['estimator']} | {each['rows']:,} | " + " | ".join(cells) + " |"


def _growth_table(results: list[dict[str, Any]], axis: str) -> Iterator[str]:
    growing = [each for each in results if each.get("grows") == axis]
    if axis == "rows":  # add the rows of the side-by-side comparison
        growing += [each for each in results if "grows" not in each and each["classes"]
                 and each["estimator"] in {one["estimator"] for one in growing}]  # fmt: skip
    values = sorted({each[axis] for each in growing})
    yield f"| CPU s of a fit, by {axis} | " + " | ".join(f"{value:,g}" for value in values) + " |"
    yield "|---" * (len(values) + 1) + "|"
    for name in dict.fromkeys(each["estimator"] for each in growing):
        seconds = {each[axis]: each["fit"] for each in growing if each["estimator"] == name}
        cells = [f"{seconds[value]:.2f}" if value in seconds else "" for value in values]
        yield f"| {name} | " + " | ".join(cells) + " |"


def find_slowdowns(old: Path, new: Path) -> list[str]:
    """Return the slowdowns between two results files, relative to the reference of the same run."""
    before, after = (_read_ratios(path) for path in (old, new))
    slowdowns = []
    for key in sorted(before.keys() & after.keys()):
        (then, _), (now, seconds) = before[key], after[key]
        if now > MIN_SLOWDOWN * then and seconds > MIN_CPU_SECONDS:
            slowdowns.append(f"{' '.join(map(str, key))}: {now / then:.2f} times as slow ({then:.3g} -> {now:.3g})")
    return slowdowns


def _read_ratios(path: Path) -> dict[tuple[Any, ...], tuple[float, float]]:
    """Return the CPU seconds of each case, relative and absolute.

    Ratios are to the reference with the same number of rows, or to the mean over all references without it.
    """
    try:
        results = [each for each in read_json(read_text(path))["results"] if "failed" not in each]
        fits = {each["rows"]: each["fit"] for each in results if each["estimator"] == REFERENCE}
        usual = sum(fits.values()) / len(fits)
        return {
            (each["estimator"], what, each["rows"], each["columns"], each["classes"], each["epsilon"],
             each.get("trees", "")): (each[what] / fits.get(each["rows"], usual), each[what])
            for each in results for what in ("fit", "predict") if each["estimator"] != REFERENCE
        }  # fmt: skip
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}.") from None
    except (KeyError, TypeError, ZeroDivisionError):
        raise FileError(
            f"{path} holds no results of bench speed. Hint: run veilwood bench speed -o FILE.json."
        ) from None
