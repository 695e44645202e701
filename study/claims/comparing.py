"""Claims that compare few-shot methods: paired on the same episodes. Presets are in the order of claims.toml."""

from collections.abc import Iterator, Mapping, Sequence

from study.claims.claims import Finding, Presets, holds
from study.claims.differences import Difference, behind, listed, paired
from study.claims.evidence import Evidence


def found(true: bool, shown: Difference, differences: Sequence[Difference], note: str = "") -> Finding:
    """`shown` is the value; `differences` are in the note. One seed each decides nothing: it is measured"""
    known = all(each.interval is not None for each in differences)
    interval = None if shown.interval is None else round(shown.interval, 2)
    text = listed(differences) + (f" {note}" if note else "")
    return Finding(holds(true) if known else "measured", round(shown.mean, 2), interval, text, behind(differences))


def drop_at_most(evidence: Evidence, presets: Presets, bound: float) -> Finding:
    """Ask whether estimation costs at most `bound` points, as far as the interval tells. Presets: exact, estimated."""
    drop = paired(evidence, *presets)
    return found(drop.low <= bound, drop, [drop])


def drop_about(evidence: Evidence, presets: Presets, size: float) -> Finding:
    """Ask whether estimation costs about `size` points. Presets: exact, estimated."""
    drop = paired(evidence, *presets)
    return found(drop.about(size), drop, [drop])


def margins(evidence: Evidence, presets: Presets, bound: float, others: Mapping[str, float]) -> Finding:
    """Compare every estimate with the exact method of its setting; the value is the drop nearest to its bound.

    `others` has the bounds of single presets. `bound` is that of all others.
    """

    def excess(drop: Difference) -> float:
        return drop.mean - others.get(drop.to, bound)

    drops = [paired(evidence, exact, preset) for exact, preset in against(presets, "maml")]
    within = all(drop.low <= others.get(drop.to, bound) for drop in drops)
    return found(within, max(drops, key=excess), drops)


def against(presets: Presets, method: str) -> Iterator[tuple[str, str]]:
    """(that method, another) in every setting"""
    for preset in presets:
        setting, _, name = preset.rpartition("-")
        if name != method:
            yield f"{setting}-{method}", preset


def gains_of_at_least(evidence: Evidence, presets: Presets, size: float, over: str) -> Finding:
    """Ask whether each method is better than `over` by at least `size` points, as far as the interval tells."""
    gains = [paired(evidence, preset, other) for other, preset in against(presets, over)]
    least = min(gains, key=lambda gain: gain.mean)
    return found(all(gain.is_above_zero and gain.high >= size for gain in gains), least, gains)


def keeps_up(evidence: Evidence, presets: Presets) -> Finding:
    """No estimate is below the exact method by more than the interval"""
    gains = [paired(evidence, preset, exact) for exact, preset in against(presets, "maml")]
    least = min(gains, key=lambda gain: gain.mean)
    return found(all(gain.high >= 0 for gain in gains), least, gains)


def momentum_is_needed(evidence: Evidence, presets: Presets) -> Finding:
    """(momentum, plain, plain at Finn's own rate): the gain over plain SGD at the paper's rate is the claim"""
    momentum, plain, finns = presets
    gain, other = paired(evidence, momentum, plain), paired(evidence, momentum, finns)
    note = "Finn's rate is that of a loss summed over classes: as many times as large for the mean that is used here."
    return found(gain.is_above_zero, gain, [gain, other], note)
