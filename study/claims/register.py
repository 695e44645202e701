"""Every claim of the paper (Kim, Park and Choi 2020), by table; X are those of text and figures."""

from collections.abc import Iterator, Sequence

from metastep.train.transfer.presets import METHODS, TARGETS
from study.claims import cells, comparing, fewshot_costs, numeric, transfer_comparing, transfer_costs
from study.claims.cells import Printed, Rule
from study.claims.claims import Claim, Judge, quoted

LITERATURE = "literature number; own recipe not run"
NO_RECIPE = "literature number; no recipe was published for this setting"

OMNIGLOT = ("omniglot-5w1s", "omniglot-5w5s", "omniglot-20w1s", "omniglot-20w5s")
MINI_IMAGENET = ("miniimagenet-5w1s", "miniimagenet-5w5s")

# Accuracy and deviation as printed; rows are METHODS, columns are TARGETS.
TRANSFER: dict[str, tuple[str, tuple[str, ...]]] = {
    "T2": ("sgd", (
        "67.69 0.22, 65.18 0.91, 42.15 0.75, 48.91 0.53, 36.93 0.68, 58.08 0.26",
        "70.96 0.61, 78.31 0.21, 65.05 1.19, 64.85 2.75, 63.08 0.88, 78.08 0.96",
        "70.97 0.38, 77.83 0.74, 64.89 0.98, 66.67 0.56, 61.93 3.32, 78.15 0.22",
    )),
    "T3": ("adam", (
        "67.69 0.22, 65.18 0.91, 42.15 0.75, 48.91 0.53, 36.93 0.68, 58.08 0.26",
        "69.35 0.09, 80.61 0.29, 66.26 0.51, 67.74 0.64, 62.05 2.15, 74.38 0.45",
        "70.12 0.23, 79.58 0.54, 66.51 1.08, 67.14 1.08, 65.43 0.23, 77.65 0.11",
    )),
}  # fmt: skip

# What the paper calls a row; our preset, or why there is none; accuracy and half interval in every setting.
FEW_SHOT: dict[str, tuple[tuple[str, ...], Rule, tuple[tuple[str, str, str], ...]]] = {
    "T4": (OMNIGLOT, cells.OMNIGLOT, (
        ("MAML, as cited", "", "98.7 0.4, 99.9 0.1, 95.8 0.3, 98.9 0.2"),
        ("FO-MAML, as cited (numbers of Nichol et al.)", "", "98.3 0.5, 99.2 0.2, 89.4 0.5, 97.9 0.1"),
        ("Reptile, transductive, by its own recipe", "reptile", "97.68 0.04, 99.48 0.06, 89.43 0.14, 97.12 0.32"),
        ("iMAML, by its own recipe", "imaml", "99.50 0.26, 99.74 0.11, 96.18 0.36, 99.14 0.10"),
        ("MAML", "maml", "99.10 0.77, 99.66 0.44, 95.80 0.81, 98.73 0.37"),
        ("FO-MAML", "fomaml", "98.40 1.11, 99.46 0.58, 90.53 1.13, 96.73 0.55"),
        ("Multi-step(2)", "multistep2", "99.10 0.81, 99.66 0.43, 95.60 0.78, 98.70 0.38"),
        ("Multi-step(4)", "multistep4", "98.97 1.02, 99.66 0.47, 95.75 0.77, 98.60 1.03"),
        ("Multi-step(8)", "multistep8", "98.70 1.03, 99.50 0.52, 94.24 0.95, 97.70 0.51"),
    )),
    "T5": (MINI_IMAGENET, cells.MINI_IMAGENET, (
        ("MAML, as cited", "", "48.70 1.84, 63.11 0.92"),
        ("FO-MAML, as cited", "", "48.07 1.75, 63.15 0.91"),
        ("Reptile, transductive, by its own recipe", "reptile", "49.97 0.32, 65.99 0.58"),
        ("iMAML, as cited", "none", "49.30 1.88, –"),
        ("MAML", "maml", "48.49 0.83, 63.43 0.71"),
        ("FO-MAML", "fomaml", "44.90 0.75, 61.57 0.68"),
        ("Multi-step(2)", "multistep2", "48.68 0.82, 63.70 0.73"),
        ("Multi-step(4)", "multistep4", "48.90 0.82, 63.67 0.75"),
        ("Multi-step(8)", "multistep8", "46.85 0.79, 60.84 0.71"),
    )),
}  # fmt: skip
QUOTED = {"": LITERATURE, "none": NO_RECIPE}


