"""PyTorch's and Python's own errors, said again with the operator, the reason and the argument that helps."""

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
        re.compile(r"'(?P<op>tuple|list)' object has no attribute '(?:support|query)'"),
        "a task was given as a {op}. Name its two parts: metastep.Task(support, query).",
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
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        if text := remedy(str(error)):
            raise MetastepError(text) from error
        raise


def remedy(message: str) -> str | None:
    found = ((pattern.search(message), text) for pattern, text in _REMEDIES)
    return next((text.format(op=match["op"]) for match, text in found if match), None)
