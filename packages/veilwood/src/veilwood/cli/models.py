# SPDX-License-Identifier: Apache-2.0
"""Commands for model files: export, explain, report, sign, verify and certificate."""

from __future__ import annotations

import json
from base64 import b64encode
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from veilwood.cli.fit import evaluation_path
from veilwood.cli.ledger import open_existing_ledger
from veilwood.cli.options import AsJson, Force, ModelPath, check_output, print_result
from veilwood.cli.terminal import print_markdown
from veilwood.errors import UseError
from veilwood.forests.adaptive.effects import Effects
from veilwood.models import file as model_file
from veilwood.models.onnx import export_onnx
from veilwood.privacy import signature
from veilwood.reporting import report
from veilwood.safe_io import write_file


def export(
    model: ModelPath,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="Output file: .onnx or, with --measurements, .parquet.")
    ],
    measurements: Annotated[
        bool, typer.Option("--measurements", help="Write the noisy values that the fit released, as Parquet.")
    ] = False,
    float32: Annotated[bool, typer.Option("--float32", help="Use single precision for numeric inputs.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as ONNX, or its measurements as Parquet.

    The ONNX file predicts from raw values without Veilwood. The Parquet file lists every noisy value that the fit
    released, with its step, shape, noise and privacy loss: the model is computed from these values alone. Spends no
    budget.

    \b
    Example:
      veilwood export visits.veilwood -o visits.onnx
      veilwood export visits.veilwood --measurements -o visits.parquet
    """
    check_output(out, force)
    if measurements:
        from veilwood.models.measurements import export_measurements

        n_values = export_measurements(model, out)
        text = f"Wrote {out}: {n_values:,} released values. vw.rebuild({str(out)!r}) computes the model from them."
        print_result(as_json, {"measurements": str(out), "values": n_values}, text, quiet_text=str(out))
        return
    forest: Any = model_file.load(model)
    export_onnx(forest, out, float64=not float32)
    outputs = "label and probabilities" if forest._task == "classification" else "value"
    text = f"Wrote {out}. Inputs: columns by name. Outputs: {outputs}."
    print_result(as_json, {"onnx": str(out), "inputs": list(forest.schema_.feature_names)}, text, quiet_text=str(out))


def explain(
    model: ModelPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Output file: a page (.html), figure (.png) or .json."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Print the effects of columns and pairs in a PrivateForest.

    Each effect has an error bar. Spends no budget.

    \b
    Example:
      veilwood explain visits.veilwood
      veilwood explain visits.veilwood -o effects.html
    """
    if out is not None:
        if out.suffix not in WRITERS:
            raise UseError(f"{out} has an unknown file type. Hint: end the name in {', '.join(WRITERS)}.")
        check_output(out, force)
    forest: Any = model_file.load(model)
    if not hasattr(forest, "explain"):
        raise UseError(f"{type(forest).__name__} has no effects to explain. Hint: fit a private-forest.")
    effects: Effects = forest.explain()
    if out is not None:
        WRITERS[out.suffix](effects, out)
    text = str(effects) if out is None else f"{effects}\nWrote {out}"
    print_result(as_json, effects.to_dict(), text, quiet_text=None if out is None else str(out))


def _write_json(effects: Effects, out: Path) -> None:
    write_file(out, (json.dumps(effects.to_dict(), indent=1) + "\n").encode())


def _write_picture(effects: Effects, out: Path) -> None:
    from veilwood.plots import all_effects  # matplotlib would double the start-up time of every other command

    write_file(out, _png_bytes(all_effects(effects)))


def _write_page(effects: Effects, out: Path) -> None:
    """Write one HTML file that contains its figures."""
    from veilwood.plots import all_effects, caption, plot_pair

    figures: list[tuple[Any, str]] = []
    if effects.main:
        figures.append(
            (all_effects(effects, most=len(effects.main)), "Effect of each column; listed in the text above.")
        )
    for pair in effects.interactions:
        for output, name in enumerate(effects.outputs):
            unit = f"{effects.unit}: {name}" if len(effects.outputs) > 1 else effects.unit
            axes = plot_pair(pair, output=output, unit=unit)
            figures.append((axes.figure, caption(axes)))
    images = [
        f'<img alt="{escape(text)}" src="data:image/png;base64,{b64encode(_png_bytes(figure)).decode()}">'
        for figure, text in figures
    ]
    page = f"""<!doctype html><meta charset="utf-8"><title>Effects</title>
<style>body {{ font: 15px sans-serif; margin: 2em; max-width: 70em }} img {{ max-width: 100% }}</style>
<h1>Effects of columns</h1>
<pre>{escape(str(effects))}</pre>
{"".join(images)}
<p>Computed from released values only: this page has no privacy loss.</p>
"""
    write_file(out, page.encode())


def _png_bytes(figure: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


WRITERS: Final = {".html": _write_page, ".png": _write_picture, ".json": _write_json}


def report_model(
    model: ModelPath,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Output file: a report, or a model card if its name ends in .md. Default: MODEL.html.",
        ),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(metavar="QUALITY.json", help="Output of veilwood evaluate. Default: MODEL.quality.json."),
    ] = None,
    ledger: Annotated[str | None, typer.Option(metavar="LEDGER", help="Ledger whose budget the report shows.")] = None,
    signed_by: Annotated[
        Path | None, typer.Option("--signed-by", metavar="PUB", help="Public key to check the signature with.")
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(metavar="CARD.toml", help="Card that the custodian filled in: use, limits, contact and people."),
    ] = None,
    subgroup: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=QUALITY.json", help="Evaluation of a subgroup, for comparison; repeatable."),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a one-page HTML report on a model.

    Shows the guarantee for one person, quality, effects, public assumptions, measurements and their noise, ledger,
    certificate and signature. The page does not depend on any other file. Spends no budget.

    \b
    Example:
      veilwood report visits.veilwood -o visits.html --ledger visits.db
      veilwood report visits.veilwood --card card.toml --subgroup women=women.json -o visits.md
    """
    path = model.with_suffix(".html") if out is None else out
    check_output(path, force)
    default = evaluation_path(model)
    evaluation = default if evaluation is None and default.exists() else evaluation
    opened = None if ledger is None else open_existing_ledger(ledger)
    groups = dict(_split_assignment(text) for text in subgroup or ())
    report(model, path, evaluation=evaluation, ledger=opened, signed_by=signed_by, card=card, subgroups=groups)
    hint = "" if path.suffix == ".md" else ": open it in a browser"
    print_result(as_json, {"report": str(path)}, f"Wrote {path}{hint}.", quiet_text=str(path))


def _split_assignment(text: str) -> tuple[str, str]:
    """Split NAME=PATH. Raise UseError if the name or the path is missing."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise UseError(f"--subgroup {text!r} must have a name and a file. Hint: write NAME=QUALITY.json.")
    return name, path


def sign(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Model file, or plan as JSON.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="KEY", help="Private key to sign with.")] = None,
    new_key: Annotated[Path | None, typer.Option(metavar="KEY", help="Key pair to create: KEY and KEY.pub.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Sign a model or a plan.

    Writes the signature next to the file, as FILE.sig. The signature states who vouches for the file, its certificate,
    plan, schema and ledger entry. It does not state that the run was honest. Give verifiers the public key over a
    channel that they trust: a key next to the file proves nothing.

    \b
    Example:
      veilwood sign --new-key clinic.key
      veilwood sign visits.veilwood --key clinic.key
    """
    if new_key is not None:
        if file is not None or key is not None:
            raise UseError(
                "--new-key only creates a key pair and must be the only option. Hint: omit the file "
                "and --key, then sign with --key."
            )
        public = signature.generate_key_pair(new_key)
        text = f"Created {new_key}, which you must keep secret, and {public}, which verifiers need."
        print_result(as_json, {"private_key": str(new_key), "public_key": str(public)}, text)
        return
    if file is None or key is None:
        raise UseError("sign needs a file and a key. Hint: run veilwood sign FILE --key KEY.")
    path = signature.signature_path(file)
    if path.exists() and not force:
        raise UseError(f"{path} exists already. Hint: pass --force to sign again.")
    model_file.sign(file, key)
    text = f"Signed {file}: {path}"
    if model_file.is_plan(file):
        text += (
            "\nThe losses of its steps are within its total loss. veilwood fit --plan checks that it "
            "follows from schema and parameters."
        )
    print_result(as_json, {"signature": str(path)}, text, quiet_text=str(path))


def verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Model file or plan with FILE.sig next to it, or a release pack.")
    ],
    signed_by: Annotated[Path, typer.Option("--signed-by", metavar="PUB", help="Public key of the signer.")],
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="Plan that the fit of the model must have executed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the signature of a model, a plan or a release pack.

    Checks who signed the file and that nothing has changed since. For a release pack (a folder or its archive), checks
    every file and every claim, and prints one line for each.

    \b
    Example:
      veilwood verify visits.veilwood --signed-by clinic.key.pub --plan plan.json
      veilwood verify visits-pack.zip --signed-by clinic.key.pub
    """
    from veilwood.release_pack.pack import is_pack

    if is_pack(file):
        from veilwood.cli.pack import verify_and_print

        if plan is not None:
            raise UseError("--plan is for models: a pack contains its plan. Hint: omit --plan.")
        verify_and_print(file, signed_by, as_json)
        return
    payload = model_file.verify(file, signed_by, plan)
    lines = [f"{file} is a {payload['kind']} signed by the holder of {signed_by}."]
    lines += [f"plan {payload['plan_hash']}", f"schema {payload['schema_hash']}"]
    if payload["kind"] == "model":
        lines.append(f"{payload['ledger']}, entry {payload['ledger_entry']}")
    lines.append("A signature states who vouches for the file, not that the run was honest.")
    print_result(as_json, {"signed": True, **payload}, "\n".join(lines))


def certificate(
    model: ModelPath,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file for an HTML page.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Print the privacy certificate of a model.

    Checks that the certificate belongs to the model. The certificate states the protected unit, the mechanisms and the
    assumptions, and is printed as Markdown or JSON, or written as an HTML page.

    \b
    Example:
      veilwood certificate visits.veilwood > visits-certificate.md
    """
    if html is not None:
        check_output(html, force)
    loaded = model_file.load(model)
    shown, plan, schema = loaded.privacy_, loaded.plan_.fingerprint(), loaded.schema_.fingerprint()
    verified = (
        f"Verified against {model.name}: its checksum is correct, and its plan ({plan[:12]}...) and schema "
        f"({schema[:12]}...) match this certificate."
    )
    text = f"{shown.to_markdown().rstrip()}\n\n{verified}"
    if html is None:
        if as_json:
            print_result(as_json, shown.to_dict(), text)
        else:
            print_markdown(text)
        return
    from veilwood.markdown_page import html_page

    html.write_text(html_page(text), encoding="utf-8")
    print_result(as_json, shown.to_dict(), f"{verified}\nWrote {html}")
