"""Folders, zips and tars are read alike; hostile and damaged ones are refused."""

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from metastep.data import files
from metastep.data.errors import DataError
from metastep.data.files import read_members
from tests.data.helpers import write_zip

FILES = {"a/1.txt": b"one", "a/2.txt": b"two", "b/c/3.txt": b"three" * 999}


def write_tar(path: Path, *members: tarfile.TarInfo, mode: str = "w", files: dict[str, bytes] = FILES) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for member in members:
            archive.addfile(member)
    return path


def write_folder(path: Path) -> Path:
    for name, data in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_every_container_gives_the_same(tmp_path: Path) -> None:
    sources = [
        write_folder(tmp_path / "folder"),
        write_zip(tmp_path / "x.zip", FILES),
        write_tar(tmp_path / "x.tar"),
        write_tar(tmp_path / "x.tgz", mode="w:gz"),
        write_tar(tmp_path / "x.tar.xz", mode="w:xz"),
    ]
    for source in sources:
        assert dict(read_members(source)) == FILES, source
        assert list(read_members(source, keep=lambda name: "3" in name)) == [("b/c/3.txt", FILES["b/c/3.txt"])]


def test_clutter_is_passed_over(tmp_path: Path) -> None:
    clutter = {"__MACOSX/a/._1.txt": b"x", "a/.DS_Store": b"x", "a/Thumbs.db": b"x"}
    assert dict(read_members(write_zip(tmp_path / "x.zip", FILES | clutter))) == FILES


def test_leading_dots_and_back_slashes_are_put_right(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", files={"./a/1": b"x", "b\\2": b"y"})
    assert dict(read_members(path)) == {"a/1": b"x", "b/2": b"y"}


OUTSIDE = ["../evil", "a/../../evil", "/etc/evil", "C:\\evil", "C:evil", "\\\\host\\evil", "..\\evil"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_members_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    for source in (
        write_zip(tmp_path / "x.zip", FILES | {name: b"x"}),
        write_tar(tmp_path / "x.tar", special(name, tarfile.REGTYPE)),
    ):
        with pytest.raises(DataError, match=r"evil.* points outside"):
            dict(read_members(source))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(DataError, match=r"x\.tar: member 'odd' is a link or a device"):
        dict(read_members(write_tar(tmp_path / "x.tar", special("odd", kind, "/etc/passwd"))))


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("odd")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="member 'odd' is a link"):
        dict(read_members(tmp_path / "x.zip"))


def test_swollen_member_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1000)
    for source in (write_zip(tmp_path / "x.zip", FILES), write_tar(tmp_path / "x.tar")):
        with pytest.raises(DataError, match="unpacks to more than"):
            dict(read_members(source))


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz"])
def test_cut_archives_are_refused_wherever_they_are_cut(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "cut"
    whole = (write_zip(path, FILES) if mode == "zip" else write_tar(path, mode=mode)).read_bytes()
    # The last kilobytes of a tar are padding, which may go missing without harm.
    end = 4 * 512 + 5120 + 512 if mode == "w" else len(whole)
    for length in range(0, end, max(1, end // 60)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"cut: .*cut short.*Download it again"):
            dict(read_members(path))


def test_garbled_names_are_damage(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", {"\u00e9.txt": b"x"})
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xff\xff"))
    with pytest.raises(DataError, match=r"x\.zip: is damaged"):
        dict(read_members(path))


def test_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.zip: does not exist"):
        dict(read_members(tmp_path / "absent.zip"))


def test_link_loops_end_with_a_message(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    (folder / "b" / "up").symlink_to(folder)
    with pytest.raises(DataError, match=r"b/up: leads to a folder that was already read"):
        dict(read_members(folder))


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    (folder / "self").symlink_to(folder / "self")
    with pytest.raises(DataError, match="self: is neither a file nor a folder"):
        dict(read_members(folder))


def test_links_to_other_folders_are_followed(tmp_path: Path) -> None:
    real = write_folder(tmp_path / "real")
    (tmp_path / "view").mkdir()
    (tmp_path / "view" / "linked").symlink_to(real)
    assert dict(read_members(tmp_path / "view")) == {f"linked/{name}": data for name, data in FILES.items()}
