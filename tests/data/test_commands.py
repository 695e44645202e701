"""`metastep data`: tables and pictures where it works, one line and a status where it does not."""

import re
import subprocess
import sys
from inspect import Signature
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from metastep.cli import data as commands
from metastep.cli.data import app
from metastep.cli.train import DEFAULT
from metastep.data.registry import data_set, data_sets, load
from metastep.data.sets.mnist import FILES
from metastep.train import presets
from tests.data.helpers import write_classes

TRANSFER_DEFAULT = "digits-sgd-multistep"


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


def cells(result: Result) -> list[list[str]]:
    """Of the tables that were printed, row by row."""
    rows = [re.split("[│┃]", line)[1:-1] for line in result.output.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if row]


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
    for name, kind in data_sets().items():
        for text in (name, kind.summary, kind.licence, kind.source, kind.labelled_in_words):
            assert text in result.output
        assert (f"metastep data get {name}, or" in result.output) == bool(kind.downloads)
    assert "none; name one with --data or METASTEP_DATA" in result.output


def test_list_names_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "omniglot.npz").touch()
    by_option = run("list", "--data", tmp_path)
    assert f"{tmp_path}/omniglot.npz" in by_option.output
    assert data_set("omniglot").source not in by_option.output
    assert data_set("mini_imagenet").source in by_option.output
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    assert run("list").output == by_option.output


