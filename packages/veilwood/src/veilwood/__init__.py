# SPDX-License-Identifier: Apache-2.0
"""Veilwood: differentially private tree ensembles.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that a command, or a program that
needs a part of the library, does not wait for all of it.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from veilwood._version import __version__ as __version__


def lazy_names(package: str, init_file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return ``__getattr__`` and ``__all__`` of a package whose stub ``__init__.pyi`` lists its public names."""
    homes: dict[str, tuple[str, str | None]] = {}  # module, and the name in it; None for the module itself
    for node in ast.parse(Path(init_file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        match node:
            case ast.ImportFrom(module=str(home), names=[ast.alias(name="*")]):
                homes |= {name: (home, name) for name in import_module(home).__all__}
            case ast.ImportFrom(module=str(home), names=imported) if home == package:
                homes |= {each.name: (f"{home}.{each.name}", None) for each in imported}
            case ast.ImportFrom(module=str(home), names=imported):
                homes |= {each.asname or each.name: (home, each.name) for each in imported}
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name() | ast.Attribute() as module):
                homes[name] = (ast.unparse(module), None)

    def load_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, attribute = homes[name]
        try:
            value = import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home.split(".")[0]:
                raise
            from veilwood.siblings import missing_package_error

            raise missing_package_error(error.name, name) from None
        value = value if attribute is None else getattr(value, attribute)
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return load_name, [*homes]


__getattr__, __all__ = lazy_names(__name__, __file__)
__all__ = sorted({*__all__} - {"audit", "service"})  # attributes, but not for users of the core alone


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