def _transfer() -> Iterator[Claim]:
    for table, (optimizer, rows) in TRANSFER.items():
        names = [(f"{target}-{optimizer}-", method) for method in METHODS for target in TARGETS]
        printed = [cell for row in rows for cell in row.split(", ")]
        for number, ((name, method), cell) in enumerate(zip(names, printed, strict=True), 1):
            text = f"test accuracy of {name}{method}, %"
            # Both tables have one row of scratch, by SGD: one run serves both.
            preset = (name.replace("adam", "sgd") if method == "scratch" else name) + method
            yield Claim(f"{table}.{number}", text, shown(cell), cells.transfer(numbers(cell)), (preset,))


def _few_shot() -> Iterator[Claim]:
    for table, (settings, rule, rows) in FEW_SHOT.items():
        places = [
            (row, setting, cell) for row in rows for setting, cell in zip(settings, row[2].split(", "), strict=True)
        ]
        for number, ((title, method, _), setting, cell) in enumerate(places, 1):
            id, text = f"{table}.{number}", f"{title}, {setting}: accuracy, %"
            if method in QUOTED:
                yield Claim(id, text, shown(cell), quoted(QUOTED[method]))
            else:
                yield Claim(id, text, shown(cell), cells.few_shot(numbers(cell), rule), (f"{setting}-{method}",))


def shown(cell: str) -> str:
    return cell.replace(" ", "±")


def numbers(cell: str) -> Printed:
    return Printed(*map(float, cell.split()))


# ---- what text and figures say

DROP, DROP_8 = 0.4, 1.56  # points: of every estimate but Multi-step(8) on 20-way


def _bound(preset: str) -> float:
    return DROP_8 if preset.endswith("multistep8") and "20w" in preset else DROP


def _presets(settings: Sequence[str], *methods: str) -> tuple[str, ...]:
    return tuple(f"{setting}-{method}" for setting in settings for method in methods)


def _times() -> Iterator[Claim]:
    bird = "an epoch of Bird by SGD with momentum"
    yield Claim(
        "T1.1", f"time of {bird}, baseline with T = 2", "379.7±30.9 s; ratio 1.00", transfer_costs.epoch_of_baseline
    )
    yield Claim(
        "T1.2", f"time of {bird}, Multi-step with K = 1", "248.7±14.2 s; ratio 0.65", transfer_costs.epoch_of_multi_step
    )


def _compared_few_shot() -> Iterator[Claim]:
    twenty, five = OMNIGLOT[2:3], MINI_IMAGENET[1:]
    estimates = ("multistep2", "multistep4", "multistep8")
    yield Claim("X3", "what Multi-step(4) costs on Omniglot 5-way 1-shot: points below MAML", "0.13",
                comparing.drop_at_most(0.13), _presets(OMNIGLOT[:1], "maml", "multistep4"))  # fmt: skip
    yield Claim("X6", "Multi-step stays within 0.4 points of MAML on Omniglot, (8) on 20-way within 1.56",
                "0.40 at 5w1s(8); 1.56 at 20w1s(8)", comparing.margins(_bound),
                _presets(OMNIGLOT, "maml", *estimates))  # fmt: skip
    yield Claim("X7", "points that Multi-step(2), (4) gain over first order on Omniglot 20-way 1-shot", "more than 5",
                comparing.gains_of_at_least(5.0, "fomaml"), _presets(twenty, "fomaml", *estimates[:2]))  # fmt: skip
    yield Claim("X8", "limit of the method: points of Multi-step(8) below MAML on miniImageNet 5-way 5-shot", "2.59",
                comparing.drop_about(2.59), _presets(five, "maml", "multistep8"))  # fmt: skip
    yield Claim("X9", "Multi-step(2), (4) keep MAML's accuracy on miniImageNet: least gain, points", "≥ 0 in 4 cells",
                comparing.keeps_up, _presets(MINI_IMAGENET, "maml", *estimates[:2]))  # fmt: skip
    yield Claim("X20", "inner momentum is needed on Omniglot 20-way 1-shot: points over plain SGD", "qualitative",
                comparing.momentum_is_needed, _presets(twenty, "maml", "maml_sgd", "maml_finn"))  # fmt: skip


