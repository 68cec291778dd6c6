"""Writing a user's files: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(output: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``output`` at once, so that no reader ever sees a half.

    Raises OSError or ValueError where it cannot be written, and leaves what was there.
    """
    if output.exists() and not output.is_file():
        # A device or a pipe cannot be replaced, only written to; a folder says so itself.
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
    """Return the permissions that ``target`` has, or that a new file gets."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
