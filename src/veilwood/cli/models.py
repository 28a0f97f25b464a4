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

from veilwood.atomic_file import write_file
from veilwood.cli.options import AsJson, Force, ModelPath, check_output, say
from veilwood.errors import UseError
from veilwood.forests.explained.effects import Effects
from veilwood.models import file as model_file
from veilwood.models.onnx import export_onnx

__all__ = ["explain", "export"]


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
    gives = "label and probabilities" if forest.task == "classification" else "value"
    text = f"Wrote {out}: columns by name in, {gives} out"
    say(as_json, {"onnx": str(out), "inputs": list(forest.schema_.feature_names)}, text, short=str(out))


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
    say(as_json, effects.to_dict(), text, short=None if out is None else str(out))


def _write_json(effects: Effects, out: Path) -> None:
    write_file(out, (json.dumps(effects.to_dict(), indent=1) + "\n").encode())


def _write_picture(effects: Effects, out: Path) -> None:
    from veilwood.plots import all_effects  # matplotlib would double the start of every other command

    write_file(out, _png(all_effects(effects)))


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
        f'<img alt="{escape(words)}" src="data:image/png;base64,{b64encode(_png(one)).decode()}">'
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


def _png(figure: Any) -> bytes:
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=120)
    return drawn.getvalue()


WRITERS: Final = {".html": _write_page, ".png": _write_picture, ".json": _write_json}
