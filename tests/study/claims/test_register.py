"""The register: all claims are there, with the paper's numbers and with presets that exist."""

import math
from decimal import Decimal
from pathlib import Path

import pytest

from metastep.data.registry import data_set, data_sets
from metastep.errors import MetastepError
from metastep.train import presets
from study.claims import files, keeping
from study.claims.claims import Finding
from study.claims.evidence import Evidence
from study.claims.judges import JUDGES
from study.claims.kinds import kind_of
from study.claims.planning import jobs_for, presets_of, price
from study.claims.register import REGISTER, TABLES, read
from study.claims.transfer_runs import LOOKS, configured, is_there
from study.targets import SIZES, TARGETS
from tests.test_docs import ROOT

CELLS = {"T1": 2, "T2": 18, "T3": 18, "T4": 36, "T5": 18}
IDS = [f"{table}.{n}" for table, count in CELLS.items() for n in range(1, count + 1)] + [f"X{n}" for n in range(1, 22)]
# Sums of accuracies, and of deviations or intervals: a digit that is changed by mistake changes one of them.
SUMS = {"T2": ("1159.71", "16.15"), "T3": ("1165.76", "10.75"), "T4": ("3510.96", "18.15"), "T5": ("939.32", "15.79")}


def test_every_claim_is_there_in_order() -> None:
    assert list(REGISTER) == IDS
    assert {claim.table for claim in REGISTER.values()} == TABLES.keys()
    assert all(id == claim.id and claim.claim and claim.paper for id, claim in REGISTER.items())


@pytest.mark.parametrize("table", SUMS)
def test_the_numbers_of_a_table_add_up_to_those_of_the_paper(table: str) -> None:
    cells = [claim.paper for id, claim in REGISTER.items() if id.startswith(f"{table}.")]
    columns = zip(*(cell.split("±") for cell in cells if cell != "–"), strict=True)
    assert tuple(str(sum(map(Decimal, column))) for column in columns) == SUMS[table]


@pytest.mark.parametrize(
    ("id", "preset", "paper"),
    [
        ("T2.8", "stl10-sgd-baseline", "78.31±0.21"),
        ("T3.2", "stl10-sgd-scratch", "65.18±0.91"),
        ("T3.9", "bird-adam-baseline", "66.26±0.51"),
        ("T3.18", "dog-adam-multistep", "77.65±0.11"),
        ("T4.9", "omniglot-5w1s-reptile", "97.68±0.04"),
        ("T4.31", "omniglot-20w1s-multistep4", "95.75±0.77"),
        ("T5.12", "miniimagenet-5w5s-fomaml", "61.57±0.68"),
    ],
)
def test_a_cell_has_its_preset_and_number(id: str, preset: str, paper: str) -> None:
    assert (REGISTER[id].presets, REGISTER[id].paper) == ((preset,), paper)


@pytest.mark.parametrize("claim", [claim for claim in REGISTER.values() if claim.presets], ids=lambda claim: claim.id)
def test_what_it_needs_exists(claim: object) -> None:
    for preset in (*claim.presets, *claim.stand_in):  # type: ignore[attr-defined]
        assert preset in presets.tables()
        kind_of(preset).configured(preset, 1, None, {"device": "cpu"})


@pytest.mark.parametrize("name", data_sets())
def test_only_what_comes_with_metastep_is_always_at_hand(name: str, tmp_path: Path) -> None:
    assert is_there(name, tmp_path) == data_set(name).embedded


def test_what_is_only_quoted_says_so() -> None:
    quoted = [f"T4.{n}" for n in range(1, 9)] + ["T5.1", "T5.2", "T5.3", "T5.4", "T5.7", "T5.8"]
    for id in quoted:
        finding = REGISTER[id].judge(Evidence(Path("a"), Path("b")), ())
        assert isinstance(finding, Finding)
        assert finding.verdict == "not run"
        assert finding.note.startswith("literature number")


def test_sizes_add_up_to_the_totals_that_the_paper_prints() -> None:
    assert list(SIZES) == list(TARGETS)
    for target, (pictures, *_) in SIZES.items():
        config = configured(f"{target}-sgd-baseline", 0, None, {})
        looks = config.epochs * math.ceil(pictures / config.batch) / config.gradient_difference
        assert LOOKS <= looks < LOOKS + 3
    assert [sum(sizes) for sizes in SIZES.values()] == [60_000, 13_000, 11_788, 6_700, 9_532, 20_580]


