# SPDX-License-Identifier: Apache-2.0
"""The commands export and explain: what a model file can be turned into, for other programs and for people."""

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
from veilwood.errors import UseError
from veilwood.forests.adaptive.effects import Effects
from veilwood.models import file as model_file
from veilwood.models import file as signed
from veilwood.models.onnx import export_onnx
from veilwood.privacy import signature
from veilwood.report import report
from veilwood.safe_io import write_file

__all__ = ["certificate", "explain", "export", "report_model", "sign", "verify"]


def export(
    model: ModelPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.onnx", help="Where to.")],
    float32: Annotated[bool, typer.Option("--float32", help="Take numbers in single precision.")] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as ONNX, to predict from raw values without Veilwood; free.

    \b
    Example:
      veilwood export visits.veilwood -o visits.onnx
    """
    check_output(out, force)
    forest: Any = model_file.load(model)
    export_onnx(forest, out, float64=not float32)
    gives = "label and probabilities" if forest._task == "classification" else "value"
    text = f"Wrote {out}: columns by name in, {gives} out"
    print_result(as_json, {"onnx": str(out), "inputs": list(forest.schema_.feature_names)}, text, quiet_text=str(out))


def explain(
    model: ModelPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A page (.html), picture (.png) or .json.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say what columns and pairs do in a private-forest, with error bars; free.

    \b
    Example:
      veilwood explain visits.veilwood
      veilwood explain visits.veilwood -o effects.html
    """
    if out is not None:
        if out.suffix not in WRITERS:
            raise UseError(f"{out} is of no kind that can be written. Hint: end it in {', '.join(WRITERS)}.")
        check_output(out, force)
    forest: Any = model_file.load(model)
    if not hasattr(forest, "explain"):
        raise UseError(f"{type(forest).__name__} has no explanation. Hint: a private-forest has.")
    effects: Effects = forest.explain()
    if out is not None:
        WRITERS[out.suffix](effects, out)
    text = str(effects) if out is None else f"{effects}\nWrote {out}"
    print_result(as_json, effects.to_dict(), text, quiet_text=None if out is None else str(out))


def _write_json(effects: Effects, out: Path) -> None:
    write_file(out, (json.dumps(effects.to_dict(), indent=1) + "\n").encode())


def _write_picture(effects: Effects, out: Path) -> None:
    from veilwood.plots import all_effects  # matplotlib would double the start of every other command

    write_file(out, _png_bytes(all_effects(effects)))


def _write_page(effects: Effects, out: Path) -> None:
    """Write one file that needs no other: pictures are inside."""
    from veilwood.plots import all_effects, caption, plot_pair

    pictures: list[tuple[Any, str]] = []
    if effects.main:
        pictures.append(
            (all_effects(effects, most=len(effects.main)), "What each column adds; the same in words above.")
        )
    for pair in effects.interactions:
        for output, name in enumerate(effects.outputs):
            unit = f"{effects.unit}: {name}" if len(effects.outputs) > 1 else effects.unit
            axes = plot_pair(pair, output=output, unit=unit)
            pictures.append((axes.figure, caption(axes)))
    shown = [
        f'<img alt="{escape(words)}" src="data:image/png;base64,{b64encode(_png_bytes(one)).decode()}">'
        for one, words in pictures
    ]
    page = f"""<!doctype html><meta charset="utf-8"><title>Effects</title>
<style>body {{ font: 15px sans-serif; margin: 2em; max-width: 70em }} img {{ max-width: 100% }}</style>
<h1>What columns do</h1>
<pre>{escape(str(effects))}</pre>
{"".join(shown)}
<p>Computed from released values alone: showing this page costs no privacy.</p>
"""
    write_file(out, page.encode())


def _png_bytes(figure: Any) -> bytes:
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


WRITERS: Final = {".html": _write_page, ".png": _write_picture, ".json": _write_json}


def report_model(
    model: ModelPath,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="REPORT.html", help="Default: MODEL's name with .html.")
    ] = None,
    evaluation: Annotated[
        Path | None, typer.Option(metavar="QUALITY.json", help="What veilwood evaluate wrote; else MODEL.quality.json.")
    ] = None,
    ledger: Annotated[str | None, typer.Option(metavar="LEDGER", help="Show its entries and budget.")] = None,
    signed_by: Annotated[
        Path | None, typer.Option("--signed-by", metavar="PUB", help="Check the signature with this public key.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model as one page to look at and print; free.

    What is promised to one person, how good the model is, what it learned, what was measured and why, the ledger, the
    certificate, the signature. The page needs no other file.

    \b
    Example:
      veilwood report visits.veilwood -o visits.html --ledger visits.db
    """
    place = model.with_suffix(".html") if out is None else out
    check_output(place, force)
    found = evaluation_path(model) if evaluation is None and evaluation_path(model).exists() else evaluation
    book = None if ledger is None else open_existing_ledger(ledger)
    report(model, place, evaluation=found, ledger=book, signed_by=signed_by)
    print_result(as_json, {"report": str(place)}, f"Wrote {place}: open it in a browser.", quiet_text=str(place))


def sign(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A model, or a plan in JSON.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="KEY", help="The private key.")] = None,
    new_key: Annotated[Path | None, typer.Option(metavar="KEY", help="Make a key pair: KEY and KEY.pub.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Sign a model or a plan; the signature stands beside it, as FILE.sig.

    It says who vouches for the file, its certificate, plan, schema and ledger entry. It does not say that the run was
    honest. Give the public key to others by a way that they trust: a key beside the file proves nothing.

    \b
    Example:
      veilwood sign --new-key clinic.key
      veilwood sign visits.veilwood --key clinic.key
    """
    if new_key is not None:
        if file is not None or key is not None:
            raise UseError("--new-key makes a key and signs nothing. Hint: sign with --key afterwards.")
        public = signature.generate_key_pair(new_key)
        text = f"Made {new_key}, to be kept secret, and {public}, to be given to those who verify."
        print_result(as_json, {"private_key": str(new_key), "public_key": str(public)}, text)
        return
    if file is None or key is None:
        raise UseError("what is signed, and by which key? Hint: veilwood sign FILE --key KEY")
    place = signature.signature_path(file)
    if place.exists() and not force:
        raise UseError(f"{place} exists already. Hint: --force to sign again.")
    signed.sign(file, key)
    told = f"Signed {file}: {place}"
    if signed.is_plan(file):
        told += "\nIts steps keep its loss; that schema and parameters lead to it is checked by veilwood fit --plan."
    print_result(as_json, {"signature": str(place)}, told, quiet_text=str(place))


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A model, or a plan in JSON, with FILE.sig beside it.")],
    signed_by: Annotated[Path, typer.Option("--signed-by", metavar="PUB", help="The signer's public key.")],
    plan: Annotated[Path | None, typer.Option(metavar="PLAN", help="The plan that a model must carry out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check who signed a model or a plan, and that nothing in it was changed since.

    \b
    Example:
      veilwood verify visits.veilwood --signed-by clinic.key.pub --plan plan.json
    """
    statement = signed.verify(file, signed_by, plan)
    lines = [f"{file} is what the holder of {signed_by} has signed, a {statement['kind']}."]
    lines += [f"plan {statement['plan_hash']}", f"schema {statement['schema_hash']}"]
    if statement["kind"] == "model":
        lines.append(f"{statement['ledger']}, entry {statement['ledger_entry']}")
    lines.append("A signature says who vouches for it, not that the run was honest.")
    print_result(as_json, {"signed": True, **statement}, "\n".join(lines))


def certificate(
    model: ModelPath,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as a page of HTML.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Print what a model guarantees, verified against the model.

    To whom, by which mechanism, and what that rests on: Markdown, JSON, or a page of HTML.

    \b
    Example:
      veilwood certificate visits.veilwood > visits-certificate.md
    """
    if html is not None:
        check_output(html, force)
    loaded = model_file.load(model)
    statement, plan, schema = loaded.privacy_, loaded.plan_.fingerprint(), loaded.schema_.fingerprint()
    verified = (
        f"Verified against {model.name}: its check sum holds, and its plan ({plan[:12]}...) and schema "
        f"({schema[:12]}...) are those of this certificate."
    )
    text = f"{statement.to_markdown().rstrip()}\n\n{verified}"
    if html is None:
        print_result(as_json, statement.to_dict(), text)
        return
    from veilwood.markdown_page import html_page

    html.write_text(html_page(text), encoding="utf-8")
    print_result(as_json, statement.to_dict(), f"{verified}\nWrote {html}")
