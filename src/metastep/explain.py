"""PyTorch's own errors, said again with the operator, the reason and the argument that helps."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from metastep.errors import MetastepError

_REMEDIES = (
    (
        re.compile(r"forward AD with (?P<op>\S+) that does not support it"),
        "the operator {op} has no forward-mode derivative, which curvature=exact needs. "
        "Pass curvature=metastep.exact_reverse, which needs a second backward, or metastep.central_difference().",
    ),
    (
        re.compile(r"derivative for '?(?:aten::)?(?P<op>\w+)'? is not implemented"),
        "the operator {op} cannot be differentiated twice, which every exact curvature needs. "
        "Pass curvature=metastep.central_difference(), which needs first derivatives only, or use fo_maml.",
    ),
    (
        re.compile(r"(?P<op>running_mean|running_var|num_batches_tracked)"),
        "a normalisation layer would overwrite its {op} inside the inner loop. "
        "Use metastep.use_batch_statistics(module), or module.eval() to hold the statistics it has.",
    ),
)


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise explanation(error) from error


def explanation(error: Exception) -> Exception:
    for pattern, text in _REMEDIES:
        if found := pattern.search(str(error)):
            return MetastepError(text.format(op=found["op"]))
    return error