def test_list_loads_no_torch() -> None:
    code = (
        "import sys; from metastep.__main__ import main; sys.argv = ['metastep', 'data', 'list']\n"
        "try: main()\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_list_of_an_absent_directory(tmp_path: Path) -> None:
    check_refused(run("list", "--data", tmp_path / "absent"), f"{tmp_path}/absent: cannot be listed")


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
        assert result.stdout == "photos [red]-all.png: 1 episode out of 2 classes\n"
    assert [path.name for path in elsewhere.iterdir()] == ["photos [red]-all.png"]


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path, elsewhere: Path) -> None:
    write_classes(tmp_path / "photos", {"a": 4, "b": 2})
    photos = ("show", tmp_path / "photos", "--ways", 2)
    check_refused(run("show", "omniglott"), "omniglott: there is no such folder here", "glyphs")
    check_refused(run("show", "omniglot"), "--data or METASTEP_DATA", "https://github.com/brendenlake/omniglot")
    check_refused(run("show", "omniglot", "--data", tmp_path), f"{tmp_path}: does not hold Omniglot")
    check_refused(run("show", "glyphs", "--split", "trian"), "'trian'", "train, val")
    check_refused(run(*photos, "--queries", 2), "b (2)")
    check_refused(run("show", tmp_path / "photos", "--queries", 1), "5-way episodes need 5 classes")
    for out in (tmp_path / "absent" / "x.png", tmp_path / "x.unknown", tmp_path):
        check_refused(run(*photos, "--queries", 1, "--out", out), f"{out}: cannot be written", ".png")
    assert list(elsewhere.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


HUGE = str(10**18)


def test_huge_numbers_are_refused_in_a_line(tmp_path: Path, elsewhere: Path) -> None:
    photos = write_classes(tmp_path / "photos", dict.fromkeys("abcdefghijkl", 9))
    for option in ("--ways", "--shots", "--queries", "--episodes"):
        check_refused(run("show", "glyphs", option, HUGE), "a sheet of", "is too large. Lower episodes, ways")
    for option in ("--ways", "--shots", "--queries"):
        assert run("check", photos, option, HUGE).exit_code == 1
    check_refused(run("show", "glyphs", "--seed", 2**64), "seed = ")
    assert (
        run("check", photos, "--transfer", "--size", HUGE, "--batch", HUGE).exit_code == 0
    )  # nothing is made so large
    assert list(elsewhere.iterdir()) == []


def test_a_place_that_cannot_be_is_named_before_anything_is_read(tmp_path: Path) -> None:
    check_refused(run("show", "omniglot", "--out", tmp_path / "absent" / "x.png"), "its folder does not exist")


@pytest.mark.parametrize("command", [("check",), ("show",), ("check", "--transfer")])
@pytest.mark.parametrize("name", ["stl10", "cifar100", "cub200", "mini_imagenet", "omniglot", "mnist", "cub"])
def test_damaged_files_are_refused_in_a_line(command: tuple[str, ...], name: str, tmp_path: Path) -> None:
    for place in ("stl10_binary.tar.gz", "cifar-100-binary.tar.gz", "CUB_200_2011.tgz", "mini_imagenet.zip"):
        (tmp_path / place).write_bytes(b"\x1f\x8b\x08damaged")
    (tmp_path / "omniglot.npz").write_bytes(b"PK\x03\x04damaged")
    (tmp_path / "mnist").mkdir()
    for file in FILES:
        (tmp_path / "mnist" / file).write_bytes(b"\0\0")
    if command == ("show",):
        command = ("show", "--out", str(tmp_path / "x.png"))
    check_refused(run(command[0], name, *command[1:], "--data", tmp_path), str(tmp_path))
    assert not (tmp_path / "x.png").exists()


def test_numbers_below_one_are_refused() -> None:
    for option in ("--ways", "--shots", "--queries", "--episodes"):
        result = run("show", "glyphs", option, 0)
        assert result.exit_code == 2
        assert option in result.stderr


def test_check_of_a_good_folder(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", dict.fromkeys("abcdefghijkl", 3) | {"m": 4})
    result = run("check", folder, "--ways", 2, "--queries", 2)
    assert result.exit_code == 0
    assert cells(result) == [
        ["split", "classes", "pictures of each", "2-way 1-shot with 2 queries?"],
        ["train", "8", "3 to 4", "yes"],
        ["val", "2", "3", "yes"],
        ["test", "3", "3", "yes"],
    ]
    assert result.output.splitlines()[-1] == f"{folder}: all is well"


def test_check_says_which_splits_cannot_serve(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", dict.fromkeys("abcdefghijkl", 3))
    train, test = (set(load(f"{folder}", size=4).classes(part).names) for part in ("train", "test"))
    for name in sorted(train)[:6]:
        (folder / name / "000.png").unlink()
    result = run("check", folder, "--ways", 3, "--queries", 2)
    assert result.exit_code == 1
    rows = {split: answer for split, _, _, answer in cells(result)[1:]}
    assert "1 shot and 2 queries need 3 images of each class, but of 8 classes 6 have fewer: " in rows["train"]
    assert set(re.findall(r"(\w) \(2\)", rows["train"])) == set(sorted(train)[:6])  # all of them, to be put right
    assert rows["test"] == f"3-way episodes need 3 classes, but there are {len(test)}. Lower ways, or add classes."
    assert run("check", folder, "--ways", 2, "--queries", 1).exit_code == 0


def test_what_check_agrees_to_can_be_trained_by_default() -> None:
    usual = Signature.from_callable(commands.check).parameters
    asked = presets.few_shot()[DEFAULT].train_episodes
    assert [usual[name].default for name in ("ways", "shots", "queries")] == [asked.ways, asked.shots, asked.queries]


def test_check_of_a_data_set() -> None:
    result = run("check", "glyphs", "--ways", 200)
    assert result.exit_code == 1
    assert [row[:3] for row in cells(result)[1:]] == [
        ["train", "894", "20"],
        ["val", "129", "20"],
        ["test", "308", "20"],
    ]
    assert [row[3][:3] for row in cells(result)[1:]] == ["yes", "200", "yes"]
    result = run("check", "glyphs")
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "glyphs: all is well")


def test_check_of_a_folder_for_transfer(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"cats": 20, "dogs [red]": 10})
    result = run("check", folder, "--transfer")
    assert (result.exit_code, result.stderr) == (0, "")
    assert cells(result) == [
        ["class", "train", "val", "test"],
        ["cats", "12", "4", "4"],
        ["dogs [red]", "6", "2", "2"],
        ["all", "18", "6", "6"],
    ]
    pictures, validation, batches, verdict = result.output.splitlines()[-4:]
    assert pictures.startswith("pictures: 30 of 12x8 to 12x27, in colour; each is stretched to 16x16 pixels (--size)")
    assert validation == "validation: 20% of each class, drawn with seed 0"
    assert batches == "batches: 1 in an epoch, of up to 25 pictures (--batch), the last of 18"
    assert verdict == f"{folder}: all is well for transfer"
    asked = run("check", folder, "--transfer", "--size", 64, "--batch", 4).output
    assert "64x64 pixels" in asked
    assert "5 in an epoch" in asked


def test_who_asks_for_episodes_of_few_classes_is_told_of_transfer(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 9, "b": 9})
    result = run("check", folder)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].endswith("ask with --transfer.")


@pytest.mark.parametrize("flags", [[], ["--transfer"]])
def test_check_of_a_folder_with_parts(flags: list[str], tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 4, "b": 4})
    write_classes(tmp_path / "test", {"b": 9})
    alike = [tmp_path / "test" / "b" / f"{i:03d}.png" for i in range(4)]  # which are those of a in train, too
    for file in alike:
        file.unlink()
    result = run("check", tmp_path, *flags)
    assert result.exit_code == 1
    assert result.output == f"{tmp_path}/test: has a single class: there is nothing to tell apart. " + (
        "Add a folder of another class.\n"
    )
    (tmp_path / "test" / "a").mkdir()
    (tmp_path / "test" / "b" / "008.png").rename(tmp_path / "test" / "a" / "008.png")
    result = run("check", tmp_path, *flags)
    assert result.exit_code == 0
    assert cells(result)[-1] == ["all", "6", "2", "5"]
    assert result.output.splitlines()[-1].startswith(f"{tmp_path}: all is well for transfer; its own train/ and test/")