def _ablation(id: str, text: str, paper: str, judge: Judge, optimizer: str, *methods: str) -> Claim:
    """On Bird; on STL-10 for whoever has no Bird"""
    on_bird, on_stl10 = (_presets([f"{target}-{optimizer}"], *methods) for target in ("bird", "stl10"))
    return Claim(id, text, paper, judge, on_bird, on_stl10)


def _compared_transfer() -> Iterator[Claim]:
    yield _ablation("X5", "first order by the surrogate fails for meta-networks: points below Multi-step",
                    "41.46±2.34 against 64.89±0.98: 23.43", transfer_comparing.surrogate_fails(23.43),
                    "sgd", "scratch", "multistep", "first-order")  # fmt: skip
    yield _ablation("X10", "without a virtual step on the transfer loss (T = 0): points below T = 2",
                    "48.91±0.83 against 66.26±0.51: 17.35", transfer_comparing.is_better(17.35),
                    "adam", "baseline", "t0")  # fmt: skip
    yield _ablation("X11", "T = 2 is the best trade-off, and time grows linearly in T: points over T = 1",
                    "figure only", transfer_comparing.two_steps_are_best, "adam", "t1", "baseline", "t3")  # fmt: skip
    yield _ablation("X12", "2- and 3-step estimates match their exact counterparts: smallest gain, points",
                    "figure only", transfer_comparing.estimates_match,
                    "adam", "multistep", "baseline", "3step-estimate", "t3")  # fmt: skip
    yield _ablation("X13", "one step at twice the rate does not replace two: points below the 2-step estimate",
                    "figure only", transfer_comparing.is_better(),
                    "adam", "multistep", "1step-2lr")  # fmt: skip
    yield _ablation("X15", "the gradient's change inside the inner loop tends to 0 early in training",
                    "figure only", transfer_comparing.gradients_settle, "sgd", "baseline")  # fmt: skip
    pairs = tuple(f"{target}-{which}" for target in TARGETS for which in ("sgd-scratch", "adam-multistep"))
    yield Claim("X19", "Adam dynamics work too: smallest gain of Multi-step over scratch, points", "rows of table 3",
                transfer_comparing.works_with_adam, pairs, group=2)  # fmt: skip


def _costs() -> Iterator[Claim]:
    yield Claim(
        "X1", "training time that Multi-step saves in transfer to Bird, %", "35", transfer_costs.transfer_saving
    )
    yield Claim("X2", "time that Multi-step(4) saves beside MAML with 8 steps, Omniglot 5-way 1-shot, %", "50",
                fewshot_costs.few_shot_saving)  # fmt: skip
    yield Claim("X4", "memory falls as n grows; first order and iMAML need least; iMAML is slow below 8 steps",
                "figure only", fewshot_costs.memory_order)  # fmt: skip
    yield Claim("X14", "training time is saved on every data set, %", "figure only", transfer_costs.saving_everywhere)


def _computed() -> Iterator[Claim]:
    yield Claim("X16", "proposition 1: shared steps of SGD with momentum are no single step with other parameters",
                "b̃₄ ≈ −1.88, b₇ ≈ −1.78", numeric.proposition_1, computed=True)  # fmt: skip
    yield Claim("X17", "naive SGD: n shared steps are one step at n times the rate", "exact identity",
                numeric.naive_sgd, computed=True)  # fmt: skip
    yield Claim("X18", "second-order evaluations drop from Kn to K", "count", numeric.products, computed=True)
    yield Claim("X21", "sizes of the splits of six data sets", "table of appendix D", numeric.split_sizes,
                computed=True)  # fmt: skip


def _in_order(claim: Claim) -> tuple[str, int]:
    letter, number = (claim.table, claim.id.partition(".")[2]) if claim.table != "X" else ("X", claim.id[1:])
    return letter, int(number)


_ALL = (*_times(), *_transfer(), *_few_shot(), *_compared_few_shot(), *_compared_transfer(), *_costs(), *_computed())
REGISTER: dict[str, Claim] = {claim.id: claim for claim in sorted(_ALL, key=_in_order)}
TABLES = {
    "T1": "Table 1: time of an epoch",
    "T2": "Table 2: transfer, SGD with momentum",
    "T3": "Table 3: transfer, Adam",
    "T4": "Table 4: Omniglot",
    "T5": "Table 5: miniImageNet",
    "X": "Text, figures and appendix",
}
