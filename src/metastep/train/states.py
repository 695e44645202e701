"""The state of an optimizer, as a tree that a checkpoint can keep."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from metastep.train.errors import CheckpointError


def optimizer_tree(optimizer: Optimizer) -> dict[str, Any]:
    """The state of `optimizer`. It shares memory with it: save it before the next step, or copy it."""
    packed = optimizer.state_dict()
    return {
        "type": type(optimizer).__name__,
        "state": {str(index): dict(state) for index, state in packed["state"].items()},
        "groups": {str(index): dict(group) for index, group in enumerate(packed["param_groups"])},
    }


def restore_optimizer(optimizer: Optimizer, tree: Mapping[str, Any]) -> None:
    """Give `optimizer`, built like the one that was saved, the state in `tree`, on its parameters' devices."""
    own = optimizer.state_dict()["param_groups"]
    saved = list(tree["groups"].values())
    _require_alike(tree["type"], _sizes(saved), type(optimizer).__name__, _sizes(own))
    state = {int(index): _copied(entry) for index, entry in tree["state"].items()}
    groups = [_with_tuples(group, like) for group, like in zip(saved, own, strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _sizes(groups: list[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _require_alike(saved: str, saved_sizes: list[int], own: str, own_sizes: list[int]) -> None:
    # torch would load the state of one optimizer into another without a word.
    if (saved, saved_sizes) != (own, own_sizes):
        raise CheckpointError(
            f"the checkpoint holds the state of {saved} over {saved_sizes} parameters, and this run has {own} over "
            f"{own_sizes}. Resume with the configuration that the run was saved with."
        )


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    """So that the optimizer's next step does not change the tree: load_state_dict keeps the tensors it is given."""
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}


def _with_tuples(group: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples: what is one in `like` (betas) becomes one again."""
    return {key: tuple(value) if isinstance(like.get(key), tuple) else value for key, value in group.items()}
