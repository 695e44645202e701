"""Fetch a file: whole, checked and in one step, or not at all."""

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from metastep.data.errors import DataError, problem
from metastep.data.progress import Progress, silent
from metastep.data.sets.omniglot import PARTS, count_characters

OMNIGLOT_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
OMNIGLOT_CHECKSUMS = {  # of the official archives, as other loaders know them
    "images_background": "md5:68d2efa1b9178cc56df9314c21c6e718",
    "images_evaluation": "md5:6b91aef0f799c5bb55b94e3f2daec811",
}
CHUNK = 2**16


def download_omniglot(
    root: Path,
    *,
    base_url: str = OMNIGLOT_URL,
    checksums: Mapping[str, str] = OMNIGLOT_CHECKSUMS,
    progress: Progress = silent,
) -> list[Path]:
    """Both official archives into `root/omniglot`, each checked, opened and counted before it is put in place."""
    done = []
    for part, characters in PARTS.items():
        target = root / "omniglot" / f"{part}.zip"

        def verify(draft: Path, part: str = part, characters: int = characters) -> None:
            if (found := count_characters(draft)) != characters:
                reason = f"has {found} characters instead of {characters}"
                raise problem(f"{part}.zip", reason, "Download it again later")

        if not target.exists():
            url = f"{base_url}/{part}.zip"
            download(url, target, checksum=checksums.get(part), verify=verify, progress=progress)
        done.append(target)
    return done


def download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    verify: Callable[[Path], None] | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
    progress: Progress = silent,
) -> None:
    """Fetch `url` to `target`, which appears only after its length, `checksum` and `verify` were found right.

    checksum: "sha256:…", or "md5:…" where its publisher gives no better one.

    A connection that drops is tried again from the start: resuming could join two versions of a file.
    """
    if not url.startswith(("https://", "http://")):  # urllib would also open local files
        raise problem(url, "is not a web address", "Use one that begins with https://")
    draft = target.with_name(f".{target.name}-{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch_stubbornly(url, draft, attempts, timeout, progress)
        if checksum is not None and (found := _checksum(draft, checksum)) != checksum.lower():
            reason = f"has {found} instead of {checksum}"
            raise problem(url, reason, "It was changed on the way or at its source: do not use it")
        if verify is not None:
            verify(draft)
        draft.replace(target)
    except OSError as error:
        raise problem(target, f"cannot be written ({error.strerror})", "Choose another data folder") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _fetch_stubbornly(url: str, draft: Path, attempts: int, timeout: float, progress: Progress) -> None:
    for left in reversed(range(attempts)):
        try:
            _fetch(url, draft, timeout, progress)
            return
        except urllib.error.HTTPError as error:  # an answer, so asking again will not help
            error.close()
            reason = f"the server answered {error.code} {error.reason}"
            raise problem(url, reason, "Check the address") from error
        except (OSError, http.client.HTTPException) as error:
            if not left:
                reason = f"cannot be downloaded ({getattr(error, 'reason', error) or type(error).__name__})"
                remedy = "Check network and disk, or fetch it elsewhere and copy it into the data folder"
                raise problem(url, reason, remedy) from error
    raise DataError(f"attempts {attempts}: must be at least 1.")


def _checksum(path: Path, like: str) -> str:
    """Of the same kind as `like`"""
    kind = like.partition(":")[0].lower()
    with path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, kind).hexdigest()}"


def _fetch(url: str, draft: Path, timeout: float, progress: Progress) -> None:
    """Write the body to `draft`"""
    request = urllib.request.Request(url, headers={"User-Agent": "metastep"})
    with urllib.request.urlopen(request, timeout=timeout) as response, draft.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        size = _copy(response, file, total, progress)
    if total and size != total:
        raise ConnectionError(f"the connection ended after {size:,} of {total:,} bytes")


def _copy(source: BinaryIO, target: BinaryIO, total: int, progress: Progress) -> int:
    size = 0
    while chunk := source.read(CHUNK):
        target.write(chunk)
        size += len(chunk)
        progress(size, total)
    return size
