"""Checkpoints: a tree of tensors and plain values in one .safetensors file, written atomically, never a pickle.

A tree is nested dicts with string keys; leaves are tensors, or what JSON can say (numbers, text, bools, None, lists).
The tensors are stored under their paths ("params/conv1.weight"), the rest in the file's metadata, as a JSON tree in
which {"$tensor": name} stands for a tensor. That tree also keeps the order of keys, on which sums over leaves depend.
Equal trees give equal files. The state of an optimizer becomes a tree by `optimizer_tree`.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes, save as tensors_to_bytes
from torch import Tensor
from torch.optim import Optimizer

from metastep.train.io import CheckpointError, problem, read_file, replace_file

VERSION = 2

_ENTRY = "metastep"  # all in one entry of the metadata: safetensors writes several in random order
_TENSOR = "$tensor"
_RESERVED = {_TENSOR, "__metadata__"}  # the second is the one name that safetensors keeps for itself
_RESTORE = "Use another checkpoint or a copy of this one"
_PICKLES = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))  # torch.save, pickle.dump


def save(path: Path, tree: Mapping[str, Any], kind: str) -> None:
    """Write `tree`; if that fails, the file that was there before stays. `kind` says what the tree is, for `load`."""
    tensors: dict[str, Tensor] = {}
    try:
        content = {"version": VERSION, "kind": kind, "tree": _take_tensors(tree, (), tensors)}
        described = json.dumps(content | {"sha256": _digest(tensors, content)})
        data = tensors_to_bytes(tensors, {_ENTRY: described})
    except (TypeError, ValueError, KeyError, RuntimeError) as cause:
        reason = f"this tree cannot be saved ({cause})"
        raise problem(CheckpointError, path, reason, "Keep dicts of dense tensors and plain values") from cause
    replace_file(path, data, CheckpointError)


def load(path: Path, kind: str, version: int = VERSION) -> dict[str, Any]:
    """The tree that `save` was given, bit for bit, on the CPU (tuples have become lists)."""
    data = read_file(path, CheckpointError)
    content = _content(path, data)
    _require_readable(path, content, kind, version)
    try:
        tensors = tensors_from_bytes(data)
        if content.pop("sha256") != _digest(tensors, content):
            raise ValueError("its checksum does not fit its content")
        tree = _put_tensors(content["tree"], tensors)
        if not isinstance(tree, dict):
            raise TypeError("it holds no tree")
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as cause:
        raise problem(CheckpointError, path, f"is damaged or cut short ({cause})", _RESTORE) from cause
    return tree


def _take_tensors(tree: Any, at: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """`tree` as JSON, its tensors moved to `tensors`."""
    if isinstance(tree, Tensor):
        name = "/".join(key.replace("~", "~0").replace("/", "~1") for key in at)  # as in a JSON pointer: no two alike
        # A copy of its own for each: safetensors refuses tensors that share memory (tied weights, views).
        tensors[name] = tree.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: name}
    if isinstance(tree, Mapping):
        return {_checked(key, at): _take_tensors(value, (*at, key), tensors) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)) and not any(isinstance(item, (Tensor, Mapping)) for item in tree):
        return [_take_tensors(item, at, tensors) for item in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"{'/'.join(at)} is a {type(tree).__name__}")


def _checked(key: Any, at: tuple[str, ...]) -> str:
    if not isinstance(key, str) or key in _RESERVED:
        raise TypeError(f"{'/'.join(at) or 'the top'} has the key {key!r}")
    return key


def _put_tensors(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {_TENSOR}:
        return tensors[tree[_TENSOR]]
    return {key: _put_tensors(value, tensors) for key, value in tree.items()}


def _digest(tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> str:
    """safetensors checks the layout of a file; this checks the numbers too."""
    digest = hashlib.sha256(json.dumps(content).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _content(path: Path, data: bytes) -> dict[str, Any]:
    """Return what metastep wrote into a file's header. A safetensors file begins with its length in 8 bytes."""
    length = int.from_bytes(data[:8], "little")
    try:
        if 8 + length > len(data):
            raise ValueError("too short for its header")
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError) as cause:
        raise _foreign(path, data) from cause
    try:
        return dict(json.loads(header["__metadata__"][_ENTRY]))
    except (KeyError, TypeError, ValueError, RecursionError) as cause:
        reason = "was not written by metastep, or is damaged"
        raise problem(CheckpointError, path, reason, "Give a checkpoint of a metastep run") from cause


def _foreign(path: Path, data: bytes) -> CheckpointError:
    if data.startswith(_PICKLES):
        reason = "is a pickle, which can run any program when opened, and is never opened here"
        return problem(CheckpointError, path, reason, "Give a .safetensors checkpoint of a metastep run")
    return problem(CheckpointError, path, "is damaged, cut short or no safetensors file", _RESTORE)


def _require_readable(path: Path, content: Mapping[str, Any], kind: str, version: int) -> None:
    if (found := content.get("version")) != version:
        reason = f"has format version {found!r}, and this metastep reads version {version}"
        raise problem(CheckpointError, path, reason, "Use the version of metastep that wrote it, or make it again")
    if content.get("kind") != kind:
        reason = f"holds a {content.get('kind')!r}, not a {kind!r}"
        raise problem(CheckpointError, path, reason, f"Give the checkpoint of a {kind!r}")


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
    # torch would load the state of one optimizer into another silently.
    if (saved, saved_sizes) != (own, own_sizes):
        raise CheckpointError(
            f"the checkpoint holds the state of {saved} over {saved_sizes} parameters, and this run has {own} over "
            f"{own_sizes}. Resume with the configuration that the run was saved with."
        )


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Copy tensors: load_state_dict keeps those it is given, and the optimizer's next step would change them."""
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in entry.items()}


def _with_tuples(group: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples: what is one in `like` (betas) becomes one again."""
    return {key: tuple(value) if isinstance(like.get(key), tuple) else value for key, value in group.items()}
