"""Draw random samples of the project's text, for a reader who does not know the code to judge.

Usage: python benchmarks/language_samples.py --seed 1 [--docstrings 60 --messages 30 --helps 20 --pages 10 --names 20]

The reader marks each sample "clear" or "send back"; at most 5 % may be sent back. Of the function names, shown without
file or docstring, at least 16 of 20 must be explained correctly; ``--answers`` prints where each name is defined.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("reproductions/src/**/*.py")])
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("proofs/*.md")])
Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
MIN_MESSAGE = 25  # characters; shorter texts in a raise are names of parameters


def definitions() -> Iterator[tuple[Path, Definition]]:
    """Yield every module, class and function of the packages and of the reproductions."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Definition):
                yield path, node


def docstrings() -> list[str]:
    """Return every docstring, headed by the file and the name that it documents."""
    found = []
    for path, node in definitions():
        text = ast.get_docstring(node)
        if text:
            name = getattr(node, "name", "module")
            found.append(f"[{path.relative_to(ROOT)}, {name}]\n{text}")
    return found


def text_of(node: ast.expr) -> str:
    """Return the text of a literal, an f-string or a sum of them, with placeholders in braces."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) for value in values)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
    return ""


def messages() -> list[str]:
    """Return the texts passed to errors that are raised and to warnings."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            is_warning = ast.unparse(call.func).endswith(("warn", "warn_once"))
            if isinstance(node, ast.Raise) or is_warning:
                parts = [text for argument in call.args if (text := text_of(argument))]
                if sum(map(len, parts)) >= MIN_MESSAGE:
                    found.append(f"[{path.relative_to(ROOT)}] {ast.unparse(call.func)}: " + " | ".join(parts))
    return found


def help_pages() -> list[str]:
    """Return the help page of every command."""
    from veilwood.cli.main import whole_command

    def pages_below(command: Any, name: str) -> Iterator[str]:
        context = command.make_context(
            name, [], resilient_parsing=True
        )  # newer versions of typer carry their own click
        with redirect_stdout(StringIO()) as printed:  # pages with markup are printed, others returned
            page = command.get_help(context)
        yield printed.getvalue() + page
        for child in command.list_commands(context) if hasattr(command, "list_commands") else ():
            yield from pages_below(command.get_command(context, child), f"{name} {child}")

    return list(pages_below(whole_command(), "veilwood"))


def function_names() -> list[tuple[str, str]]:
    """Return every function name with the file that defines it, without dunder methods."""
    return [
        (node.name, f"{path.relative_to(ROOT)}:{node.lineno}")
        for path, node in definitions()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__")
    ]


def print_samples(title: str, texts: list[str]) -> None:
    """Print numbered samples below a title."""
    print(f"# {title}\n")
    for number, text in enumerate(texts, 1):
        print(f"## {title} {number}\n\n{text}\n")


def main() -> None:
    """Draw and print the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    for kind, number in (("docstrings", 60), ("messages", 30), ("helps", 20), ("pages", 10), ("names", 20)):
        parser.add_argument(f"--{kind}", type=int, default=number)
    parser.add_argument(
        "--answers", action="store_true", help="print where each sampled name is defined, and nothing else"
    )
    options = parser.parse_args()
    draw = random.Random(options.seed).sample
    names = draw(function_names(), options.names)
    if options.answers:
        print("\n".join(f"{name}: {place}" for name, place in names))
        return
    print_samples("Docstring", draw(docstrings(), options.docstrings))
    print_samples("Message", draw(messages(), options.messages))
    print_samples("Help page", draw(help_pages(), options.helps))
    print_samples(
        "Page, first 60 lines",
        ["\n".join(path.read_text(encoding="utf-8").splitlines()[:60]) for path in draw(PAGES, options.pages)],
    )
    print_samples("Function name", [name for name, _ in names])


if __name__ == "__main__":
    main()
