"""What metastep raises: one message with the input, the reason and the remedy."""


class MetastepError(ValueError):
    """Something given to metastep cannot work; the message says what, why, and what to do."""


class NonFiniteError(MetastepError):
    """An inner loop left the finite numbers; the message names the task and the window."""


def require_positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value > 0:
            raise MetastepError(f"{name} = {value} must be above 0.")


def first_line(error: Exception) -> str:
    """Of what others raise, what fits into a line of ours"""
    return str(error).strip().split("\n")[0]
