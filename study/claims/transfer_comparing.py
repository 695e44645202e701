"""Claims that compare ways of transfer, by means over seeds. Presets are in the order of claims.toml."""

import statistics
from collections.abc import Sequence

from study.claims.cells import LEAST
from study.claims.claims import Finding, Presets, holds
from study.claims.comparing import found
from study.claims.costs import absent
from study.claims.differences import Difference, over_seeds
from study.claims.evidence import Evidence, MissingError
from study.claims.transfer_costs import time_by_steps

EARLY, SETTLED = 0.1, 0.5  # of training: the first tenth; the second half


def surrogate_fails(evidence: Evidence, presets: Presets, size: float) -> Finding:
    """Ask whether the surrogate is below Multi-step, and nearer to scratch. Presets: scratch, Multi-step, surrogate."""
    scratch, multistep, surrogate = presets
    lost, left = over_seeds(evidence, multistep, surrogate), over_seeds(evidence, surrogate, scratch)
    return found(as_printed(lost, size) and left.mean < lost.mean, lost, [lost, left])


def is_better(evidence: Evidence, presets: Presets, size: float | None = None) -> Finding:
    """Ask whether the first preset is better than the second, by about `size` points where the paper prints them."""
    gain = over_seeds(evidence, *presets)
    return found(as_printed(gain, size), gain, [gain])


def as_printed(gain: Difference, size: float | None) -> bool:
    """Of about the size that the paper prints for Bird; of its sign alone where it prints none, or on other pictures"""
    return gain.about(size) if size and gain.of.startswith("bird-") else gain.is_above_zero


def two_steps_are_best(evidence: Evidence, presets: Presets) -> Finding:
    """(T = 1, T = 2, T = 3): the second step gains, the third gains less; time grows by as much with each

    Time is that of a benchmark: runs may have shared the device, and compile in their first epoch.
    """
    one, two, three = presets
    second, third = over_seeds(evidence, two, one), over_seeds(evidence, three, two)
    times = time_by_steps(evidence)
    if times is None:
        return absent("exact iterations with T = 1, 2 and 3")
    first, middle, last = times.exact
    growth = (last - middle) / (middle - first)
    note = f"An iteration takes {', '.join(f'{ms:.4g}' for ms in times.exact)} ms with T = 1, 2, 3 ({times}); "
    note += f"the third step adds {growth:.2f} times what the second does."
    return found(
        second.is_above_zero and third.mean < second.mean and 0.5 <= growth <= 2, second, [second, third], note=note
    )


def estimates_match(evidence: Evidence, presets: Presets) -> Finding:
    """(2-step estimate, T = 2, 3-step estimate, T = 3): no estimate is more than a point below its exact counterpart"""
    pairs = [over_seeds(evidence, *presets[:2]), over_seeds(evidence, *presets[2:])]
    least = min(pairs, key=lambda gain: gain.mean)
    return found(all(gain.mean >= -LEAST for gain in pairs), least, pairs)


def works_with_adam(evidence: Evidence, presets: Presets) -> Finding:
    """(scratch, Multi-step) of each data set in turn; those that were run are judged"""
    gains = []
    for scratch, multistep in zip(presets[::2], presets[1::2], strict=True):
        try:
            gains.append(over_seeds(evidence, multistep, scratch))
        except MissingError:
            continue
    if not gains:
        raise MissingError("Multi-step with Adam and scratch were not run on any data set yet.")
    least = min(gains, key=lambda gain: gain.mean)
    note = f"{len(gains)} of {len(presets) // 2} data sets."
    return found(all(gain.is_above_zero for gain in gains), least, gains, note=note)


def gradients_settle(evidence: Evidence, presets: Presets) -> Finding:
    """The change of the transfer gradient in a virtual step: falls in the first tenth of training, and stays small

    By the mean of all seeds that looked.
    """
    (preset,) = presets
    outcomes = tuple(each for each in evidence.outcomes(preset) if each.gradient_differences)
    if not outcomes:
        raise MissingError(f"{preset} did not look at its gradients: run it with `python -m study claims`.")
    parts = [parts_of(each.gradient_differences) for each in outcomes]
    first, early, after, settled = (statistics.fmean(column) for column in zip(*parts, strict=True))
    note = (
        f"‖∇L(φ₁) − ∇L(φ₀)‖ / ‖∇L(φ₁)‖ of the transfer loss: {first:.3f} in the first iteration, mean {early:.3f} in "
        f"the first tenth of training, {after:.3f} in the second, {settled:.3f} in its last half."
    )
    return Finding(holds(settled < 0.1 * first and after < 0.5 * first), round(settled, 4), None, note, outcomes)


def parts_of(looks: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """The first look; the means of the first tenth of training, of its second, and of its last half"""
    last = max(epoch for epoch, _ in looks)

    def mean(after: float, until: float) -> float:
        return statistics.fmean(difference for epoch, difference in looks if after * last < epoch <= until * last)

    return looks[0][1], mean(-1, EARLY), mean(EARLY, 2 * EARLY), mean(SETTLED, 1)
