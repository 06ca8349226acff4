"""Fetch public files once, and believe only what has the right digest.

A digest is of the content as unpacked, not of the archive: mirrors that pack the same bytes in another
way are as good as the first home. Nothing is kept that was not complete and right.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

MOST = 1 << 28
"""The largest file, in bytes, that is fetched or unpacked."""
_CHUNK = 1 << 20


class DataError(ValueError):
    """Data that cannot be had, in one sentence with what to do."""


@dataclass(frozen=True)
class Source:
    """A file on the web, and what it must hold.

    Args:
        urls: Where it is; the next is tried if one fails.
        contents: Name of each file that is wanted from it, and the SHA-256 of its bytes, unpacked.
        packing: ``"plain"`` and ``"gzip"`` hold one file, ``"tar.gz"`` many.

    Examples:
        >>> import hashlib
        >>> Source(("https://example.org/a.txt",), {"a.txt": hashlib.sha256(b"a").hexdigest()}).packing
        'plain'
    """

    urls: tuple[str, ...]
    contents: Mapping[str, str]
    packing: Literal["plain", "gzip", "tar.gz"] = "plain"


def fetch(sources: Sequence[Source], folder: Path) -> dict[str, bytes]:
    """The contents of all sources by name, each with the right digest.

    Args:
        sources: What to fetch.
        folder: Where the archives lie while they come in; it is made if need be, and left as it was.

    Raises:
        DataError: With what went wrong at each address.
    """
    if os.environ.get("LOSSNAV_OFFLINE", "") not in ("", "0"):
        raise DataError("nothing was fetched, because LOSSNAV_OFFLINE is set")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the folder {folder} cannot be made ({_why(error)})") from None
    found: dict[str, bytes] = {}
    for source in sources:
        found |= _fetch_one(source, folder)
    return found


def _fetch_one(source: Source, folder: Path) -> dict[str, bytes]:
    failures = []
    for url in source.urls:
        try:
            archive = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError as error:
            raise DataError(f"the folder {folder} cannot be written ({_why(error)})") from None
        with archive:
            try:
                _receive(url, archive)
                archive.seek(0)
                return _checked(source, archive)
            except (
                OSError,
                EOFError,
                http.client.HTTPException,
                tarfile.TarError,
                zlib.error,
            ) as e:
                failures.append(f"{url} failed ({_why(e)})")
            except DataError as error:
                failures.append(f"{url} {error}")
    raise DataError("; ".join(failures))


def _receive(url: str, archive: IO[bytes]) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "lossnav"})
    with urllib.request.urlopen(request, timeout=30) as response:
        promised = response.headers.get("Content-Length")
        received = 0
        while chunk := response.read(_CHUNK):
            received += len(chunk)
            if received > MOST:
                raise DataError(f"is larger than the {MOST:,} bytes that are allowed")
            archive.write(chunk)
    if promised is not None and received != int(promised):
        raise DataError(f"broke off after {received:,} of {int(promised):,} bytes")


def _checked(source: Source, archive: IO[bytes]) -> dict[str, bytes]:
    found = {}
    for name, content in _unpacked(source, archive):
        digest = hashlib.sha256(content).hexdigest()
        if digest != source.contents[name]:
            raise DataError(
                f"has a {name} that is not the published one (SHA-256 {digest[:12]}..., but "
                f"{source.contents[name][:12]}... is right)"
            )
        found[name] = content
    missing = [name for name in source.contents if name not in found]
    if missing:
        raise DataError(f"has no {missing[0]}")
    return found


def _unpacked(source: Source, archive: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    if source.packing != "tar.gz":
        (name,) = source.contents
        if source.packing == "gzip":
            with gzip.GzipFile(fileobj=archive) as inner:
                yield name, _whole(cast(IO[bytes], inner))
        else:
            yield name, _whole(archive)
        return
    with tarfile.open(fileobj=archive, mode="r:gz") as tar:
        for member in tar:
            name = member.name.rsplit("/", 1)[-1]
            if name in source.contents and member.isfile():
                file = tar.extractfile(member)
                assert file is not None  # a regular file has content
                yield name, _whole(file)


def _whole(file: IO[bytes]) -> bytes:
    content = file.read(MOST + 1)
    if len(content) > MOST:
        raise DataError(f"unpacks to more than the {MOST:,} bytes that are allowed")
    return content


def _why(error: BaseException) -> str:
    """What an error says, without the wrapping of urllib."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        reason = error.reason
        return _why(reason) if isinstance(reason, BaseException) else str(reason)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
