"""θ kept from a loss, by a method that knows nothing of what it does there."""

from typing import Any

from metastep.core.trees import tree_leaves
from metastep.errors import MetastepError

_USES = "iter len bool float neg add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul lt le gt ge"


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
        raise next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, cls)).refusal()

    def refusal(self) -> MetastepError:
        return MetastepError(
            f"{self._method} needs θ to act through φ's start alone, but a window's loss computes with it. It leaves "
            "∂²L/∂θ∂φ out, so it cannot learn this θ. Use ms.MultiStep, ms.MAML, ms.methods.HFMAML or "
            "ms.methods.GGSMAML."
        )


def require_shown(meta: Any) -> None:
    if isinstance(meta, Hidden):
        raise meta.refusal()


def _refused(hidden: Hidden, *others: Any) -> Any:
    raise hidden.refusal()


for _use in _USES.split():
    setattr(Hidden, f"__{_use}__", _refused)
