"""Random numbers as a pure function of integers, in plain tensor operations.

There is no generator and no state, so a number does not depend on the device, on the rank that asks, or on what was
drawn before; and a captured CUDA graph draws anew whenever an integer that it reads has changed.

Words of 32 bits are held in int64, and no operation leaves int64: the usual 64-bit mixers count on overflow that wraps,
which is undefined in the C++ that torch.compile writes (its loops then went wrong, and wrote past their arrays).
"""

import random as python_random
import sys
from typing import Any, NamedTuple

import torch

Word = Any  # an int, or an int64 tensor of them, from 0 to 2³² − 1: the formulas are the same for both
WORD = 2**32 - 1
MULTIPLIERS = (0x21F0AAAD, 0x735A2D97)  # those of splitmix32: odd, and below 2³¹, so that a product stays below 2⁶³


class Stream(NamedTuple):
    """Hold where a stream of numbers starts: 64 bits in two words."""

    a: Word
    b: Word


def stream(*words: Word) -> Stream:
    """Return one stream for each tuple of words, which broadcast. Their order matters.

    Tuples that differ in one place only never share a stream: each round is a bijection of (a, b), and of the word.
    """
    a, b = 0x9E3779B9, 0x7F4A7C15  # the first digits of the golden ratio, as good as any
    for word in words:
        mixed = mix(a ^ word)
        a, b = mix(b ^ mixed), mixed
    return Stream(a, b)


def number(of: Stream, index: Word) -> Word:
    """Return the index-th number of a stream: 32 random bits.

    It is a bijection of the index: the numbers of a stream never tie, and so every device sorts them alike.
    """
    return mix(mix(index ^ of.a) ^ of.b)


def orders(of: Stream, length: int) -> torch.Tensor:
    """Return a random order of `length` things for each stream: words (streams, 1) give orders (streams, length)."""
    keys: torch.Tensor = number(of, torch.arange(length, device=of.a.device))  # never tie: all devices sort them alike
    return keys.topk(length).indices


def mix(z: Word) -> Word:
    """Return a bijection of words in which every bit of z moves every bit of the result."""
    first, second = MULTIPLIERS
    z = ((z ^ (z >> 16)) * first) & WORD
    z = ((z ^ (z >> 15)) * second) & WORD
    return z ^ (z >> 15)


def seed_noise(seed: int, k: int, first: int = 0) -> None:
    """Seed PyTorch's own generators, for the random directions and the dropout of a batch.

    Like its pictures, these are a function of the batch's numbers, so that no state has to be kept.
    """
    torch.manual_seed(number(stream(seed & WORD, seed >> 32, k, first), 0))


# ---- the generators of others, which have a state


class Generators(NamedTuple):
    """The states of PyTorch's generators, and of Python's and numpy's where they were asked for."""

    cpu: torch.Tensor
    cuda: list[torch.Tensor]
    others: "Others | None" = None


class Others(NamedTuple):
    """The states of Python's and of numpy's global generators."""

    python: Any
    numpy: Any


def generators(others: bool = False) -> Generators:
    """Read the states. Those of Python and numpy take 30 µs, those of PyTorch less than 1."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return Generators(torch.get_rng_state(), cuda, other_generators() if others else None)


def other_generators() -> Others:
    numpy = sys.modules.get("numpy")  # if nobody has imported it, nobody draws by it
    return Others(python_random.getstate(), None if numpy is None else numpy.random.get_state())


def set_generators(state: Generators) -> None:
    torch.set_rng_state(state.cpu)
    if state.cuda:
        torch.cuda.set_rng_state_all(state.cuda)
    if state.others is not None:
        python_random.setstate(state.others.python)
        if state.others.numpy is not None:
            sys.modules["numpy"].random.set_state(state.others.numpy)


def drawn_since(before: Generators) -> bool:
    now = generators()
    return not all(map(torch.equal, [now.cpu, *now.cuda], [before.cpu, *before.cuda]))


def others_drawn_since(before: Others) -> bool:
    now = other_generators()
    return bool(now.python != before.python) or _plain(now.numpy) != _plain(before.numpy)


def _plain(numpy_state: Any) -> Any:
    """Return what can be compared by ==, which an array cannot."""
    return [x.tobytes() if hasattr(x, "tobytes") else x for x in numpy_state or ()]
