"""Zip and tar archives and folders, read alike and never unpacked to disk."""

import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PureWindowsPath

from metastep.data.errors import problem
from metastep.data.files import MAX_FILE_BYTES, files_under, is_clutter, read_bytes

Keep = Callable[[str], bool]
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    NotImplementedError,
    UnicodeError,
)


def everything(name: str) -> bool:
    """Keep every member."""
    del name
    return True


def read_members(path: Path, keep: Keep = everything) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each file to keep, in the order in which the source gives them up cheapest.

    Names have forward slashes and no leading part. One at a time, because archives can be larger than memory.
    """
    if not path.exists():
        raise problem(path, "does not exist", "Check the path")
    if path.is_dir():
        yield from _from_folder(path, keep)
        return
    try:
        if zipfile.is_zipfile(path):
            yield from _from_zip(path, keep)
        elif tarfile.is_tarfile(path):
            yield from _from_tar(path, keep)
        else:
            raise problem(path, "is no folder, zip or tar, or it is cut short", "Download it again")
    except _DAMAGE as error:
        raise problem(path, f"is damaged or cut short ({error})", "Download it again") from error


def read_named(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Files by their path inside a folder; inside an archive they may lie deeper. All must be there."""
    if path.is_dir():
        return {name: read_bytes(path / name) for name in names}
    found: dict[str, bytes] = {}
    for member, data in read_members(path, keep=lambda member: _ending(member, names) is not None):
        found[_ending(member, names) or ""] = data
    if absent := [name for name in names if name not in found]:
        raise problem(path, f"lacks {', '.join(absent)}", "Get it again")
    return found


def member_names(path: Path) -> list[str]:
    """The names of all files, none of which is read."""
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return False

    for _ in read_members(path, keep=note):
        pass
    return names


def _ending(member: str, names: Collection[str]) -> str | None:
    return next((name for name in names if f"/{member}".endswith(f"/{name}")), None)


def _from_folder(folder: Path, keep: Keep) -> Iterator[tuple[str, bytes]]:
    for file in files_under(folder):
        name = file.relative_to(folder).as_posix()
        if keep(name):
            yield name, read_bytes(file)


def _from_zip(path: Path, keep: Keep) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            # Only Unix records a file type here; other systems leave zeros.
            kind = stat.S_IFMT(member.external_attr >> 16)
            name = _safe_name(path, member.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR))
            if member.flag_bits & 1:
                raise problem(path, f"member {name!r} is encrypted", "Unpack it with its password first")
            if not member.is_dir() and _wanted(path, name, member.file_size, keep):
                yield name, archive.read(member)


def _from_tar(path: Path, keep: Keep) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            name = _safe_name(path, member.name, member.isreg() or member.isdir())
            content = archive.extractfile(member) if _wanted(path, name, member.size, keep) else None
            if content is not None:  # None for folders
                yield name, content.read()
        _check_tar_end(path, archive)


def _check_tar_end(path: Path, archive: tarfile.TarFile) -> None:
    """A tar ends with zeros; without them it was cut between two members, which looks like an end."""
    source = archive.fileobj
    if source is not None:
        source.seek(archive.offset)
        if len(source.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise problem(path, "is cut short: its end mark is missing", "Download it again")
        while source.read(tarfile.RECORDSIZE):  # to the very end, where compressed files keep their checksum
            pass


def _safe_name(path: Path, name: str, ordinary: bool) -> str:
    """The member's name with forward slashes, if unpacking it could only ever write inside the folder."""
    parsed = PureWindowsPath(name)  # knows both kinds of slash, and drives
    if parsed.anchor or parsed.drive or ".." in parsed.parts:
        raise problem(path, f"member {name!r} points outside the archive", "Do not use this archive")
    if not ordinary:
        raise problem(path, f"member {name!r} is a link or a device", "Pack plain files and folders only")
    return parsed.as_posix()


def _wanted(path: Path, name: str, size: int, keep: Keep) -> bool:
    if is_clutter(name) or not keep(name):
        return False
    if size > MAX_FILE_BYTES:
        reason = f"member {name!r} unpacks to more than {MAX_FILE_BYTES >> 20} MiB"
        raise problem(path, reason, "Do not use this archive")
    return True
