"""Atomic writing of output files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(output: Path, data: bytes) -> None:
    """Replace ``output`` by ``data`` atomically, so that no reader sees a partial file.

    Raises OSError or ValueError if it cannot be written, and leaves an existing file unchanged.
    """
    if output.exists() and not output.is_file():
        # A device or a pipe cannot be replaced, only written to; writing to a folder raises OSError.
        output.write_bytes(data)
        return
    target = output.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _mode(target: Path) -> int:
    """Return the permissions of ``target``, or of a new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
