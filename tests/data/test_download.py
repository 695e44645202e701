"""Downloads arrive whole and checked, or leave nothing behind; all against a server on this machine."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from metastep.data.download import download, get
from metastep.data.errors import DataError
from metastep.data.registry import Download, data_set, data_sets
from metastep.data.sets.omniglot import Omniglot

BODY = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Site(NamedTuple):
    url: str
    files: dict[str, bytes]
    drops: list[str]  # one entry per answer that breaks off in the middle
    asked: list[str]
    ranges: list[int]  # where those that continue begin


@pytest.fixture
def site() -> Iterator[Site]:
    files, drops, asked, ranges = {"/file": BODY, "/whole": BODY}, [], [], []  # type: ignore[var-annotated]

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path not in files:
                self.send_error(404)
                return
            body, wanted = files[self.path], self.headers.get("Range")
            if wanted and "whole" not in self.path:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                ranges.append(start)
                if start >= len(body):
                    self.send_error(416)
                    return
                body = body[start:]
                self.send_response(206)
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if drops and drops.pop() else body)

        def log_message(self, *args: object) -> None:
            del args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Site(f"http://127.0.0.1:{server.server_port}", files, drops, asked, ranges)
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


def test_what_broke_off_is_continued_by_the_next_call(site: Site, tmp_path: Path) -> None:
    site.drops.extend(["x"] * 3)
    with pytest.raises(DataError, match=r"of 256,000 bytes\); [\d,]+ bytes are kept\. Call it again to continue"):
        download(f"{site.url}/file", tmp_path / "file", f"sha256:{DIGEST}")
    (draft,) = tmp_path.iterdir()
    assert len(site.asked) == 3
    kept = draft.stat().st_size
    assert BODY.startswith(draft.read_bytes())
    download(f"{site.url}/file", tmp_path / "file", f"sha256:{DIGEST}")
    assert site.ranges[-1] == kept
    assert (tmp_path / "file").read_bytes() == BODY
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_server_that_cannot_continue_begins_anew(site: Site, tmp_path: Path) -> None:
    (tmp_path / ".whole.part").write_bytes(b"x" * 1000)
    download(f"{site.url}/whole", tmp_path / "whole", f"sha256:{DIGEST}")
    assert (tmp_path / "whole").read_bytes() == BODY


def test_what_was_whole_already_is_checked(site: Site, tmp_path: Path) -> None:
    (tmp_path / ".file.part").write_bytes(BODY)
    download(f"{site.url}/file", tmp_path / "file", f"sha256:{DIGEST}")
    assert (tmp_path / "file").read_bytes() == BODY


def test_parts_of_two_versions_are_not_joined(site: Site, tmp_path: Path) -> None:
    (tmp_path / ".file.part").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="and is removed"):
        download(f"{site.url}/file", tmp_path / "file", f"sha256:{DIGEST}")
    assert list(tmp_path.iterdir()) == []
    download(f"{site.url}/file", tmp_path / "file", f"sha256:{DIGEST}")
    assert (tmp_path / "file").read_bytes() == BODY


def test_absent_file_is_not_asked_for_twice(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/absent: the server answered 404"):
        download(f"{site.url}/absent", tmp_path / "file", f"sha256:{DIGEST}")
    assert len(site.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_network_is_said_plainly(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(DataError, match=r"reached \(.*refused.*\): there may be no network here\. .*copy it into"):
            download(url, tmp_path / "file", f"sha256:{DIGEST}")
    assert list(tmp_path.iterdir()) == []


def test_silent_server_times_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with pytest.raises(DataError, match="timed out"):
            download(url, tmp_path / "file", f"sha256:{DIGEST}", attempts=1, timeout=0.1)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/file", "file"])
def test_only_web_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a web address"):
        download(url, tmp_path / "file", f"sha256:{DIGEST}")


def test_unwritable_target_is_named(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/x: cannot be written"):
        download(f"{site.url}/file", tmp_path / "file" / "x", f"sha256:{DIGEST}")


@pytest.fixture
def omniglot_site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    parts = [file.path.rpartition("/")[2] for file in Omniglot.downloads]
    for part in parts:
        site.files[f"/{part}"] = part.encode() + BODY
    here = [Download(f"omniglot/{part}", f"{site.url}/{part}", sha256(part.encode() + BODY)) for part in parts]
    monkeypatch.setattr(Omniglot, "downloads", tuple(here))
    return site


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_data_set_is_fetched_once(omniglot_site: Site, tmp_path: Path) -> None:
    root = tmp_path / "data"
    done = get(Omniglot, "omniglot", root)
    assert [path.name for path in done] == ["images_background.zip", "images_evaluation.zip"]
    assert all(path.is_file() for path in done)
    assert Omniglot.find(root) == tuple(done)
    get(Omniglot, "omniglot", root)
    assert len(omniglot_site.asked) == 2


def test_a_page_instead_of_an_archive_is_refused(omniglot_site: Site, tmp_path: Path) -> None:
    omniglot_site.files["/images_evaluation.zip"] = b"<html>please log in</html>"
    with pytest.raises(DataError, match=r"instead of sha256:.*, and is removed\. Call it again"):
        get(Omniglot, "omniglot", tmp_path)
    assert [path.name for path in (tmp_path / "omniglot").iterdir()] == ["images_background.zip"]


@pytest.mark.parametrize("name", data_sets())
def test_what_may_be_downloaded_is_where_it_is_looked_for(name: str, tmp_path: Path) -> None:
    kind = data_set(name)
    if not kind.downloads:
        with pytest.raises(DataError, match="cannot be downloaded for you"):
            get(kind, name, tmp_path)
    for path, url, checksum in kind.downloads:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
        assert url.startswith("https://")
        assert url.endswith(Path(path).name)
        assert len(checksum) == len("md5:") + 32
    assert bool(kind.find(tmp_path)) == bool(kind.downloads)
