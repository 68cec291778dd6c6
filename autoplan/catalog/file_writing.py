"""Atomic writing of output files."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_whole(output: Path, data: bytes) -> None:
    """Replace ``output`` by ``data`` atomically, so that no reader sees a partial file.

    Raises OSError or ValueError if it cannot be written, and leaves an existing file unchanged.
    """
    if not _is_replaceable(output):
        _write_into(output, data)
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


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write several files: all of them, or none where one cannot be prepared.

    Each is replaced atomically. Raises OSError, and then leaves existing files unchanged.
    """
    ready: dict[Path, Path] = {}
    try:
        for output, data in files.items():
            check_target(output)
            handle, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
            ready[output] = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).chmod(_mode(output))
        for output, prepared in ready.items():
            prepared.replace(output)
    finally:
        for prepared in ready.values():
            prepared.unlink(missing_ok=True)


def check_target(output: Path) -> None:
    """Raise OSError where it is clear before any work that ``output`` cannot be written.

    It is a folder or a loop of links, or its folder does not exist.
    """
    try:
        mode = output.stat().st_mode
    except FileNotFoundError:
        mode = output.parent.stat().st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _is_replaceable(output: Path) -> bool:
    """Return whether ``output`` is an ordinary file or none yet; raises OSError for a loop of links."""
    try:
        return stat.S_ISREG(output.stat().st_mode)
    except FileNotFoundError:
        return True


def _write_into(output: Path, data: bytes) -> None:
    """Write to a device or a pipe, which cannot be replaced; a folder raises OSError.

    A pipe that nobody reads raises OSError too, instead of waiting for a reader who may never come.
    """
    try:
        handle = os.open(output, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe") from error
        raise
    with os.fdopen(handle, "wb") as file:
        os.set_blocking(handle, True)
        file.write(data)


def _mode(target: Path) -> int:
    """Return the permissions of ``target``, or of a new file."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
