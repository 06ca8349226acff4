"""Assets: the files of the page, read once into memory and compressed; nothing else can be asked for."""

from __future__ import annotations

import functools
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PLOTLY = "plotly.min.js"


@dataclass(frozen=True)
class Asset:
    """One file: its kind, its bytes, the same compressed, and a tag that changes with them."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


@functools.cache
def assets() -> dict[str, Asset]:
    """Every file of the page by name, plotly.js among them.

    Examples:
        >>> assets()["index.html"].kind
        'text/html; charset=utf-8'
    """
    files = {
        file.name: file.read_bytes()
        for file in resources.files("lossnav.explorer").joinpath("static").iterdir()
        if Path(file.name).suffix in KINDS
    }
    files[PLOTLY] = plotly()
    return {name: _asset(name, body) for name, body in sorted(files.items())}


def plotly() -> bytes:
    """plotly.js, as the plotly package carries it; plotly itself is not imported."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        raise ImportError("The explorer needs the package plotly: pip install lossnav[explore]")
    return (Path(found.origin).parent / "package_data" / PLOTLY).read_bytes()


def _asset(name: str, body: bytes) -> Asset:
    packed = gzip.compress(body, 6, mtime=0)
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    return Asset(KINDS[Path(name).suffix], body, packed, tag)