def test_what_is_wrong_with_a_folder_for_transfer_is_said_once(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 4, "b": 4})
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert result.output.count("there is no test next to it that does") == 1


def test_check_for_transfer_goes_on_without_what_is_wrong(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 5, "b": 5})
    (folder / "a" / "notes.txt").write_text("no picture")
    result = run("check", folder, "--transfer")
    assert result.exit_code == 1
    assert f"1 finding in {folder}\nwithout what was found" in result.output
    assert cells(result)[-1] == ["all", "6", "2", "2"]
    assert "all is well" not in result.output


def test_check_of_labelled_data_for_transfer() -> None:
    assert run("check", "digits", "--transfer").output == run("check", "digits").output
    check_refused(run("check", "omniglot", "--transfer"), "omniglot: where is it?")
    write_classes(Path("omniglot"), {"a": 5, "b": 5})  # a name is the data set's, whatever lies here
    check_refused(run("check", "omniglot", "--transfer"), "omniglot: where is it?")
    assert run("check", "./omniglot", "--transfer").output.endswith("omniglot: all is well for transfer\n")


def test_glyphs_are_for_both() -> None:
    assert run("check", "glyphs", "--transfer").output.startswith("glyphs: all is well: 1,575 train, 210 val, 315 test")


def test_what_check_supposes_is_what_transfer_does_by_default() -> None:
    usual = Signature.from_callable(commands.check).parameters
    asked = presets.transfer()[TRANSFER_DEFAULT]
    assert (usual["size"].default, usual["batch"].default) == (asked.data.size, asked.batch)


def test_show_of_a_folder_with_parts_shows_one(tmp_path: Path, elsewhere: Path) -> None:
    for part in ("train", "test"):
        write_classes(tmp_path / "photos" / part, {"a": 6, "b": 6})
    shown = ("show", tmp_path / "photos", "--ways", 2, "--queries", 1, "--episodes", 1)
    assert run(*shown).stdout == "photos-train.png: 1 episode out of 2 classes\n"
    assert run(*shown, "--split", "test").stdout == "photos-test.png: 1 episode out of 2 classes\n"
    assert len(list(elsewhere.iterdir())) == 2


def test_check_lists_what_is_wrong(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", dict.fromkeys("abc", 3))
    (folder / "a" / "[bold]x\x1b[2J.png").write_text("no picture")
    result = run("check", folder, "--ways", 1, "--queries", 2)
    assert result.exit_code == 1
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    (unreadable,) = (line for line in lines if "unreadable" in line)
    assert r"a/[bold]x\x1b[2J.png" in unreadable
    assert "is not an image in a known format. Remove it" in unreadable
    assert [line for line in lines if str(folder) in line] == [f"1 finding in {folder}"]
    assert cells(result)[-3:] == [[part, "1", "3", "yes"] for part in ("train", "val", "test")]  # once it is removed


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_folder_can_be_named_in_many_ways(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = write_classes(tmp_path / "photos", dict.fromkeys("abcd", 2))
    task = ("--ways", 1, "--shots", 1, "--queries", 1)
    for name in (photos, f"folder:{photos}"):
        assert run(command, name, *task).exit_code == 0
    for name in ("photos", "folder:photos"):
        assert run(command, name, *task, "--data", tmp_path).exit_code == 0
    monkeypatch.setenv("METASTEP_DATA", str(tmp_path))
    assert run(command, "photos", *task).exit_code == 0
    check_refused(run(command, "folder:absent"), "absent: is not a folder")
    check_refused(run(command, "absent"), "absent: there is no such folder here", "the path of a folder")
    check_refused(run(command, ""), ": there is no such folder here")


def test_labelled_data_can_be_shown_and_checked(elsewhere: Path) -> None:
    result = run("show", "digits", "--split", "test", "--episodes", 1)
    assert (result.stdout, result.stderr) == ("digits-test.png: 1 episode out of 10 classes\n", "")
    assert format_of(elsewhere / "digits-test.png") == "PNG"
    result = run("check", "digits")
    rule = "validation: 20 of each class, drawn with seed 0"
    assert result.stdout == f"digits: all is well: 400 train, 200 val, 1,197 test; {rule}\n"
    check_refused(run("show", "digits", "--split", "all"), "'all'", "train, val, test")


@pytest.mark.parametrize("command", ["show", "check", "get"])
def test_labelled_data_that_is_not_here_can_be_had_elsewhere(command: str, tmp_path: Path) -> None:
    check_refused(run(command, "cub200", "--data", tmp_path), data_set("cub200").source)


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
        (["get", "nothing"], "there is no data set 'nothing'"),
        (["get", "stl10"], "To get it: https://cs.stanford.edu"),
        (["get", "folder:x"], "cannot be downloaded for you"),
    ):
        run = CliRunner().invoke(app, arguments, env={"METASTEP_DATA": ""})
        assert run.exit_code == 2
        assert words in run.output