def test_only_the_runs_of_one_claim_look_at_their_gradients() -> None:
    looking = {preset for preset in presets.transfer() if configured(preset, 0, None, {}).gradient_difference}
    assert looking == {f"{target}-sgd-baseline" for target in (*TARGETS, "digits")}
    assert {*REGISTER["X15"].presets, *REGISTER["X15"].stand_in} <= looking


def test_small_tasks_come_first_and_cheap_methods_before_dear_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evidence, "lacking_to_train", lambda self, preset: None)
    jobs = jobs_for(REGISTER.values(), Evidence(tmp_path, tmp_path), 2)
    names = [job.preset for job in jobs if job.seed == 0]
    assert [job.seed for job in jobs] == [0] * len(names) + [1] * len(names)
    assert len(set(names)) == len(names)
    places = [
        names.index(name)
        for name in ("omniglot-5w1s-multistep8", "omniglot-5w1s-multistep4", "omniglot-5w1s-maml",
                     "omniglot-5w5s-multistep8", "omniglot-20w1s-multistep8", "omniglot-20w5s-maml",
                     "miniimagenet-5w1s-maml", "stl10-sgd-scratch", "stl10-sgd-multistep", "stl10-sgd-baseline",
                     "cifar100-sgd-baseline", "dog-sgd-scratch")
    ]  # fmt: skip
    assert places == sorted(places)
    assert price("omniglot-20w1s-fomaml") < price("omniglot-20w1s-maml")


def test_stl10_stands_in_where_bird_is_not_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence, claim = Evidence(tmp_path, tmp_path), REGISTER["X13"]
    for absent, chosen in ((("bird",), claim.stand_in), (("bird", "stl10"), claim.presets), ((), claim.presets)):
        lacking = lambda self, preset, absent=absent: "it" if preset.startswith(absent or "?") else None  # noqa: E731
        monkeypatch.setattr(Evidence, "lacking", lacking)
        assert presets_of(claim, evidence) == chosen


def as_typed_now(command: str) -> str:
    """Older files keep the command as it was typed, when the study was a part of `metastep`."""
    return command.replace("metastep reproduce", "python -m study claims")


def test_files_of_claims_say_what_is_kept() -> None:
    folder, seen = ROOT / "results" / "claims", 0
    evidence = Evidence(Path("nowhere"), ROOT / "results" / "bench", kept=folder / keeping.FOLDER)
    for each in REGISTER.values():
        if each.presets and all(keeping.kept(folder / keeping.FOLDER, preset) for preset in each.presets):
            content = files.content_of(each, each.judge(evidence, each.presets))
            found = files.read(folder, each.id)
            assert found is not None
            assert found | {"command": as_typed_now(found["command"])} == content, each.id
            seen += 1
    assert seen > 0


def test_every_judge_is_asked_for() -> None:
    assert {claim.judge.func.__name__ for claim in REGISTER.values()} == JUDGES.keys()  # type: ignore[attr-defined]


ROW = {"id": "X1", "claim": "c", "paper": "1", "judge": "drop_at_most", "with": {"bound": 0.1}}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"judge": "drop_at_mots"}, r"X1: judge = 'drop_at_mots': there is no such judge.*drop_at_most"),
        ({"with": {}}, r"X1: judge = 'drop_at_most': missing a required argument: 'bound'.*`with`"),
        ({"with": {"bound": 0.1, "over": "maml"}}, r"X1: judge = 'drop_at_most': got an unexpected keyword.*'over'"),
        ({"preset": ["a"]}, r"X1: .*unexpected keyword argument 'preset'"),
        ({"id": "X2"}, r"two claims are called X2"),
    ],
)
def test_a_row_that_is_wrong_is_named(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"

    def written(row: dict[str, object]) -> str:
        return "".join(f"{name} = {_toml(value)}\n" for name, value in row.items())

    rows = [ROW | change, ROW | {"id": "X2"}]
    path.write_text("[X]\ntitle = 't'\n" + "".join(f"[[X.claims]]\n{written(row)}" for row in rows))
    with pytest.raises(MetastepError, match=reason):
        read(path)


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(each)}' for name, each in value.items())} }}"
    return repr(value)
