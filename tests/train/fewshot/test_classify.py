"""Classes of a user's own: pictures as in training, any number of them, predictions that stand by themselves."""

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metastep.data.errors import DataError
from metastep.errors import MetastepError, NonFiniteError
from metastep.report.sheet import CARD, gallery
from metastep.train.fewshot.classify import Classified, balanced, classify, drawing, has_dark_ink, prepare
from tests.train.fewshot.helpers import TINY
from tests.train.fewshot.use_helpers import SIZE, bar, drawings, fresh, write_bars

SHOTS = {"lying": 2, "square": 1, "standing": 4}
LEARNER = fresh(drawings())


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    support = write_bars(tmp_path / "support", SHOTS)
    return support, write_bars(tmp_path / "query", dict.fromkeys(SHOTS, 3), first=10)


def test_classes_that_differ_are_told_apart(folders: tuple[Path, Path]) -> None:
    result = classify(LEARNER, *folders)
    assert result.shots == SHOTS
    assert len(result.predictions) == 9
    assert result.accuracy == 100
    for prediction in result.predictions:
        assert prediction.truth == prediction.path.parent.name == prediction.name
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        assert prediction.probability == max(prediction.probabilities.values())


def test_from_python_in_three_lines(folders: tuple[Path, Path]) -> None:
    assert LEARNER.classify(str(folders[0]), str(folders[1])).accuracy == 100


def test_another_number_of_classes(folders: tuple[Path, Path], tmp_path: Path) -> None:
    two = write_bars(tmp_path / "two", {"lying": 1, "standing": 1})
    result = classify(LEARNER, two, folders[1])
    assert result.classes == ("lying", "standing")
    assert [p.truth for p in result.predictions].count(None) == 3  # squares are no class here
    assert len(result.judged) == 6


def test_a_flat_folder_and_a_single_picture(folders: tuple[Path, Path], tmp_path: Path) -> None:
    support, query = folders
    flat = tmp_path / "flat"
    flat.mkdir()
    for file in query.rglob("*.png"):
        file.rename(flat / f"{file.parent.name}-{file.name}")
    result = classify(LEARNER, support, flat)
    assert result.accuracy is None
    assert [p.name for p in result.predictions] == [p.path.name.split("-")[0] for p in result.predictions]
    alone = classify(LEARNER, support, flat / "lying-0.png")
    assert (alone.predictions[0].name, str(alone.predictions[0].path)) == ("lying", "lying-0.png")
    # A picture that is judged apart is judged alike in any company.
    among = next(p for p in result.predictions if p.path.name == "lying-0.png")
    assert among.probability == pytest.approx(alone.predictions[0].probability, abs=1e-5)


def test_together_is_another_way(folders: tuple[Path, Path]) -> None:
    apart, together = (classify(LEARNER, *folders, together=choice) for choice in (False, True))
    assert apart.predictions != together.predictions
    one = folders[1] / "lying" / "0.png"
    assert classify(LEARNER, folders[0], one, together=True).predictions[0].name == "lying"


def test_dark_ink_on_paper_is_as_good_as_bright_ink_on_black(folders: tuple[Path, Path], tmp_path: Path) -> None:
    dark = write_bars(tmp_path / "dark", dict.fromkeys(SHOTS, 3), first=10, dark=True)
    bright, inverted = classify(LEARNER, *folders), classify(LEARNER, folders[0], dark)
    assert (bright.inverted, inverted.inverted) == (0, 9)
    assert inverted.predictions == bright.predictions
    assert classify(LEARNER, folders[0], dark, ink="light").inverted == 0
    assert classify(LEARNER, *folders, ink="dark").inverted == 16
    with pytest.raises(MetastepError, match="auto, dark, light"):
        classify(LEARNER, *folders, ink="red")  # type: ignore[arg-type]


def test_classes_are_balanced_by_repetition() -> None:
    labels = torch.tensor([0, 1, 1, 1, 2, 2])
    order = balanced(labels)
    assert Counter(labels[order].tolist()) == {0: 3, 1: 3, 2: 3}
    assert set(order.tolist()) == set(range(6))
    equal = torch.tensor([0, 0, 1, 1])
    assert torch.equal(balanced(equal), torch.arange(4))


def test_a_picture_of_the_training_set_stays_as_it_is(tmp_path: Path) -> None:
    pixels = bar("square")
    for shown, inverted in ((pixels, False), (255 - pixels, True)):
        Image.fromarray(shown).save(tmp_path / "x.png")
        ready = prepare(tmp_path / "x.png", drawings())
        assert ready.inverted == inverted
        assert np.array_equal(ready.pixels[0], pixels)


