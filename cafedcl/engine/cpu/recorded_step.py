"""A step recorded once as a list of kernel calls and replayed without autograd, vmap or modules.

On small networks those cost more than the arithmetic. A recorded step is to a CPU what a captured
graph is to a GPU, and has the same conditions: it reads no tensor's value, draws no random numbers,
and does the same in every replay.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

StepFunction = Callable[..., tuple[Tensor, ...]]
KERNEL_HOMES: tuple[Any, ...] = (torch._C._VariableFunctions, torch._C.TensorBase, torch._C._nn)
"""Where kernels can be called as plain functions and methods."""


def record(
    step: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> tuple[StepFunction, tuple[Tensor, ...]]:
    """Run a step; return a function that replays it on inputs of the same form, and the result.

    Where the step writes into its inputs, a replay writes into the inputs it is given. Raise
    ValueError for a step that cannot be replayed.
    """
    addresses = [_address(value) for value in inputs if value.numel()]
    if len(set(addresses)) < len(addresses) or not all(value.is_contiguous() for value in inputs):
        raise ValueError("two inputs are the same tensor, or one is not contiguous")
    before = torch.get_rng_state()
    recorder = KernelRecorder(inputs)
    with recorder:
        outputs = tuple(step(*inputs))
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise ValueError("the model or the method draws random numbers in a step")
    return recorder.replay_function(outputs), outputs


class KernelCall(NamedTuple):
    """One call of a kernel, with its arguments as source text."""

    kernel: str
    arguments: list[str]
    reads: set[str]
    """The names of the tensors that it reads."""
    gives: list[str]
    """The names of its results."""
    several: bool
    """Whether it returns a tuple."""
    writes: bool
    """Whether it writes into its arguments."""


class KernelRecorder(TorchDispatchMode):
    """Sees every call of a kernel, below autograd and vmap.

    A tensor is identified by its address. All tensors that were seen are kept alive until the end,
    so that no address is used twice.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = [f"input{number}" for number in range(len(inputs))]
        pairs = zip(inputs, self.inputs, strict=True)
        self.names = {_address(value): name for value, name in pairs}
        self.seen = list(inputs)
        self.calls: list[KernelCall] = []
        self.constants: dict[str, Any] = {}
        """What the source text refers to by name: kernels, and arguments that are not numbers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler, which takes seconds and is not used here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if depends_on_values(func, args):
            raise ValueError(f"a step reads a tensor's value ({name})")
        if name == "lift_fresh":
            # A tensor made of plain numbers. The step may write into it, so a replay needs a copy.
            func = torch.ops.aten.clone.default
        reads: set[str] = set()
        texts = [self._text(value, reads) for value in args]
        texts += [f"{key}={self._text(value, reads)}" for key, value in (kwargs or {}).items()]
        kernel, result = quick_call(func, args, kwargs or {})
        several = isinstance(result, (list, tuple))
        results = list(result) if several else [result]
        tensors = [value for value in results if isinstance(value, Tensor)]
        is_new = any(_address(value) not in self.names for value in tensors)
        writes = bool(func._schema.is_mutable)
        self.seen += tensors
        # A call that returns nothing new and writes nothing, such as a view of itself, is left out.
        if is_new or writes:
            gives = [self._name(v) if isinstance(v, Tensor) else "_" for v in results]
            call = KernelCall(self._keep(kernel), texts, reads, gives, several, writes)
            self.calls.append(call)
        return result

    def _name(self, value: Tensor) -> str:
        return self.names.setdefault(_address(value), f"value{len(self.names)}")

    def _keep(self, value: object) -> str:
        name = f"known{len(self.constants)}"
        self.constants[name] = value
        return name

    def _text(self, value: Any, reads: set[str]) -> str:
        """Return an argument as source text, and add the tensors in it to ``reads``."""
        if isinstance(value, Tensor):
            if _address(value) not in self.names:
                # It existed before the step, such as a buffer: every replay reads the same one.
                self.seen.append(value)
                self.names[_address(value)] = self._keep(value)
            reads.add(self.names[_address(value)])
            return self.names[_address(value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._text(each, reads) for each in value)}]"
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        return self._keep(value)

    def replay_function(self, outputs: Sequence[Tensor]) -> StepFunction:
        """Return the recorded calls as a function of the inputs.

        The source is written from the end, so that it is known which results are still needed.
        Calls whose results are not needed are left out, and a name is set to None after its last
        use, which frees the tensor.
        """
        returned = [self._text(value, set()) for value in outputs]
        needed = set(returned)
        lines = [f"    return {', '.join(returned)},"]
        for call in reversed(self.calls):
            if not call.writes and not needed.intersection(call.gives):
                continue
            used = call.reads | set(call.gives)
            last_used = used - needed - set(self.inputs) - self.constants.keys() - {"_"}
            if last_used:
                lines.append(f"    {' = '.join(sorted(last_used))} = None")
            targets = ", ".join(call.gives) + ("," if call.several else "")
            lines.append(f"    {targets} = {call.kernel}({', '.join(call.arguments)})")
            needed |= used
        source = "\n".join([f"def replay({', '.join(self.inputs)}):", *reversed(lines)])
        namespace = {name: self.constants[name] for name in self.constants if name in source}
        exec(compile(source, "<recorded step>", "exec"), namespace)
        replay: StepFunction = namespace["replay"]
        return replay


def depends_on_values(func: Any, args: Any) -> bool:
    """Return whether a kernel's result, or its shape, depends on values in an unrecorded way."""
    if func is torch.ops.aten.index.Tensor:
        masks = (torch.bool, torch.uint8)
        return any(index is not None and index.dtype in masks for index in args[1])
    unrecordable = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return bool(unrecordable & set(func.tags))


class OneCall(TorchDispatchMode):
    """Lets one call through if it is the expected one; refuses others before they run."""

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.func = func
        self.given = (_comparable(args), _comparable(kwargs))
        self.ran = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (_comparable(args), _comparable(kwargs or {}))
        if self.ran or func is not self.func or given != self.given:
            raise TypeError("another call than the recorded one")
        self.ran = True
        return func(*args, **(kwargs or {}))


def quick_call(func: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Any]:
    """Return the quickest way to call a kernel with such arguments, and the result of the call.

    PyTorch's operators can be called by their full name. That takes up to ten microseconds more
    than the plain function or method that most of them also are.
    """
    name = func._schema.name.removeprefix("aten::")
    for home in KERNEL_HOMES:
        if not hasattr(home, name):
            continue
        quick = getattr(home, name)
        only = OneCall(func, args, kwargs)
        try:
            with only:
                return quick, quick(*args, **kwargs)
        except TypeError:
            # The function takes other arguments, or does more than this one call.
            if only.ran:
                raise
    return func._op, func(*args, **kwargs)


def _comparable(values: Any) -> Any:
    """Return arguments in a form that can be compared: tensors by their address."""
    if isinstance(values, Tensor):
        return _address(values)
    if isinstance(values, dict):
        return {name: _comparable(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_comparable(value) for value in values]
    return values


def _address(value: Tensor) -> tuple[object, ...]:
    start = value.untyped_storage().data_ptr()
    return start, value.storage_offset(), value.shape, value.stride(), value.dtype
