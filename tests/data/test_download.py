"""Downloads arrive whole and checked, or leave nothing behind; all against a server on this machine."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from metastep.data import download as module
from metastep.data.download import download, download_omniglot
from metastep.data.errors import DataError
from tests.data.helpers import encoded, write_zip

BODY = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Site(NamedTuple):
    url: str
    files: dict[str, bytes]
    drops: list[str]  # one entry per answer that breaks off in the middle
    asked: list[str]


@pytest.fixture
def site() -> Iterator[Site]:
    files, drops, asked = {"/file": BODY}, [], []  # type: ignore[var-annotated]

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path not in files:
                self.send_error(404)
                return
            body = files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if drops and drops.pop() else body)

        def log_message(self, *args: object) -> None:
            del args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Site(f"http://127.0.0.1:{server.server_port}", files, drops, asked)
        server.shutdown()
        thread.join(timeout=5)


def test_file_arrives_whole(site: Site, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    target = tmp_path / "new" / "file"
    download(f"{site.url}/file", target, checksum=f"sha256:{DIGEST.upper()}", progress=lambda *call: calls.append(call))
    assert target.read_bytes() == BODY
    assert calls[-1] == (len(BODY), len(BODY))
    assert list(target.parent.iterdir()) == [target]


def test_wrong_checksum_leaves_the_old_file(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(DataError, match=f"has sha256:{DIGEST} instead of sha256:{'0' * 64}"):
        download(f"{site.url}/file", target, checksum="sha256:" + "0" * 64)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_dropped_connection_is_tried_again(site: Site, tmp_path: Path) -> None:
    site.drops.extend(["x", "x"])
    download(f"{site.url}/file", tmp_path / "file", checksum=f"sha256:{DIGEST}")
    assert (tmp_path / "file").read_bytes() == BODY
    assert len(site.asked) == 3


def test_connection_that_keeps_dropping_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.drops.extend(["x"] * 9)
    with pytest.raises(DataError, match=r"128,000 of 256,000 bytes.*Check network"):
        download(f"{site.url}/file", tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    assert len(site.asked) == 3


def test_absent_file_is_not_asked_for_twice(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/absent: the server answered 404"):
        download(f"{site.url}/absent", tmp_path / "file")
    assert len(site.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_said_plainly(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(DataError, match=r"cannot be downloaded .*refused.*copy it into the data folder"):
            download(url, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_silent_server_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(DataError, match="timed out"):
            download(url, tmp_path / "file", attempts=1, timeout=0.1)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/file", "file"])
def test_only_web_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a web address"):
        download(url, tmp_path / "file")


def test_unwritable_target_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/x: cannot be written"):
        download(f"{site.url}/file", tmp_path / "file" / "x")


def omniglot_part(folder: Path, part: str, characters: int) -> bytes:
    png = encoded(Image.new("1", (105, 105), 1))
    names = [f"{part}/A/character{c:02d}/{c:04d}_{d:02d}.png" for c in range(characters) for d in range(20)]
    return write_zip(folder / "made.zip", dict.fromkeys(names, png)).read_bytes()


@pytest.fixture
def omniglot_site(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    parts = {"images_background": 3, "images_evaluation": 2}
    monkeypatch.setattr(module, "PARTS", parts)
    for part, characters in parts.items():
        site.files[f"/{part}.zip"] = omniglot_part(tmp_path, part, characters)
    return site


def test_omniglot_is_counted_and_fetched_once(omniglot_site: Site, tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = download_omniglot(root, base_url=omniglot_site.url, checksums={})
    assert [path.name for path in done] == ["images_background.zip", "images_evaluation.zip"]
    assert all(path.is_file() for path in done)
    download_omniglot(root, base_url=omniglot_site.url, checksums={})
    assert len(omniglot_site.asked) == 2


def test_incomplete_omniglot_is_refused(omniglot_site: Site, tmp_path: Path) -> None:
    omniglot_site.files["/images_evaluation.zip"] = omniglot_part(tmp_path, "images_evaluation", 1)
    with pytest.raises(DataError, match=r"images_evaluation\.zip: has 1 characters instead of 2"):
        download_omniglot(tmp_path / "data", base_url=omniglot_site.url, checksums={})
    assert [path.name for path in (tmp_path / "data" / "omniglot").iterdir()] == ["images_background.zip"]


def test_a_page_instead_of_an_archive_is_refused(omniglot_site: Site, tmp_path: Path) -> None:
    omniglot_site.files["/images_background.zip"] = b"<html>please log in</html>"
    with pytest.raises(DataError, match="is no folder, zip or tar"):
        download_omniglot(tmp_path / "data", base_url=omniglot_site.url, checksums={})
    assert list((tmp_path / "data" / "omniglot").iterdir()) == []


def test_omniglot_that_is_not_the_official_one_is_refused(omniglot_site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="instead of md5:68d2efa1b9178cc56df9314c21c6e718"):
        download_omniglot(tmp_path / "data", base_url=omniglot_site.url)
    assert list((tmp_path / "data" / "omniglot").iterdir()) == []
