"""Bytes of a trace file, plain or gzip, in pieces: memory stays bounded whatever the file holds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from autoplan.catalog import open_file
from autoplan.errors import CatalogError

__all__ = ["first_bytes", "pieces"]

_PIECE: Final = 2**20
_GZIP: Final = b"\x1f\x8b"
#: More than any trace: their text shrinks ten- to fortyfold.
_LARGEST: Final = 32 * 2**30
_MOST_EXPANDED: Final = 250
#: Below, a high ratio does no harm.
_SMALL: Final = 64 * 2**20


def first_bytes(path: Path, count: int = 16) -> bytes:
    """Return the first bytes of a file; raises CatalogError if it cannot be read."""
    with open_file(path) as file:
        try:
            return file.read(count)
        except OSError as error:
            raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error


def pieces(path: Path) -> Iterator[bytes]:
    """Yield the bytes of ``path`` in pieces of a MiB, decompressed where the file is gzip.

    Raises CatalogError for a file that cannot be read, that ends within its gzip stream, or that expands more
    than a trace does.
    """
    packed = first_bytes(path, 2) == _GZIP
    with open_file(path) as file:
        try:
            yield from _unpacked(file, path) if packed else _plain(file)
        except EOFError as error:
            raise CatalogError(
                f"{path} ends within its gzip stream: it is cut off; copy it again, or profile again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise CatalogError(f"{path} is no whole gzip file: {error}") from error
        except OSError as error:
            raise CatalogError(f"cannot read {path}: {error.strerror or error}") from error


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes; refuse what expands without end."""
    total = 0
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        while piece := unpacked.read(_PIECE):
            total += len(piece)
            if total > max(_SMALL, _MOST_EXPANDED * file.tell()) or total > _LARGEST:
                raise CatalogError(
                    f"{path} expands more than {_MOST_EXPANDED} times, which no trace does: it is not read"
                )
            yield piece
