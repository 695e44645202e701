"""Claims that compare few-shot methods: paired on the same episodes. Presets are in the order of the register."""

from collections.abc import Callable, Iterator, Sequence

from study.claims.claims import Finding, Judge, Presets, holds
from study.claims.differences import Difference, behind, listed, paired
from study.claims.evidence import Evidence


def found(true: bool, shown: Difference, differences: Sequence[Difference], note: str = "") -> Finding:
    """`shown` is the value; `differences` are in the note. One seed each decides nothing: it is measured"""
    known = all(each.interval is not None for each in differences)
    interval = None if shown.interval is None else round(shown.interval, 2)
    text = listed(differences) + (f" {note}" if note else "")
    return Finding(holds(true) if known else "measured", round(shown.mean, 2), interval, text, behind(differences))


def drop_at_most(bound: float) -> Judge:
    """(exact, estimated): what estimation costs is at most so much, as far as the interval tells"""

    def judge(evidence: Evidence, presets: Presets) -> Finding:
        exact, estimated = presets
        drop = paired(evidence, exact, estimated)
        return found(drop.low <= bound, drop, [drop])

    return judge


def drop_about(size: float) -> Judge:
    """(exact, estimated): the same, and it is a real drop of about this size"""

    def judge(evidence: Evidence, presets: Presets) -> Finding:
        exact, estimated = presets
        drop = paired(evidence, exact, estimated)
        return found(drop.about(size), drop, [drop])

    return judge


def margins(bound_of: Callable[[str], float]) -> Judge:
    """Every estimate against the exact method of its setting; the value is the drop that is nearest to its bound"""

    def judge(evidence: Evidence, presets: Presets) -> Finding:
        drops = [paired(evidence, exact, preset) for exact, preset in against(presets, "maml")]
        worst = max(drops, key=lambda drop: drop.mean - bound_of(drop.to))
        return found(all(drop.low <= bound_of(drop.to) for drop in drops), worst, drops)

    return judge


def against(presets: Presets, method: str) -> Iterator[tuple[str, str]]:
    """(that method, another) in every setting"""
    for preset in presets:
        setting, _, name = preset.rpartition("-")
        if name != method:
            yield f"{setting}-{method}", preset


def gains_of_at_least(size: float, over: str) -> Judge:
    """Each of the others is better than `over` by at least so much, as far as the interval tells"""

    def judge(evidence: Evidence, presets: Presets) -> Finding:
        gains = [paired(evidence, preset, other) for other, preset in against(presets, over)]
        least = min(gains, key=lambda gain: gain.mean)
        return found(all(gain.is_above_zero and gain.high >= size for gain in gains), least, gains)

    return judge


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
