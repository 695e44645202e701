"""Explain the errors of PyTorch and Python: the operator, the reason, and what to write instead."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from metastep.core.checks import require_meta
from metastep.core.trees import Tree
from metastep.errors import MetastepError

_MAPPED = "Tasks are mapped by vmap, which computes all of them at once."
_ONE_BY_ONE = "Or write ms.MetaGradient(…, chunk_size=1), which runs one task after the other without vmap."

_REMEDIES = {
    r"(?:forward AD with|derivative for|argument #\d+) '?(?:aten::)?"
    r"(?P<op>\w*(?:scaled_dot_product|mkldnn_rnn|cudnn_rnn)\w*|workspace\b)": (
        "a fused kernel of attention or of a recurrent layer cannot be differentiated twice ({op}). Call the module by "
        "ms.apply(module, params, x), which uses kernels that can. If you already do, the module chooses its kernels "
        "itself, for example with sdpa_kernel. Remove that, or give the method "
        "curvature=ms.curvature.CentralDifference()."
    ),
    r"(?P<op>forward AD with \S+ that does not support it|ZeroTensors are immutable"
    r"|must implement the jvp function)": (
        "forward mode does not support an operator here ({op}). It computes the second derivatives of "
        "ms.curvature.exact_forward and of transfer. Use curvature=ms.curvature.exact, which needs a second backward "
        "instead. In transfer, use another operator."
    ),
    r"derivative for '?(?:aten::)?(?P<op>\w+)'? is not implemented": (
        "the operator {op} cannot be differentiated twice, which every exact curvature needs. Use "
        "curvature=ms.curvature.CentralDifference() or ms.FOMAML(), which need first derivatives only."
    ),
    r"vmap: .*?(?P<op>\.item\(\)|data-dependent control flow)": (
        f"a module, a loss or a metric takes a number out of a tensor: .item(), float(), x[:n], or an if. {_MAPPED} "
        f"Write it with tensors alone, such as torch.where, or torch.eye(n)[y] for one_hot(y, n). {_ONE_BY_ONE}"
    ),
    r"(?:use_reentrant=True|(?P<op>None of the inputs have requires_grad))": (
        "torch.utils.checkpoint with use_reentrant=True runs a backward of its own, which cannot be differentiated. "
        "Pass use_reentrant=False; models of transformers take "
        'gradient_checkpointing_enable(gradient_checkpointing_kwargs={{"use_reentrant": False}}).'
    ),
    r"(?P<op>saved tensor hooks)": (
        "torch.utils.checkpoint and save_on_cpu ({op}) cannot be mapped. "
        f"{_MAPPED} Write ms.MetaGradient(…, chunk_size=1), which runs one task after the other without vmap."
    ),
    r"must override the (?P<op>setup_context) staticmethod": (
        "an autograd.Function without {op} cannot be mapped, nor can a module with full backward hooks. "
        f"{_MAPPED} Write forward(x) and setup_context(ctx, inputs, output), and remove hooks. {_ONE_BY_ONE}"
    ),
    r"vmap: (?P<op>inplace arithmetic).*is not possible": (
        f"a value that differs from task to task is written into a tensor that does not ({{op}}). {_MAPPED} "
        f"Make that tensor from one that differs: x.new_zeros(…) instead of torch.zeros(…). {_ONE_BY_ONE}"
    ),
    r"vmap: .*(?P<op>embedding_renorm_)": (
        f"max_norm writes into the weights of an embedding ({{op}}), which all tasks share. {_MAPPED} "
        "Leave max_norm out, and scale the output of the embedding."
    ),
    r"(?P<op>output with shape .* doesn't match the broadcast shape .*\])": (
        "a result that is written in place is larger than its tensor: {op}. Under vmap, a recurrent layer does this "
        "with parameters that all tasks share. Call it by ms.apply(module, params, x)."
    ),
    r"vmap: (?P<op>Cannot ask for different inplace randomness)": (
        f"random numbers are drawn in a tensor that is the same for all tasks ({{op}}). {_MAPPED} "
        f"Draw them beforehand, and put them into the task. {_ONE_BY_ONE}"
    ),
    r"vmap: (?=.*(?:dynamic shape|differently shaped))"
    r".*(?:batch|vmap) over (?:aten::|`mask` in torch\.)?(?P<op>[\w ]+)": (
        f"{{op}} gives a shape that depends on values. {_MAPPED} "
        f"Write it with a fixed shape, such as torch.where(mask, x, 0). {_ONE_BY_ONE}"
    ),
    r"not implemented for (?:aten::)?(?P<op>_nested_tensor_from_mask\w*)": (
        "nn.TransformerEncoder in evaluation mode makes a nested tensor from the padding mask ({op}), which cannot be "
        f"mapped. {_MAPPED} Make the encoder with enable_nested_tensor=False."
    ),
    r"[Bb]atching rule not implemented for (?:aten::)?(?P<op>[\w.]+?)[;.]? ": (
        f"the operator {{op}} cannot be mapped. {_MAPPED} "
        f"If a layer changes itself in training, as spectral_norm does, call module.eval(). {_ONE_BY_ONE}"
    ),
    r"(?P<op>differentiated Tensors does not require grad|attempting to call Tensor\.requires_grad_\(\)"
    r"|backward\(\) called) ?(?:$|\(or perhaps|inside a functorch)": (
        f"a loss calls torch.autograd ({{op}}), but the loss is itself differentiated. {_MAPPED} Write "
        "torch.func.grad(lambda x: ms.apply(module, params, x).sum())(x), or torch.func.vjp or jvp: their results can "
        f"be differentiated again. {_ONE_BY_ONE}"
    ),
    r"(?P<op>level\.has_value\(\))": (
        "a loss keeps a tensor of one call and computes with it in a later call. The tasks that it was mapped for are "
        "gone by then ({op}). A loss must give the same value for the same φ: put what it needs of earlier calls into "
        "the task."
    ),
    r"(?P<op>would mutate a captured Tensor)": (
        "a module or a loss writes into its data, or into another tensor that is not φ ({op}), as x += 1 and x.sub_(…) "
        "do. The sweep returns to it, and would write again. Write x = x + 1."
    ),
    r"(?P<op>unsupported for Sparse tensors|with arguments from the 'Sparse\w+' backend)": (
        "a gradient is sparse, as that of nn.Embedding(…, sparse=True) is, and metastep cannot compute with it ({op}). "
        "Leave sparse=True out."
    ),
    r"(?P<op>stateless API can't be used with Jitted modules)": (
        "a module of torch.jit cannot take other parameters than its own ({op}). Pass the module that it was scripted "
        "or traced from to ms.apply(module, params, x)."
    ),
    r"(?P<op>Cannot access data pointer) of Tensor that doesn't have storage": (
        "a module, a loss or a metric takes a tensor out of PyTorch, as .numpy() and pack_padded_sequence do. No "
        "derivative can follow it there. Use functions of torch. Or adapt first, measure "
        "ms.apply(module, gradient.adapt(meta, task), x), and put what you collect into the task."
    ),
    r"(?:passed to transform API must be Tensor, got <class '(?:\w+\.)*|^')(?P<op>\w+)"
    r"(?:'>|' object has no attribute 'detach')": (
        "{op} was given or returned where a tensor is needed. θ, φ and tasks are trees of tensors: of a module, write "
        "ms.parameters(module); of a number, torch.tensor(…)."
    ),
    r"(?:must be Tensor, not |invalid combination of arguments - got \()(?P<op>numpy\.ndarray|list)\b": (
        "{op} was given where a tensor is needed. Make tensors of the data first, with torch.as_tensor(…)."
    ),
    r"(?:must be Tensor, not |arguments - got \(|'(?=dict' object has no attribute '(?:size|shape|dim|dtype)'))"
    r"(?P<op>dict|\w+Output)\b": (
        "{op} was given where a tensor is needed. If a module takes its inputs by name, as those of transformers do, "
        "wrap it in a module with forward(self, batch): return self.model(**batch). If it gives results by name, take "
        'one in the loss: lambda out, y: loss(out["logits"], y).'
    ),
    r"(?P<op>.*(?:same dtype, but got|type \(.* should be the same|expected scalar type .* found).*)": (
        "data and parameters have different precisions: {op}. Convert the data to the precision of the parameters, "
        "such as x.to(torch.float32); divide bytes of pictures by 255. torch.autocast mixes precisions too, which "
        "normalisation and attention do not support under vmap. In its place, cast in a loss of your own: "
        "ms.apply(net, {{k: p.bfloat16() for k, p in params.items()}}, x.bfloat16()).float(). θ and φ then stay "
        f"float32. {_ONE_BY_ONE}"
    ),
    r"(?P<op>[Ee]xpected (?:input to be )?\dD.*\bgot\b.*)": (
        "the module takes inputs with another number of axes: {op}. gradient(meta, tasks) takes stacked tasks, with "
        "one axis more, or a list such as [task]. gradient.adapt(meta, task) and gradient.estimator(meta, task) take "
        "one task."
    ),
    r"'(?P<op>tuple|list|dict)' object has no attribute '(?:support|query)'": (
        "a task was given as a {op}. Name its two parts: ms.Task(support, query)."
    ),
    r"\b(?P<op>running_mean|running_var|num_batches_tracked)\b": (
        "a normalisation layer would overwrite its {op} in the inner loop. Call ms.use_batch_statistics(module), or "
        "module.eval() to keep the statistics that it has."
    ),
    r"value cannot be converted to type (?P<op>\w+) without overflow": (
        "a step of the inner loop leaves the range of {op}. Lower the inner learning rate."
    ),
}


@contextmanager
def explained(meta: Tree) -> Iterator[None]:
    """Refuse a `meta` that cannot be θ, and add the remedy to an error that has one."""
    require_meta(meta)
    try:
        yield
    except MetastepError:
        raise
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError) as error:
        if "KeyboardInterrupt" in str(error):  # that stopped TorchScript, by which some derivatives are made
            raise KeyboardInterrupt from error
        if text := remedy(str(error)):
            raise MetastepError(text) from error
        raise


def remedy(message: str) -> str | None:
    """Return what to say instead of PyTorch's message, or None if nothing helps."""
    found = ((re.search(pattern, message), text) for pattern, text in _REMEDIES.items())
    return next((text.format(op=match["op"]) for match, text in found if match), None)
