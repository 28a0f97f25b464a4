# SPDX-License-Identifier: Apache-2.0
"""The command ``veilwood audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilwood.cli.options import AsJson, Delta, Epsilon, ModelPath, Params, print_result, read_params
from veilwood.errors import UseError

__all__ = ["audits"]

audits = typer.Typer(help="Attack an estimator, a model file or another library.", rich_markup_mode=None)

ReportFolder = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write a report (Markdown, HTML) there.")
]
EXIT_REFUTED = 5
"""Exit code of an audit that refutes a claim."""


@audits.command("estimator")
def audit_estimator(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A family, such as random-trees, or a class.")],
    epsilon: Epsilon = 1.0,
    delta: Delta = 0.0,
    param: Params = None,
    canaries: Annotated[int, typer.Option(metavar="N", min=10, help="Records to look for.")] = 16384,
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Attack estimators with canaries and say how much of their epsilon shows.

    Fits once on made-up records, each included by a fair coin, guesses from what was released which were, and does
    the same to a twin with half the noise, which must be caught. Exit code 5 if a claim is refuted.

    \b
    Example:
      veilwood audit estimator random-trees --epsilon 1 -o audit
    """
    from veilwood_audit import attacks
    from veilwood_audit import model_files as reports

    folder = _make_folder(out)
    given = {"delta": delta} | read_params(param)
    found = [
        attacks.attack_estimator(attacks.canary_estimator(kind, epsilon, given), canaries=canaries)
        for kind in attacks.estimators_of(name)
    ]
    lines = [
        f"{one.estimator}: claimed epsilon {one.epsilon:g}, shown {one.sound.epsilon_lower_bound:.2f} "
        f"({one.sound.correct:,} of {one.sound.guesses:,} guesses right); twin with half the noise "
        f"{one.twin.epsilon_lower_bound:.2f}: {reports.describe_verdict(one)}"
        for one in found
    ]
    lines.append(
        f"Each bound holds with probability {100 * found[0].confidence:.7f} %. A bound refutes; it never proves."
    )
    if folder is not None:
        from veilwood import plots  # matplotlib would double the start of every other command

        rows = [
            (one.estimator, one.epsilon, one.sound.epsilon_lower_bound, one.twin.epsilon_lower_bound) for one in found
        ]
        plots.claimed_and_attacked(rows).savefig(folder / "audit.png", dpi=120)
        written = reports.write_report(folder, "audit", reports.attack_report(found, picture="audit.png"))
        lines.append(f"Report: {', '.join(map(str, [*written, folder / 'audit.png']))}")
    print_result(as_json, {"attacks": [one.to_dict() for one in found]}, "\n".join(lines))
    _exit_if_refuted(any(one.refuted for one in found))


@audits.command("model")
def audit_model(model: ModelPath, out: ReportFolder = None, as_json: AsJson = False) -> None:
    """Check a model file: hashes, plan, noise, certificate, and that nothing private is in it.

    Plans the release afresh and recomputes every step's loss from sensitivity and scale. Says what cannot be checked
    from a file. Exit code 5 if something does not hold.

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
    runs: Annotated[int, typer.Option(metavar="N", min=10, help="Fits on each of two neighbouring tables.")] = 1000,
    out: ReportFolder = None,
    as_json: AsJson = False,
) -> None:
    """Attack another library's private forest, where it is installed.

    Exit code 5 if its claim is refuted.

    \b
    Example:
      veilwood audit peer diffprivlib --epsilon 1
    """
    from veilwood_audit import model_files as reports
    from veilwood_audit import peers

    if name not in peers.PEERS:
        raise UseError(f"there is no attack on {name!r}. Hint: one of {', '.join(peers.PEERS)}.")
    folder = _make_folder(out)
    found = peers.PEERS[name](epsilon, runs=runs)
    text = reports.peer_report(found)
    if folder is not None:
        written = reports.write_report(folder, f"{name}-audit", text)
        text += f"\nReport: {', '.join(map(str, written))}"
    print_result(as_json, found.to_dict(), text.rstrip())
    _exit_if_refuted(found.refuted)


def _make_folder(out: Path | None) -> Path | None:
    if out is not None and out.exists() and not out.is_dir():
        raise UseError(f"{out} is a file. Hint: give the path of a folder with -o.")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    return out


def _exit_if_refuted(refuted: bool) -> None:
    if refuted:
        raise typer.Exit(EXIT_REFUTED)
