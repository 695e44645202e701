"""Work that pauses, run alone."""

from inspect import signature

from metastep.train.turns import Turns, run_alone

Trace = list[tuple[str, int]]


def work(name: str, pauses: int, trace: Trace) -> Turns[str]:
    """Notes how many others were under way after each pause"""
    for _ in range(pauses):
        trace.append((name, (yield)))
    return name.upper()


def test_alone_it_goes_through_and_hears_of_nobody() -> None:
    trace: Trace = []
    assert run_alone(work)("a", 3, trace) == "A"
    assert trace == [("a", 0)] * 3
    assert run_alone(work)("b", 0, trace) == "B"


def train_in_turns(steps: int, start: int = 0) -> Turns[int]:
    """Adds them up"""
    yield
    return start + steps


def test_what_is_run_alone_has_the_same_parameters_and_words() -> None:
    train = run_alone(train_in_turns)
    assert (train(2, start=3), train.__name__, train.__doc__) == (5, "train", "Adds them up")
    assert list(signature(train).parameters) == ["steps", "start"]
