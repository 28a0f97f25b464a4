# SPDX-License-Identifier: Apache-2.0
"""Put the pages of the site together from the whole repository, so that each text lives in one place only.

Run: python docs/assemble.py FOLDER

Pages of docs/ are copied, proofs and results become pages beside them, and the reference is written from the public
names. Links between files of the repository become links between pages. A link to a file that is not on the site
becomes its name; a link to nothing is refused.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```+|~~~+|:::+).*?^\1\s*$", flags=re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
INCLUDE = re.compile(r"^```\{include\} (\S+)\n(.*?)^```", flags=re.M | re.S)
COPIED = ("*.png", "*.svg", "*.py", "_static/*")

# The reference, by what one is looking for; a test compares it with the public names.
REFERENCE: dict[str, tuple[str, tuple[str, ...]]] = {
    "estimators": ("Estimators", (
        "PrivateForestClassifier", "PrivateForestRegressor", "RandomTreesClassifier", "RandomTreesRegressor",
        "MatrixForestClassifier", "MatrixForestPredictor", "MedianForestClassifier", "MedianForestRegressor",
        "GreedyForestClassifier", "GreedyForestRegressor",
    )),
    "tables": ("Schemas and tables", (
        "Schema", "Column", "Dialect", "discover", "Discovery", "read_table", "Query", "spool", "datasets",
    )),
    "privacy": ("Plans, units, ledgers, certificates", (
        "Plan", "Rows", "RowsOf", "PrivacyCertificate", "open_ledger", "Ledger", "SQLiteLedger", "MemoryLedger",
        "process_spend",
    )),
    "models": ("Models, quality, settings", (
        "save", "load", "export_onnx", "skops_types", "report", "evaluate", "Evaluation", "tune", "Tuning",
        "PrivateSearch",
    )),
    "rooms": ("Pictures, GPU, several owners", ("plots", "gpu", "secure", "__version__")),
    "errors": ("Errors and warnings", (
        "VeilwoodError", "SchemaError", "UndeclaredSchemaError", "OutOfSchemaError", "DomainTooLargeError",
        "BudgetExceededError", "LedgerError", "NotPrivateError", "ModelFileError", "SignatureError", "PartyError",
        "PrivacyWarning", "UtilityWarning",
    )),
}  # fmt: skip


class BrokenLinkError(Exception):
    """A page points at something that is not there."""


def pages() -> dict[str, str]:
    """Return the place on the site of every file of the repository that becomes a page or a picture."""
    found = {}
    for pattern in ("docs/*.md", "docs/tutorials/*.md", *(f"docs/{kind}" for kind in COPIED)):
        for path in ROOT.glob(pattern):
            found[path.relative_to(ROOT).as_posix()] = path.relative_to(ROOT / "docs").as_posix()
    for path in (ROOT / "proofs").glob("*.md"):
        name = "index.md" if path.name == "README.md" else path.name
        found[f"proofs/{path.name}"] = f"proofs/{name}"
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        found[f"benchmarks/results/{path.name}"] = f"results/{path.name}"
    found["benchmarks/README.md"] = "results/index.md"
    for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY"):
        found[f"{name}.md"] = f"{name.lower()}.md"
    for path in (ROOT / "examples").glob("*.py"):
        found[f"examples/{path.name}"] = f"scripts/{path.stem}.md"
    return found


def with_links(text: str, source: str, places: dict[str, str]) -> str:
    """Return a page's text with links between files of the repository made into links between pages of the site."""
    here = PurePosixPath(places[source]).parent

    def turn(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        path, _, anchor = target.partition("#")
        wanted = os.path.normpath(PurePosixPath(source).parent / path)
        place = places.get(wanted) or (places.get(f"{wanted}/README.md") if (ROOT / wanted).is_dir() else None)
        if place is not None:
            return f"{mark}[{label}]({os.path.relpath(place, here)}{'#' * bool(anchor)}{anchor})"
        if (ROOT / wanted).exists():
            return label if wanted in label or label.startswith("`") else f"{label} (`{wanted}`)"
        if source.startswith("docs/") and (PurePosixPath(source).parent / path).as_posix() in _written():
            return match.group()
        if not re.search(r"\.\w+$|/", path):  # a formula: f[x](y) is no link
            return match.group().replace("[", "\\[").replace("](", "\\](")
        raise BrokenLinkError(f"{source} links to {target}, which does not exist")

    parts, last = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(turn, text[last : fence.start()]), fence.group()]
        last = fence.end()
    return "".join([*parts, LINK.sub(turn, text[last:])])


