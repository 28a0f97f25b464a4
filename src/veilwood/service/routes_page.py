# SPDX-License-Identifier: Apache-2.0
"""The page: files of the package that a browser shows; they speak to the other routes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, RedirectResponse

router = APIRouter(include_in_schema=False)

_LONGEST: Final = 64
_PAGES: Final = Path(__file__).parent / "pages"
_KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
                 ".json": "application/json"}  # fmt: skip


@router.get("/")
def start() -> RedirectResponse:
    """Go to the page."""
    return RedirectResponse("/page/index.html")


@router.get("/page/{name}")
def page(name: str) -> FileResponse:
    """Return one file of the page."""
    path = _PAGES / name
    if len(name) > _LONGEST or path.parent != _PAGES or path.suffix not in _KINDS or not path.is_file():
        raise HTTPException(404, "there is no such page.")
    return FileResponse(path, media_type=_KINDS[path.suffix])
