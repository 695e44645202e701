"""θ kept from a loss, by a method that knows nothing of what it does there."""

from typing import Any

from metastep.errors import MetastepError


def require_shown(meta: Any) -> None:
    if isinstance(meta, Hidden):
        raise meta.refusal()


class Hidden:
    """In the place of θ: a loss may part it and pass it on, and is refused when it computes with it"""

    def __init__(self, method: str) -> None:
        self._method = method

    def __getitem__(self, name: Any) -> "Hidden":
        return self

    def __getattr__(self, name: str) -> Any:
        raise self.refusal()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise next(arg for arg in args if isinstance(arg, cls)).refusal()

    def refusal(self) -> MetastepError:
        return MetastepError(
            f"{self._method} needs θ to act through φ's start alone, but a window's loss computes with it: it knows "
            "nothing of ∂²L/∂θ∂φ, so it cannot learn this θ. Use multi_step, maml, hf_maml or ggs_maml, which do."
        )
