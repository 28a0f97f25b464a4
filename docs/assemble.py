# SPDX-License-Identifier: Apache-2.0
"""Put the pages of the site together from the whole repository, so that each text has one home.

Run: python docs/assemble.py FOLDER

``MENU`` lists the pages of the menu. Pages of docs/ are copied; proofs, results, scripts and the pages of the project
are built too, linked, and left out of the menu and the search. The reference of commands and of public names is
generated. Links between files of the repository become links between pages. A link to a file that is not on the site
becomes its name; a link to nothing raises ``BrokenLinkError``.
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
from typing import Any, Final

from veilwood import estimators

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(```+|~~~+|:::+).*?^\1\s*$", flags=re.M | re.S)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
INCLUDE = re.compile(r"^```\{include\} (\S+)\n(.*?)^```", flags=re.M | re.S)
COPIED = ("*.png", "*.svg", "*.py", "_static/*", "_templates/*", "tutorials/*.csv.gz")
OUTSIDE_MENU: Final = "---\norphan: true\nno-search: true\n---\n\n"

# The menu: pages by what a reader wants, each with its title there and its budget of words. A test holds the budgets.
MENU: Final[dict[str, dict[str, tuple[str, int]]]] = {
    "Learn": {
        "start": ("First private model", 750),
        "tutorials/hospital": ("A hospital's messy export", 1200),
        "tutorials/monthly-release": ("A monthly release", 900),
        "tutorials/banks": ("Three banks, one model", 800),
    },
    "Do": {
        "schema": ("Describe a table", 1200),
        "choose": ("Choose estimator and epsilon", 1000),
        "quality": ("Measure and report quality", 900),
        "deploy": ("Predict and deploy", 900),
        "sources": ("Read files, clusters, databases", 1500),
        "budget": ("Keep a budget", 1200),
        "service": ("Run the service", 2400),
        "operators": ("Operate and back up", 500),
        "owners": ("Train with other owners", 1500),
        "coming-from": ("Switch from other libraries", 900),
    },
    "Understand": {
        "guarantee": ("What the guarantee means", 900),
        "sharp-edges": ("Thirty sharp edges", 1000),
        "private-forest": ("How PrivateForest works", 1700),
        "classic-forests": ("The classic forests", 2200),
        "secure": ("Computing on shares", 1600),
        "audit": ("Proved and attacked", 1600),
        "how-accurate": ("How accurate", 900),
        "how-fast": ("How fast, how far", 1100),
    },
    "Look up": {
        "command-line": ("Command line", 300),
        "api": ("Python names", 300),
        "files": ("Files and terms", 2100),
    },
}

# Public names by what a reader looks for; a test compares them with ``veilwood.__all__``.
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "Estimators": tuple(estimators.__all__),
    "Schemas and tables": (
        "Schema", "Column", "Dialect", "discover", "Discovery", "read_table", "Query", "spool", "datasets",
    ),
    "Plans, units, ledgers, certificates": (
        "Plan", "Rows", "RowsOf", "PrivacyCertificate", "open_ledger", "Ledger", "SQLiteLedger", "MemoryLedger",
        "process_spend", "ReleaseSeries", "assign_trees",
    ),
    "Models and quality": (
        "save", "load", "export_onnx", "export_measurements", "rebuild", "skops_types", "report", "evaluate",
        "Evaluation", "tune", "Tuning", "PrivateSearch",
    ),
    "Pictures, GPU, several owners": ("plots", "gpu", "secure", "__version__"),
    "Errors and warnings": (
        "VeilwoodError", "SchemaError", "UndeclaredSchemaError", "OutOfSchemaError", "DomainTooLargeError",
        "BudgetExceededError", "LedgerError", "NotPrivateError", "ModelFileError", "SignatureError", "PartyError",
        "PrivacyWarning", "UtilityWarning",
    ),
}  # fmt: skip


class BrokenLinkError(Exception):
    """A page points at something that is not there."""


def menu_pages() -> list[str]:
    """Return the pages of the menu, in order."""
    return [page for pages in MENU.values() for page in pages]


def source_of(page: str) -> Path:
    """Return the file that holds the text of a page of the menu."""
    return ROOT / "docs" / f"{page}.md"


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
    found["reproductions/README.md"] = "papers.md"
    for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "PROMISE", "RETRACTED", "SECURITY", "SUPPORT"):
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
        if source.startswith("docs/") and (PurePosixPath(source).parent / path).as_posix() in _generated():
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
    """Raise BrokenLinkError if a page includes a file, or a part of one between marks, that is not there."""
    for name, options in INCLUDE.findall(page.read_text(encoding="utf-8")):
        place = page.parent / name
        if not place.exists():
            raise BrokenLinkError(f"{page.name} includes {name}, which is not there.")
        text = place.read_text(encoding="utf-8")
        for mark in re.findall(r'^:(?:start-after|end-before): "(.+)"$', options, flags=re.M):
            if mark not in text:
                raise BrokenLinkError(f"{page.name} includes {name} from or up to {mark!r}, which is not there.")


def _generated() -> set[str]:
    """Return the pages that are generated, as a page of docs/ links to them."""
    names = {f"docs/{api_page(name)}.md" for group in NAMES.values() for name in group}
    return names | {"docs/gallery/index.rst"}


def menu() -> str:
    """Return the menu as hidden tables of contents, one per group, for the end of the first page."""
    parts = []
    for title, entries in MENU.items():
        listed = "\n".join(f"{name} <{page}>" for page, (name, _) in entries.items())
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n")
    return "\n" + "\n".join(parts)


def examples_of_names() -> dict[str, str]:
    """Return the examples of names whose own documentation has none, by name."""
    text = (ROOT / "docs" / "names.txt").read_text(encoding="utf-8")
    return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in text.split("\n## ")[1:]}


def api_page(name: str) -> str:
    """Return the page of a public name. Errors and warnings share one page, with the version."""
    return "api/errors" if name in NAMES["Errors and warnings"] or name == "__version__" else f"api/{name}"


def first_line(thing: Any) -> str:
    """Return the first sentence of a documentation."""
    paragraph = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`])\. ", paragraph)[0].rstrip(".").replace("``", "`")


def api_summary() -> str:
    """Return one table of public names per group: what each is, with a link to its page."""
    import veilwood

    parts = []
    for title, names in NAMES.items():
        lines = ["", f"## {title}", "", "| name | what it is |", "|---|---|"]
        for name in names:
            text = "The version" if name == "__version__" else first_line(getattr(veilwood, name))
            lines.append(f"| [`{name}`]({api_page(name)}.md{_anchor(name)}) | {text.replace('|', chr(92) + '|')} |")
        parts.append("\n".join(lines))
    parts.append("\n```{toctree}\n:hidden:\n:glob:\n\napi/*\n```\n")
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return f"#{name.lower().strip('_')}" if api_page(name) == "api/errors" else ""


def api_pages() -> dict[str, str]:
    """Return the pages of the public names: one per name, and one of all errors and warnings."""
    import veilwood

    extra = examples_of_names()
    texts: dict[str, str] = {}
    for name in (name for group in NAMES.values() for name in group):
        page = api_page(name)
        body = "\n".join(_directive(f"veilwood.{name}", getattr(veilwood, name)))
        example = f"\n```python\n{extra[name]}\n```\n" if name in extra else ""
        title = "Errors, warnings, version" if page == "api/errors" else name
        texts.setdefault(page, f"# {title}\n\n")
        texts[page] += f"## {name.strip('_')}\n\n" if page == "api/errors" else ""
        texts[page] += f"```{{eval-rst}}\n{body}\n```\n{example}\n"
    return texts


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


def command_reference() -> str:
    """Return the reference of every command, with all of its arguments and options."""
    from veilwood.cli.main import whole_command

    return "\n".join(_command_entries("veilwood", whole_command()))


def _command_entries(name: str, command: Any) -> Iterator[str]:
    """Write a command, or a group with its commands."""
    inner = getattr(command, "commands", None)
    if name != "veilwood":
        level = "##" if name.count(" ") == 1 else "###"
        description, _, example = (command.help or "").partition("\b")
        yield f"\n{level} {name}\n\n{' '.join(description.split())}\n" if inner else f"\n{level} {name}\n"
        if not inner:
            yield from (f"{' '.join(part.split())}\n" for part in description.split("\n\n") if part.strip())
            if lines := [line.strip() for line in example.splitlines()[1:] if line.strip() not in ("", "Example:")]:
                yield "```sh\n" + "\n".join(lines) + "\n```\n"
    entries = [text for each in command.params if not _is_completion(each) for text in _parameter_entry(each)]
    if entries:
        yield "\n## Options of all commands\n" if name == "veilwood" else ""
        yield "\n".join(entries)
    for part, child in (inner or {}).items():
        yield from _command_entries(f"{name} {part}", child)


def _is_completion(parameter: Any) -> bool:
    return str(parameter.name).endswith("_completion")


def _parameter_entry(parameter: Any) -> Iterator[str]:
    """Write one argument or option as a definition: its spellings, its meaning, its default."""
    argument = parameter.param_type_name == "argument"
    value = parameter.metavar or parameter.name.upper()
    spellings = [value] if argument else sorted(parameter.opts, key=len, reverse=True)
    flag = argument or getattr(parameter, "is_flag", False)
    text = (parameter.help or "Required." if parameter.required else parameter.help or "").strip()
    if parameter.required and "Required" not in text:
        text = f"{text} Required.".strip()
    elif not flag and parameter.default not in (None, "", [], ()) and "Default" not in text:
        text = f"{text} Default: `{parameter.default}`."
    yield f"{', '.join(f'`{each}`' for each in spellings)}{'' if flag else f' `{value}`'}"
    yield f": {text or 'See above.'}\n"


def assemble(folder: Path) -> None:
    """Write the source of the site into a folder."""
    places = pages()
    in_menu = {f"docs/{page}.md" for page in [*menu_pages(), "index"]}
    for source, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        head = OUTSIDE_MENU if source not in in_menu else ""
        if source.startswith("examples/"):
            code = (ROOT / source).read_text(encoding="utf-8")
            target.write_text(f"{head}# {Path(source).name}\n\n```python\n{code}```\n", encoding="utf-8")
        elif source.endswith(".md"):
            text = with_links((ROOT / source).read_text(encoding="utf-8"), source, places)
            if text.startswith("---\n"):  # a page with metadata of its own
                head = ""
            target.write_text(head + text, encoding="utf-8")
        else:
            shutil.copyfile(ROOT / source, target)
    _append(folder / "index.md", menu())
    _append(folder / "command-line.md", command_reference())
    _append(folder / "api.md", api_summary())
    (folder / "api").mkdir(exist_ok=True)
    for page, text in api_pages().items():
        (folder / f"{page}.md").write_text(text, encoding="utf-8")
    for place in places.values():
        if place.endswith(".md"):
            check_includes(folder / place)


def _append(page: Path, text: str) -> None:
    with page.open("a", encoding="utf-8") as file:
        file.write(f"\n{text}")


if __name__ == "__main__":
    assemble(Path(sys.argv[1]))
