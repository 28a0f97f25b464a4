# SPDX-License-Identifier: Apache-2.0
"""Command ``veilwood audit``: attacks on estimators and other libraries, and checks of model files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.options import AsJson, Delta, Epsilon, ModelPath, Params, print_result, read_params
from veilwood.errors import UseError

audits = typer.Typer(help="Attack an estimator, a model file or another library.", rich_markup_mode=None)

ReportFolder = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for a report in Markdown and HTML.")
]
EXIT_REFUTED = 5
"""Exit code of an audit that refutes a claim."""


@audits.command("estimator")
def audit_estimator(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Family, such as random-trees, or class.")],
    epsilon: Epsilon = 1.0,
    delta: Delta = 0.0,
    param: Params = None,
    canaries: Annotated[int, typer.Option(metavar="N", min=10, help="Number of canaries.")] = 16384,
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Attack estimators with canaries, and print lower bounds on their epsilon.

    Fits once on synthetic rows (canaries), each included with probability 1/2, and guesses from the release which were
    included. The same attack must refute a control with half the noise. Exit code 5 if a claim is refuted.

    \b
    Example:
      veilwood audit estimator random-trees --epsilon 1 -o audit
    """
    from veilwood_audit import attacks
    from veilwood_audit import model_files as reports

    folder = _make_folder(out)
    params = {"delta": delta} | read_params(param)
    results = [
        attacks.attack_estimator(attacks.canary_estimator(estimator_class, epsilon, params), canaries=canaries)
        for estimator_class in attacks.estimators_of(name)
    ]
    lines = [
        f"{result.estimator}: claimed epsilon {result.epsilon:g}, lower bound {result.audited.epsilon_lower_bound:.2f} "
        f"({result.audited.correct:,} of {result.audited.guesses:,} guesses right), by its trade-off "
        f"{result.audited.tradeoff_lower_bound:.2f}; control with half the noise "
        f"{result.control.epsilon_lower_bound:.2f}: {reports.describe_verdict(result)}"
        for result in results
    ]
    lines.append(
        f"Each bound holds with probability {100 * results[0].confidence:.7f} %. "
        "A bound can refute a claim; it cannot prove one."
    )
    if folder is not None:
        from veilwood import plots  # imported here, because matplotlib would double the start-up time of every command

        rows = [
            (result.estimator, result.epsilon, result.audited.epsilon_lower_bound, result.control.epsilon_lower_bound)
            for result in results
        ]
        plots.claimed_and_attacked(rows).savefig(folder / "audit.png", dpi=120)
        written = reports.write_report(folder, "audit", reports.attack_report(results, picture="audit.png"))
        lines.append(f"Report: {', '.join(map(str, [*written, folder / 'audit.png']))}")
    print_result(as_json, {"attacks": [result.to_dict() for result in results]}, "\n".join(lines))
    _exit_if_refuted(any(result.refuted for result in results))


@audits.command("model")
def audit_model(model: ModelPath, out: ReportFolder = None, as_json: AsJson = False) -> None:
    """Check a model file: hashes, plan, noise, certificate, and absence of private values.

    Plans the release again and recomputes the privacy loss of every step from its sensitivity and scale. Lists the
    facts that cannot be checked from a file. Exit code 5 if a check fails.

    \b
    Example:
      veilwood audit model visits.veilwood
    """
    from veilwood_audit import model_files as model_audit
    from veilwood_audit import model_files as reports

    folder = _make_folder(out)
    checks = model_audit.check_file(model)
    lines = [f"{'ok ' if check.holds else 'NO '} {check.question} {check.found}" for check in checks]
    lines += ["Cannot be checked from a file:", *(f"  - {item}" for item in model_audit.NOT_CHECKABLE)]
    if folder is not None:
        written = reports.write_report(folder, "model-audit", reports.model_report(model.name, checks))
        lines.append(f"Report: {', '.join(map(str, written))}")
    data = {"checks": [check.to_dict() for check in checks], "not_checkable": list(model_audit.NOT_CHECKABLE)}
    print_result(as_json, data, "\n".join(lines))
    _exit_if_refuted(not all(check.holds for check in checks))


@audits.command("peer")
def audit_peer(
    name: Annotated[str, typer.Argument(metavar="NAME", help="diffprivlib")],
    epsilon: Epsilon = 1.0,
    runs: Annotated[int, typer.Option(metavar="N", min=10, help="Number of fits on each of the two tables.")] = 1000,
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Attack the private forest of another library, which must be installed.

    Exit code 5 if its claim is refuted.

    \b
    Example:
      veilwood audit peer diffprivlib --epsilon 1
    """
    from veilwood_audit import model_files as reports
    from veilwood_audit import peers

    if name not in peers.PEERS:
        raise UseError(f"there is no attack on {name!r}. Hint: choose one of {', '.join(peers.PEERS)}.")
    folder = _make_folder(out)
    result = peers.PEERS[name](epsilon, runs=runs)
    text = reports.peer_report(result)
    if folder is not None:
        written = reports.write_report(folder, f"{name}-audit", text)
        text += f"\nReport: {', '.join(map(str, written))}"
    print_result(as_json, result.to_dict(), text.rstrip())
    _exit_if_refuted(result.refuted)


def _make_folder(out: Path | None) -> Path | None:
    if out is not None and out.exists() and not out.is_dir():
        raise UseError(f"{out} is a file. Hint: pass the path of a folder with -o.")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    return out


def _exit_if_refuted(refuted: bool) -> None:
    if refuted:
        raise typer.Exit(EXIT_REFUTED)