def check_includes(page: Path) -> None:
    """Refuse a page that includes a file, or a part of one between marks, that is not there."""
    for name, options in INCLUDE.findall(page.read_text(encoding="utf-8")):
        place = page.parent / name
        if not place.exists():
            raise BrokenLinkError(f"{page.name} includes {name}, which is not there.")
        text = place.read_text(encoding="utf-8")
        for mark in re.findall(r'^:(?:start-after|end-before): "(.+)"$', options, flags=re.M):
            if mark not in text:
                raise BrokenLinkError(f"{page.name} includes {name} from or up to {mark!r}, which is not there.")


def _written() -> set[str]:
    """Return the pages that are made here rather than copied, as they are named in docs/."""
    names = {f"docs/reference/{name}.md" for name in REFERENCE}
    return names | {"docs/scripts/index.md", "docs/gallery/index.rst", "docs/results/index.md", "docs/proofs/index.md"}


def examples_of_names() -> dict[str, str]:
    """Return the examples of names whose own documentation has none, by name."""
    text = (ROOT / "docs" / "names.txt").read_text(encoding="utf-8")
    return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in text.split("\n## ")[1:]}


def reference_page(title: str, names: tuple[str, ...]) -> str:
    """Return one page of the reference, as MyST around what autodoc writes."""
    import veilwood

    extra = examples_of_names()
    parts = [f"# {title}\n"]
    for name in names:
        thing = getattr(veilwood, name)
        parts.append(f"(ref-{name.strip('_').lower()})=\n## `{name}`\n")
        body = "\n".join(_directive(f"veilwood.{name}", thing))
        parts.append(f"```{{eval-rst}}\n{body}\n```\n")
        if name in extra:
            parts.append(f"```python\n{extra[name]}\n```\n")
    return "\n".join(parts)


def _directive(path: str, thing: Any) -> Iterator[str]:
    if isinstance(thing, ModuleType):
        yield f".. automodule:: {path}"
        yield ""
        for name in thing.__all__:
            if name.startswith("plot_") or not path.endswith("plots"):
                yield from _directive(f"{path}.{name}", getattr(thing, name))
    elif inspect.isclass(thing):
        yield f".. autoclass:: {path}"
        yield ""
        for name, member in sorted(inspect.getmembers(thing)):
            if name.startswith("_") or not callable(member):
                continue
            if inspect.getdoc(member) and str(getattr(member, "__module__", "")).startswith("veilwood"):
                yield f"   .. automethod:: {name}"
        yield ""
    elif callable(thing):
        yield f".. autofunction:: {path}"
        yield ""
    else:
        yield f".. autodata:: {path}"
        yield "   :no-value:"
        yield ""


def assemble(folder: Path) -> None:
    """Write the source of the site into a folder."""
    places = pages()
    for source, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.startswith("examples/"):
            code = (ROOT / source).read_text(encoding="utf-8")
            target.write_text(f"# {Path(source).name}\n\n```python\n{code}```\n", encoding="utf-8")
        elif source.endswith(".md"):
            text = with_links((ROOT / source).read_text(encoding="utf-8"), source, places)
            target.write_text(text, encoding="utf-8")
        else:
            shutil.copyfile(ROOT / source, target)
    (folder / "reference").mkdir(exist_ok=True)
    for name, (title, names) in REFERENCE.items():
        (folder / "reference" / f"{name}.md").write_text(reference_page(title, names), encoding="utf-8")
    for place, title, words in (
        ("scripts", "Scripts", "Longer examples, to be run from a clone: `python examples/NAME.py`."),
        ("proofs", None, None),
        ("results", None, None),
    ):
        index = folder / place / "index.md"
        if title is not None:
            index.write_text(f"# {title}\n\n{words}\n", encoding="utf-8")
        with index.open("a", encoding="utf-8") as file:
            file.write("\n```{toctree}\n:maxdepth: 1\n:glob:\n\n*\n```\n")
    for place in places.values():
        if place.endswith(".md"):
            check_includes(folder / place)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
