"""PyTorch's and Python's own errors, said again with the operator, the reason and the argument that helps."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from metastep.core.checks import require_meta
from metastep.core.trees import Tree
from metastep.errors import MetastepError

_MAPPED = "Tasks are mapped by vmap, which computes all of them at once."
_ONE_BY_ONE = "Or give over_tasks chunk_size=1: one task after the other, without vmap."

_REMEDIES = (
    (
        re.compile(
            r"(?:forward AD with|derivative for|argument #\d+) '?(?:aten::)?"
            r"(?P<op>\w*(?:scaled_dot_product|mkldnn_rnn|cudnn_rnn)\w*|workspace\b)"
        ),
        "a fused kernel of attention or of a recurrent layer cannot be differentiated twice ({op}). Call the module by "
        "metastep.apply(module, params, x), which takes kernels that can. If it is called so already, it chooses its "
        "kernels itself, as by sdpa_kernel: leave that out, or pass curvature=metastep.central_difference().",
    ),
    (
        re.compile(
            r"(?P<op>forward AD with \S+ that does not support it|ZeroTensors are immutable"
            r"|must implement the jvp function)"
        ),
        "forward mode, by which metastep.exact_forward and transfer differentiate twice, does not serve here ({op}). "
        "Pass curvature=metastep.exact, which needs a second backward instead; in transfer, use another operator.",
    ),
    (
        re.compile(r"derivative for '?(?:aten::)?(?P<op>\w+)'? is not implemented"),
        "the operator {op} cannot be differentiated twice, which every exact curvature needs. "
        "Pass curvature=metastep.central_difference(), which needs first derivatives only, or use fo_maml.",
    ),
    (
        re.compile(r"vmap: .*?(?P<op>\.item\(\)|data-dependent control flow)"),
        f"a module, a loss or a metric takes a number out of a tensor: .item(), float(), x[:n], or an if. {_MAPPED} "
        f"Write it with tensors alone, such as torch.where; torch.eye(n)[y] for one_hot(y, n). {_ONE_BY_ONE}",
    ),
    (
        re.compile(r"(?P<op>saved tensor hooks|use_reentrant=True)"),
        "torch.utils.checkpoint would compute again with the module's own parameters instead of φ ({op}), so that it "
        "is refused, and save_on_cpu with it. Leave them out: the sweep stores the graph of one window at a time, and "
        "batch_by_batch that of one batch.",
    ),
    (
        re.compile(r"must override the (?P<op>setup_context) staticmethod"),
        f"an autograd.Function without {{op}} cannot be mapped, nor one with full backward hooks. {_MAPPED} Write one, "
        f"with forward(x) and setup_context(ctx, inputs, output), and remove hooks. {_ONE_BY_ONE}",
    ),
    (
        re.compile(r"vmap: (?P<op>inplace arithmetic).*is not possible"),
        f"what differs from task to task is written into a tensor that does not ({{op}}). {_MAPPED} "
        f"Make that tensor of one that does, with x.new_zeros(…) instead of torch.zeros(…). {_ONE_BY_ONE}",
    ),
    (
        re.compile(r"vmap: .*(?P<op>embedding_renorm_)"),
        f"max_norm writes into the weights of an embedding ({{op}}), which tasks share. {_MAPPED} "
        "Leave max_norm out, and scale what the embedding gives.",
    ),
    (
        re.compile(r"(?P<op>output with shape .* doesn't match the broadcast shape .*\])"),
        "what is written in place is larger than the tensor that it is written to: {op}. Where tasks are mapped, a "
        "recurrent layer does so with parameters that they share: call it by metastep.apply(module, params, x).",
    ),
    (
        re.compile(r"vmap: (?P<op>Cannot ask for different inplace randomness)"),
        f"random numbers are drawn in a tensor that is the same for all tasks ({{op}}). {_MAPPED} "
        f"Draw them beforehand, and put them into the task. {_ONE_BY_ONE}",
    ),
    (
        re.compile(
            r"vmap: (?=.*(?:dynamic shape|differently shaped))"
            r".*(?:batch|vmap) over (?:aten::|`mask` in torch\.)?(?P<op>[\w ]+)"
        ),
        f"{{op}} gives a shape that depends on values. {_MAPPED} "
        f"Write it without, such as by torch.where(mask, x, 0). {_ONE_BY_ONE}",
    ),
    (
        re.compile(r"not implemented for (?:aten::)?(?P<op>_nested_tensor_from_mask\w*)"),
        f"nn.TransformerEncoder in evaluation mode makes a nested tensor by the padding mask ({{op}}), which cannot be "
        f"mapped. {_MAPPED} Make it with enable_nested_tensor=False.",
    ),
    (
        re.compile(r"[Bb]atching rule not implemented for (?:aten::)?(?P<op>[\w.]+?)[;.]? "),
        f"the operator {{op}} cannot be mapped. {_MAPPED} "
        f"Where a layer changes itself in training, as spectral_norm does, module.eval() holds it. {_ONE_BY_ONE}",
    ),
    (
        re.compile(
            r"(?P<op>differentiated Tensors does not require grad|attempting to call Tensor\.requires_grad_\(\)"
            r"|backward\(\) called) ?(?:$|\(or perhaps|inside a functorch)"
        ),
        f"a loss differentiates by torch.autograd ({{op}}), where it is differentiated itself. {_MAPPED} Write "
        "torch.func.grad(lambda x: metastep.apply(module, params, x).sum())(x), or torch.func.vjp or jvp: these can be "
        f"differentiated again. {_ONE_BY_ONE}",
    ),
    (
        re.compile(r"(?P<op>level\.has_value\(\))"),
        "a loss keeps a tensor of one call and computes with it in another, where the tasks that it was mapped for are "
        "no more ({op}). A loss must give the same for the same φ: put what it is to know of before into the task.",
    ),
    (
        re.compile(r"(?P<op>would mutate a captured Tensor)"),
        "a module or a loss writes into its data, or into another tensor that it was not given as φ ({op}), as x += 1 "
        "and x.sub_(…) do, and would do so again whenever the sweep returns to it. Write x = x + 1.",
    ),
    (
        re.compile(r"(?P<op>unsupported for Sparse tensors|with arguments from the 'Sparse\w+' backend)"),
        "a gradient is sparse, as that of nn.Embedding(…, sparse=True) is, and cannot be computed with ({op}). "
        "Leave sparse=True out.",
    ),
    (
        re.compile(r"(?P<op>stateless API can't be used with Jitted modules)"),
        "a module of torch.jit cannot take other parameters than its own ({op}). Call the module that it was scripted "
        "or traced from, by metastep.apply(module, params, x).",
    ),
    (
        re.compile(r"(?P<op>Cannot access data pointer) of Tensor that doesn't have storage"),
        "a module, a loss or a metric takes a tensor out of PyTorch, as .numpy() and pack_padded_sequence do, where no "
        "derivative can follow. "
        "Write it with functions of torch; or measure what metastep.apply(module, method.adapt(meta, task), x) gives, "
        "and put what is collected with it into the task.",
    ),
    (
        re.compile(r"(?:must be Tensor, not |invalid combination of arguments - got \()(?P<op>numpy\.ndarray|list)\b"),
        "{op} was given where a tensor is needed. Make tensors of the data first, with torch.as_tensor(…).",
    ),
    (
        re.compile(
            r"(?:must be Tensor, not |arguments - got \(|'(?=dict' object has no attribute '(?:size|shape|dim|dtype)'))"
            r"(?P<op>dict|\w+Output)\b"
        ),
        "{op} was given where a tensor is needed. A module that takes its inputs by name, as those of transformers do, "
        "is wrapped in one of forward(self, batch): return self.model(**batch). Of results by name the loss takes one: "
        'lambda out, y: loss(out["logits"], y).',
    ),
    (
        re.compile(r"(?P<op>.*(?:same dtype, but got|type \(.* should be the same|expected scalar type .* found).*)"),
        "data and parameters have different precisions: {op}. Convert the data with x.to(torch.float32), or what the "
        "parameters are; bytes of pictures are divided by 255 then. By torch.autocast layers get different ones, too, "
        "and normalisation and attention do not bear that where tasks are mapped: cast in a loss of your own instead, "
        "metastep.apply(net, {{k: p.bfloat16() for k, p in params.items()}}, x.bfloat16()).float(), while θ and φ stay "
        f"float32. {_ONE_BY_ONE}",
    ),
    (
        re.compile(r"(?P<op>[Ee]xpected (?:input to be )?\dD.*\bgot\b.*)"),
        "the module takes inputs with another number of axes: {op}. A method takes one task; stacked tasks, with one "
        "axis more, are for metastep.over_tasks(method), which takes a single one as a list, [task].",
    ),
    (
        re.compile(r"'(?P<op>tuple|list|dict)' object has no attribute '(?:support|query)'"),
        "a task was given as a {op}. Name its two parts: metastep.Task(support, query).",
    ),
    (
        re.compile(r"\b(?P<op>running_mean|running_var|num_batches_tracked)\b"),
        "a normalisation layer would overwrite its {op} inside the inner loop. "
        "Use metastep.use_batch_statistics(module), or module.eval() to hold the statistics it has.",
    ),
    (
        re.compile(r"value cannot be converted to type (?P<op>\w+) without overflow"),
        "steps of the inner loop leave the numbers of a {op}. Lower the inner rate.",
    ),
)


@contextmanager
def explained(meta: Tree) -> Iterator[None]:
    """Around a call with `meta`: what cannot be θ is refused, and an error that has a remedy comes with it"""
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
    found = ((pattern.search(message), text) for pattern, text in _REMEDIES)
    return next((text.format(op=match["op"]) for match, text in found if match), None)