def test_a_photo_of_paper_becomes_ink_on_black() -> None:
    noise = np.random.default_rng(0).normal(0, 3, (10 * SIZE, 14 * SIZE))
    for paper, ink in ((220, 60), (110, 20), (40, 200)):  # in daylight, in the dusk, chalk on a board
        grey = (paper + noise).astype(np.float32)
        grey[60:100, 40:180] += ink - paper
        assert has_dark_ink(grey) == (ink < paper)
        small = drawing(255 - grey if ink < paper else grey, SIZE)
        assert small.shape == (SIZE, SIZE)
        assert small.max() == 255
        assert np.median(small) < 16
        assert (small[0] < 16).all()  # what was added above and below to make it square is paper


def test_a_blank_picture_stays_blank() -> None:
    for level in (0, 255):
        assert drawing(np.full((9, 5), level, np.float32), SIZE).max() == 0
    assert has_dark_ink(np.full((9, 5), 255, np.float32))
    assert not has_dark_ink(np.zeros((9, 5), np.float32))


def test_photos_are_left_as_they_are(folders: tuple[Path, Path]) -> None:
    colour = fresh(replace(TINY, net=replace(TINY.net, channels=3)))
    result = classify(colour, *folders, ink="dark")
    assert (result.inverted, result.drawings) == (0, False)
    assert result.query.shape == (9, 3, SIZE, SIZE)


def test_json_and_csv_hold_every_probability(folders: tuple[Path, Path]) -> None:
    (folders[1] / "=1+2,\n\x1b[31m").mkdir()
    Image.fromarray(bar("lying")).save(folders[1] / "=1+2,\n\x1b[31m" / '"x".png')
    result = classify(LEARNER, *folders)
    content = json.loads(result.to_json())
    assert content["shots"] == SHOTS
    assert content["accuracy"] == 100
    assert [row["probabilities"] for row in content["predictions"]] == [p.probabilities for p in result.predictions]
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert len(rows) == 10
    assert "\x1b" not in result.to_csv()
    for row, prediction in zip(rows, result.predictions, strict=True):
        assert row["prediction"] == prediction.name
        assert float(row["p(lying)"]) == pytest.approx(prediction.probabilities["lying"], abs=1e-6)
    assert rows[0]["truth"] == ""


def test_the_picture_has_a_card_for_every_query(folders: tuple[Path, Path]) -> None:
    result = classify(LEARNER, *folders)
    nine, two = gallery(result), gallery(part(result, 2))
    assert nine.height - two.height == CARD[1] + 4
    assert nine.mode == "RGB"


def part(result: Classified, number: int) -> Classified:
    return replace(result, predictions=result.predictions[:number], query=result.query[:number])


def test_too_many_queries_for_a_picture(folders: tuple[Path, Path]) -> None:
    result = classify(LEARNER, *folders)
    with pytest.raises(DataError, match="do not fit"):
        gallery(replace(result, predictions=result.predictions * 1000))


def test_folders_that_cannot_be_used(folders: tuple[Path, Path], tmp_path: Path) -> None:
    support, query = folders
    (tmp_path / "empty").mkdir()
    one = write_bars(tmp_path / "one", {"lying": 2})
    for near, far, message in (
        (tmp_path / "absent", query, "is not a folder"),
        (one, query, "has fewer than two classes"),
        (support, tmp_path / "absent", "is not there"),
        (support, tmp_path / "empty", "has no pictures"),
        (support, tmp_path, "is a folder inside a sub-folder"),
    ):
        with pytest.raises(DataError, match=message):
            classify(LEARNER, near, far)
    (support / "lying" / "x.png").write_text("no picture")
    with pytest.raises(DataError, match=r"x\.png: is not an image"):
        classify(LEARNER, support, query)


def test_queries_that_are_no_pictures_are_left_out(folders: tuple[Path, Path], tmp_path: Path) -> None:
    before = classify(LEARNER, *folders)
    (folders[1] / "lying" / "x.png").write_text("no picture")
    found = classify(LEARNER, *folders)
    assert found.predictions == before.predictions
    assert list(found.unreadable) == [Path("lying/x.png")]
    assert "is not an image" in found.unreadable[Path("lying/x.png")]
    assert json.loads(found.to_json())["unreadable"].keys() == {"lying/x.png"}
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(DataError, match=r"notes\.txt: is not an image"):
        classify(LEARNER, folders[0], tmp_path / "notes.txt")


def test_adapting_that_diverges_is_said(folders: tuple[Path, Path]) -> None:
    wild = replace(LEARNER, config=replace(LEARNER.config, inner=replace(LEARNER.config.inner, lr=1e30)))
    with pytest.raises(NonFiniteError, match="not finite"):
        classify(wild, *folders)
