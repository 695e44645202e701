"""The page: whole, alone, and with every name that comes from a file escaped."""

import re
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from metastep.data.errors import DataError
from metastep.data.pictures import Pictures
from metastep.report.collect import collect, named
from metastep.report.figures import MOST_POINTS, thinned
from metastep.report.page import duration, number, write_report
from metastep.train import remembered
from metastep.train.config import FewShot
from metastep.train.evaluate import read_evaluations, save
from metastep.train.fewshot.evaluate import Request, evaluate
from metastep.train.fewshot.learner import Learner
from metastep.train.io import RunError
from metastep.train.run import Run, Which
from tests.train.fewshot.helpers import TINY, loading, stripes
from tests.train.fewshot.use_helpers import fresh, write_run

EVIL = "<img src=x onerror=alert(1)>\"'&"
VOID = {"meta", "img", "br", "input", "link", "hr"}
LINKS = ("src", "href", "xlink:href", "action", "data", "srcset", "poster")


def evil_stripes(split: str) -> Pictures:
    images = stripes(split)
    return images._replace(names=tuple(f"{EVIL} {i}" for i in range(len(images.names))))


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "load", loading(evil_stripes))


class Page(HTMLParser):
    """What a browser would see; open tags are kept track of, so that a missing end is found."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.tags, self.links, self.attributes = "", [], [], []  # type: ignore[var-annotated]
        self._open: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.links += [value for name, value in attrs if name in LINKS]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(tmp_path: Path, *folders: Path, **options: int) -> Page:
    write_report(folders, tmp_path / "report.html", **options)
    return Page(tmp_path / "report.html")


def evaluated(folder: Path, config: FewShot = TINY, best: bool = True) -> Path:
    write_run(folder, config, best=best)
    return evaluated_again(folder)


def evaluated_again(folder: Path, which: Which = "best") -> Path:
    save(folder, evaluate(Learner.load(folder, which), Request(episodes=5)))
    return folder


def trained_on(folder: Path, best: bool) -> None:
    learner = fresh()
    with torch.no_grad():
        learner.net.head.bias.add_(1)  # type: ignore[union-attr]
    tree = Run(folder).load() | learner.tree()
    Run(folder).save(tree, tree if best else None)


def check_self_contained(page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    assert all(link.startswith(("data:image/", "#")) for link in page.links)
    assert "http:" not in page.source
    assert "https:" not in page.source
    assert "@import" not in page.source
    assert page.source.count("url(") == page.source.count("url(#")
    assert not any(name.startswith("on") for _, name, _ in page.attributes)


def test_one_run_has_all_its_parts(tmp_path: Path) -> None:
    page = page_of(tmp_path, evaluated(tmp_path / "mine"))
    check_self_contained(page)
    for heading in (
        "Training loss",
        "Validation accuracy",
        "Accuracy by adaptation step",
        "Change of the inner gradient",
    ):
        assert heading in page.text
    assert page.tags.count("svg") == 6
    assert page.text.count("Episode ") == 2
    assert page.tags.count("img") == 2 * 3 * (1 + 2)  # episodes, ways, shots and queries
    for setting in ("multi_step (window 2)", "inner.momentum", "0.9", "75.0 %", "Second-order products", "Peak memory"):
        assert setting in page.text


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    other = replace(TINY, inner=replace(TINY.inner, lr=0.05))
    folders = [evaluated(tmp_path / "one"), evaluated(tmp_path / "two", other), write_run(tmp_path / "three")]
    page = page_of(tmp_path, *folders)
    check_self_contained(page)
    assert "3 runs side by side" in page.text
    assert "1 differ" in page.text
    assert page.source.count('class="differs"') == 1
    assert page.tags.count("svg") == 6
    assert page.text.count("Episode ") == 6


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "pictures" / EVIL).mkdir(parents=True)
    config = replace(TINY, data=replace(TINY.data, name=f"folder:{tmp_path}/pictures/{EVIL}"))
    page = page_of(tmp_path, evaluated(tmp_path / EVIL, config), write_run(tmp_path / "plain"))
    check_self_contained(page)
    assert EVIL not in page.source
    assert page.text.count(EVIL) > 6  # title, tables, legend, names of classes, configuration
    assert f"folder:{EVIL}" in page.text
    assert str(tmp_path) not in page.text


def test_figures_are_sound_inline(tmp_path: Path) -> None:
    page = page_of(tmp_path, evaluated(tmp_path / "mine"))
    ids = [value for tag, name, value in page.attributes if name == "id" and tag in ("section", "svg", "g")]
    assert len(ids) == len(set(ids))
    assert "currentColor" in page.source
    assert "#010203" not in page.source
    assert all(link[1:] in page.source.replace(link, "") for link in page.links if link.startswith("#"))


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "mine")
    assert page_of(tmp_path, folder).source == page_of(tmp_path, folder).source


@pytest.mark.parametrize("best", [True, False])
def test_an_evaluation_of_earlier_weights_is_marked(best: bool, tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "mine", best=best)
    assert weights_told(tmp_path, folder) == ["best" if best else "last"]
    trained_on(folder, best)
    assert weights_told(tmp_path, folder) == ["best (earlier)" if best else "last (earlier)"]
    assert weights_told(tmp_path, evaluated_again(folder)) == ["best" if best else "last"]


def test_the_last_checkpoint_can_move_on_from_the_best(tmp_path: Path) -> None:
    folder = evaluated_again(evaluated(tmp_path / "mine"), "last")
    assert weights_told(tmp_path, folder) == ["best", "last"]
    trained_on(folder, best=False)
    assert weights_told(tmp_path, folder) == ["best", "last (earlier)"]


def test_what_a_run_has_now_speaks_for_it(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "mine", best=False)
    (mislabelled,) = (replace(each, checkpoint="best", accuracy=1.0) for each in read_evaluations(folder))
    save(folder, mislabelled)  # of a checkpoint that is not there
    assert weights_told(tmp_path, folder) == ["best (earlier)", "last"]
    (collected,) = collect(folder, "mine", "red", 0, None, None)
    assert collected.headline is not None
    assert collected.headline.checkpoint == "last"


def test_the_evaluation_as_it_is_to_be_judged_speaks_for_a_run(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "mine")
    (usual,) = read_evaluations(folder)
    others = {"windows": (9,), "queries": 1, "rotations": "per_episode", "seed": 1, "episodes": usual.episodes - 1}
    for name, value in others.items():
        save(folder, replace(usual, **{name: value, "accuracy": 99.0}))
    assert len(read_evaluations(folder)) == 1 + len(others)
    assert collect(folder, "mine", "red", 0, None, None)[0].headline == usual


def weights_told(tmp_path: Path, folder: Path) -> list[str]:
    """What the rows of the page say that was evaluated"""
    cells = re.findall(r"<td>([^/]*?(?:<span.*?</span>)?)</td><td>stripes, test", page_of(tmp_path, folder).source)
    return [re.sub("<.*?>", "", cell) for cell in cells]


def test_without_data_the_rest_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = evaluated(tmp_path / "mine")

    def absent(*arguments: object, **options: object) -> Pictures:
        raise DataError(f"{EVIL} is not here.")

    monkeypatch.setattr(remembered, "load", absent)
    page = page_of(tmp_path, folder)
    check_self_contained(page)
    assert f"mine: data.name = stripes: {EVIL} is not here." in page.text
    assert page.tags.count("svg") == 5


def test_a_net_of_the_users_own_is_not_imported(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine", replace(TINY, net=replace(TINY.net, name="os:system")), fresh())
    assert "name it again: --net=os:system" in page_of(tmp_path, folder).text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    Run.create(tmp_path / "new", TINY)
    page = page_of(tmp_path, tmp_path / "new")
    check_self_contained(page)
    for text in ("There are no metrics yet", "Nothing was evaluated yet", "has no checkpoint yet"):
        assert text in page.text


def test_what_a_run_was_told_and_its_growth_are_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "kind": "train", "loss": 1.0, "accuracy": 0.2, "growth": 1721.0, "seconds": 5.0}\n')
        file.write('{"step": 10, "kind": "train", "loss": 1.0, "accuracy": 0.2, "growth": 1500.0, "seconds": 6.0}\n')
        file.write('{"step": 10, "kind": "advice", "text": "Accuracy is 20 %. Try outer.clip=0.5."}\n')
    page = page_of(tmp_path, folder)
    assert "Growth of the sweep" in page.text
    assert "Try outer.clip=0.5." in page.text


def test_metrics_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "kind": "train", "loss": null, "accuracy": 0.5, "seconds": 5}\n{"step": 10}\n')
    assert page_of(tmp_path, folder, episodes=0).tags.count("svg") == 5


ODD = (
    '{"step": 9, "kind": "weights", "epoch": "x", "where_0_0": "y"}',
    '{"step": 9, "kind": "weights", "epoch": 1, "where_99_99": 1, "where_0_0": "y"}',
    '{"step": 9, "kind": "train", "epoch": "x", "loss": 1e308, "accuracy": 1e999, "seconds": "now"}',
    f'{{"step": {"9" * 400}, "kind": "validation", "validation_accuracy": 0.5, "validation_interval": []}}',
    f'{{"step": {"9" * 400}, "kind": "validation", "validation_accuracy": "0.5"}}',
    '{"step": 9, "kind": {}}', '{"step": 9, "kind": "engine", "path": 5}',
    '{"step": 1, "kind": "layers", "source_0": 1}',
    '{"step": -1, "kind": "validation", "validation_accuracy": -1e308}',
)  # fmt: skip


@pytest.mark.parametrize("row", ODD)
def test_a_damaged_row_is_left_out_or_refused(row: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f"{row}\n")
    with suppress(RunError):
        assert page_of(tmp_path, folder, episodes=0).tags.count("svg") >= 5


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "mine")
    (folder / "metrics.jsonl").write_text("no json\n")
    with pytest.raises(RunError, match="line 1 is no row of metrics"):
        page_of(tmp_path, folder)
    assert not (tmp_path / "report.html").exists()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    names = [name for _, name, _ in named([tmp_path / "a" / "run", tmp_path / "b" / "run"])]
    assert names == [f"{tmp_path}/a/run", f"{tmp_path}/b/run"]
    assert [name for _, name, _ in named([tmp_path / "a" / "run"])] == ["run"]


def test_long_curves_are_thinned() -> None:
    points = [(float(i), 2.0 * i) for i in range(6_001)]
    few = thinned(points)
    assert len(few) == MOST_POINTS
    assert all(y == pytest.approx(2 * x) for x, y in few)
    assert thinned(points[:9]) == points[:9]


def test_numbers_are_readable() -> None:
    assert [number(None), number(1234.5), number(-0.5, 1), number(60_000, 0)] == ["—", "1,234.50", "−0.5", "60,000"]
    assert [duration(0.5), duration(90), duration(600), duration(9_000)] == ["500.0 ms", "90.0 s", "10.0 min", "2.5 h"]
