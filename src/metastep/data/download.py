"""Fetch a file, complete and checked. The next call continues an interrupted download."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from metastep.data.errors import Progress, printable, problem, silent
from metastep.data.registry import DataSet
from metastep.errors import remedy_of

CHUNK = 2**16


def get(kind: type[DataSet], name: str, root: Path, progress: Progress = silent) -> list[Path]:
    """Download the files of a data set that are not yet in the data directory.

    Raises:
        DataError: It may not be downloaded freely, or one of its files cannot be fetched completely.
    """
    if not kind.downloads:
        raise problem(name, "cannot be downloaded for you", f"To get it: {kind.source}")
    for path, url, checksum in kind.downloads:
        if not (root / path).exists():
            download(url, root / path, checksum, progress=progress)
    return [root / file.path for file in kind.downloads]


def download(
    url: str, target: Path, checksum: str, *, attempts: int = 3, timeout: float = 30.0, progress: Progress = silent
) -> None:
    """Fetch `url` to `target`, which appears only after its checksum matches.

    Args:
        url: A web address.
        target: The file to make.
        checksum: sha256:…, or md5:… if its publisher gives no better one.
        attempts: How often a connection that drops is continued; the next call continues it too.
        timeout: Seconds to wait for an answer of the server.
        progress: Called with the bytes so far and their total.

    Raises:
        DataError: It cannot be fetched or written, or the checksum differs.
    """
    if not url.startswith(("https://", "http://")):  # urllib would also open local files
        raise problem(url, "is not a web address", "Use one that begins with https://")
    draft = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch_stubbornly(url, draft, attempts, timeout, progress)
        if (found := _checksum(draft, checksum)) != checksum.lower():
            draft.unlink()
            reason = f"has {found} instead of {checksum}, and is removed"
            raise problem(url, reason, "Call it again. If it is still another file, it was changed at its source")
        draft.replace(target)
    except OSError as error:
        remedy = remedy_of(error, "Choose another data folder")
        raise problem(target, f"cannot be written ({error.strerror or error})", remedy) from error


def _fetch_stubbornly(url: str, draft: Path, attempts: int, timeout: float, progress: Progress) -> None:
    for left in reversed(range(attempts)):
        try:
            return _fetch(url, draft, timeout, progress)
        except urllib.error.HTTPError as error:  # an answer, so asking again will not help
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
            raise problem(url, reason, "Check the address") from error
        except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
            if not left:
                raise problem(url, *_why(error, draft)) from error
    raise ValueError(f"attempts {attempts}: must be at least 1.")


def _why(error: Exception, draft: Path) -> tuple[str, str]:
    """Say what stopped a download, and what to do."""
    place = printable(draft.parent)
    elsewhere = f"or fetch it on another computer and copy it into {place}"
    if draft.exists():
        kept = f"{draft.stat().st_size:,} bytes are kept"
        return f"broke off ({getattr(error, 'reason', error) or type(error).__name__}); {kept}", (
            f"Call it again to continue, {elsewhere}"
        )
    reason = getattr(error, "reason", error) or type(error).__name__
    return f"cannot be reached ({reason}): there may be no network here", f"Check the network, {elsewhere}"


def _checksum(path: Path, like: str) -> str:
    """Return a checksum of the kind of `like`."""
    kind = like.partition(":")[0].lower()
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _fetch(url: str, draft: Path, timeout: float, progress: Progress) -> None:
    """Write the body to `draft`, after what is there if the server can continue."""
    done = draft.stat().st_size if draft.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "metastep"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if not (done and error.code == 416):  # nothing follows: it may be complete, which the checksum says
            raise
        error.close()
        return
    with response:
        done = done if response.status == 206 else 0
        total = done + int(response.headers.get("Content-Length") or 0)
        with draft.open("ab" if done else "wb") as file:
            size = _copy(response, file, done, total, progress)
    if total > done and size != total:
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _copy(source: BinaryIO, target: BinaryIO, size: int, total: int, progress: Progress) -> int:
    for chunk in _chunks(source):
        target.write(chunk)
        size += len(chunk)
        progress(size, total)
    return size


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    try:
        while chunk := source.read(CHUNK):
            yield chunk
    except OSError as error:  # not to be mistaken for a write error
        raise ConnectionError(str(error)) from error
