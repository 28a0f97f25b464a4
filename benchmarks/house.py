"""Measure the readability of the code: modules, lines, words per name, comments and imports, per package.

Usage: python benchmarks/house.py [--json FILE]. Lines are physical lines, including docstrings and blank lines.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {
    folder.name: folder
    for folder in (*sorted(ROOT.glob("packages/*/src/*")), *ROOT.glob("reproductions/src/*"))
    if (folder / "__init__.py").exists()
}
SHORT_LINES = 60  # a module below this should join its neighbour


@dataclass
class Count:
    """Counts of one package."""

    modules: int = 0
    lines: int = 0
    comment_lines: int = 0
    import_lines: int = 0
    longest: int = 0
    short: list[str] = field(default_factory=list)
    name_words: list[int] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add another package's counts to these."""
        self.modules += other.modules
        self.lines += other.lines
        self.comment_lines += other.comment_lines
        self.import_lines += other.import_lines
        self.longest = max(self.longest, other.longest)
        self.short += other.short
        self.name_words += other.name_words

    def to_dict(self) -> dict[str, float | int | list[str]]:
        """Return the figures of a row of the table."""
        names = max(len(self.name_words), 1)
        return {
            "modules": self.modules,
            "lines": self.lines,
            "longest module": self.longest,
            "functions": len(self.name_words),
            "one-word names %": round(100 * self.name_words.count(1) / names, 1),
            "words per name": round(sum(self.name_words) / names, 2),
            "comment lines %": round(100 * self.comment_lines / max(self.lines, 1), 1),
            "import lines %": round(100 * self.import_lines / max(self.lines, 1), 1),
            "modules under 60 lines": sorted(self.short),
        }


def count_module(path: Path) -> Count:
    """Count one module. A line with a comment behind its code is a comment line too."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT and "SPDX" not in token.string}
    imports: set[int] = set()
    words = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            words.append(max(len([word for word in node.name.split("_") if word]), 1))
    is_entry = path.name in ("__init__.py", "__main__.py", "_version.py", "env.py")
    short = [str(path.relative_to(ROOT))] if lines < SHORT_LINES and not is_entry else []
    return Count(1, lines, len(comments), len(imports), lines, short, words)


def count_packages() -> dict[str, Count]:
    """Return the counts of every package, of those that are published, and of all."""
    counts = {name: Count() for name in PACKAGES}
    for name, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            counts[name].add(count_module(path))
    published, everything = Count(), Count()
    for name, count in list(counts.items()):
        everything.add(count)
        if name != "veilwood_papers":
            published.add(count)
    return counts | {"published": published, "all": everything}


def main() -> None:
    """Print the table; write it as JSON too, if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {name: count.to_dict() for name, count in count_packages().items()}
    columns = [key for key in rows["all"] if key != "modules under 60 lines"]
    print("| package | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{row[key]}" for key in columns) + " |")
    print("\nModules under 60 lines: " + (", ".join(map(str, rows["all"]["modules under 60 lines"])) or "none"))  # type: ignore[arg-type]
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
