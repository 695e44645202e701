"""`metastep data`: tables and pictures where it works, one line and a status where it does not."""

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from metastep.data import catalog
from metastep.data.commands import app
from metastep.data.labelled import LABELLED
from tests.data.helpers import write_classes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, no data directory, and a terminal that is wide enough for every line."""
    folder = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("METASTEP_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "400")
    return folder


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def format_of(path: Path) -> str | None:
    with Image.open(path) as picture:
        picture.load()
        return picture.format


def check_refused(result: Result, *parts: str) -> None:
    """One line on stderr with all of these in it, status 2, nothing on stdout."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("metastep: ")
    for part in parts:
        assert part in result.stderr


def test_list_names_every_data_set_and_where_to_get_it() -> None:
    result = run("list")
    assert result.exit_code == 0
    for entry in catalog.ENTRIES:
        for text in (entry.name, entry.summary, entry.licence, entry.source, ", ".join(entry.splits)):
            assert text in result.output
    for labelled in LABELLED:
        for text in (labelled.name, labelled.summary, labelled.licence, labelled.source, labelled.parts):
            assert text in result.output
    assert "none; name one with --data or METASTEP_DATA" in result.output


def test_list_names_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "omniglot.npz").touch()
    by_option = run("list", "--data", tmp_path)
    assert f"{tmp_path}/omniglot.npz" in by_option.output
    assert catalog.OMNIGLOT.source not in by_option.output
    assert catalog.MINI_IMAGENET.source in by_option.output
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    assert run("list").output == by_option.output


def test_list_of_an_absent_directory(tmp_path: Path) -> None:
    check_refused(run("list", "--data", tmp_path / "absent"), f"{tmp_path}/absent: cannot be listed")


@pytest.mark.usefixtures("glyphs_cache")
def test_show_writes_a_sheet_of_glyphs(tmp_path: Path, elsewhere: Path) -> None:
    result = run("show", "glyphs", "--split", "val", "--episodes", 2, "--seed", 7)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "glyphs-val.png: 2 episodes out of 129 classes\n"
    assert format_of(elsewhere / "glyphs-val.png") == "PNG"
    result = run("show", "glyphs", "--out", tmp_path / "sheet.jpg", "--ways", 3, "--shots", 2, "--queries", 1)
    assert result.exit_code == 0
    assert format_of(tmp_path / "sheet.jpg") == "JPEG"
    assert len(list(elsewhere.iterdir())) == 1


def test_show_of_a_folder_shows_all_of_it(tmp_path: Path, elsewhere: Path) -> None:
    write_classes(tmp_path / "photos [red]", {"a": 4, "b": 3})
    for name in (tmp_path / "photos [red]", f"folder:{tmp_path}/photos [red]"):
        result = run("show", name, "--ways", 2, "--queries", 2, "--episodes", 1)
        assert result.stdout == "photos [red]-all.png: 1 episodes out of 2 classes\n"
    assert [path.name for path in elsewhere.iterdir()] == ["photos [red]-all.png"]


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path, elsewhere: Path) -> None:
    write_classes(tmp_path / "photos", {"a": 4, "b": 2})
    photos = ("show", tmp_path / "photos", "--ways", 2)
    check_refused(run("show", "omniglott"), "'omniglott': unknown", "glyphs")
    check_refused(run("show", "omniglot"), "--data or METASTEP_DATA", "https://github.com/brendenlake/omniglot")
    check_refused(run("show", "omniglot", "--data", tmp_path), f"{tmp_path}: does not hold Omniglot")
    check_refused(run("show", "glyphs", "--split", "trian"), "'trian'", "train, val")
    check_refused(run(*photos, "--queries", 2), "b (2)")
    check_refused(run("show", tmp_path / "photos", "--queries", 1), "5-way episodes need 5 classes")
    for out in (tmp_path / "absent" / "x.png", tmp_path / "x.unknown", tmp_path):
        check_refused(run(*photos, "--queries", 1, "--out", out), f"{out}: cannot be written", ".png")
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_numbers_below_one_are_refused() -> None:
    for option in ("--ways", "--shots", "--queries", "--episodes"):
        result = run("show", "glyphs", option, 0)
        assert result.exit_code == 2
        assert option in result.stderr


def test_check_of_a_good_folder(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 3, "b": 3})
    result = run("check", folder, "--shots", 1, "--queries", 2)
    assert result.exit_code == 0
    assert result.output == f"{folder}: all is well for 1 shots and 2 queries\n"


def test_check_lists_what_is_wrong(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 3, "b": 1})
    (folder / "a" / "[bold]x\x1b[2J.png").write_text("no picture")
    result = run("check", folder, "--queries", 2)
    assert result.exit_code == 1
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    (unreadable,) = (line for line in lines if "unreadable" in line)
    assert r"a/[bold]x\x1b[2J.png" in unreadable
    assert "is not an image in a known format. Remove it" in unreadable
    (few,) = (line for line in lines if "too few" in line)
    assert "has 1 usable pictures, but shots + queries need 3" in few
    assert lines[-1] == f"2 findings in {folder}"
    assert str(folder) not in "".join(lines[:-1])


def test_check_finds_folders_below_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_classes(tmp_path / "photos", {"a": 16})
    assert run("check", "photos", "--data", tmp_path).exit_code == 0
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    assert run("check", "photos").exit_code == 0
    check_refused(run("check", "absent"), "absent: is not a folder")


def test_labelled_data_can_be_shown_and_checked(elsewhere: Path) -> None:
    result = run("show", "digits", "--split", "test", "--episodes", 1)
    assert (result.stdout, result.stderr) == ("digits-test.png: 1 episodes out of 10 classes\n", "")
    assert format_of(elsewhere / "digits-test.png") == "PNG"
    result = run("check", "digits")
    rule = "validation: 20 of each class, drawn with seed 0"
    assert result.stdout == f"digits: all is well: 400 train, 200 val, 1,197 test; {rule}\n"
    check_refused(run("show", "digits", "--split", "all"), "'all'", "train, val, test")


@pytest.mark.parametrize("command", ["show", "check", "get"])
def test_labelled_data_that_is_not_here_can_be_had_elsewhere(command: str, tmp_path: Path) -> None:
    (entry,) = (entry for entry in LABELLED if entry.name == "cub200")
    check_refused(run(command, "cub200", "--data", tmp_path), entry.source)


def test_list_finds_labelled_data(tmp_path: Path) -> None:
    (tmp_path / "stl10_32_lossless.npz").touch()
    assert f"{tmp_path}/stl10_32_lossless.npz" in run("list", "--data", tmp_path).output


def test_real_data_can_be_shown(real_data: Path, elsewhere: Path) -> None:
    result = run("show", "omniglot", "--data", real_data, "--split", "test")
    assert result.stdout == "omniglot-test.png: 4 episodes out of 423 classes\n"
    assert (elsewhere / "omniglot-test.png").exists()


def test_get_says_what_it_cannot_fetch() -> None:
    for arguments, words in (
        (["get", "mini_imagenet"], "cannot be downloaded for you"),
        (["get", "omniglot"], "Name a data directory"),
        (["get", "nothing"], "unknown"),
    ):
        run = CliRunner().invoke(app, arguments, env={"METASTEP_DATA": ""})
        assert run.exit_code == 2
        assert words in run.output
