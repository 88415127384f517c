"""A step recorded once as a list of kernel calls and played again: no autograd, no vmap, no modules
in between.

On small networks those cost more than the arithmetic. It is to a CPU what a captured graph is to a
GPU, and asks the same of what is recorded: that it reads no tensor's value, draws nothing, and does
the same whenever it is played.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

StepFunction = Callable[..., tuple[Tensor, ...]]


HOMES: tuple[Any, ...] = (torch._C._VariableFunctions, torch._C.TensorBase, torch._C._nn)
"""Where kernels can be called as plain functions and methods."""


def record(
    step: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]
) -> tuple[StepFunction, tuple[Tensor, ...]]:
    """Run a step and return the call that plays it on other inputs of the same form, and what it
    has returned now.

    What the step writes into its inputs, playing it writes into those it is given. Raises
    ValueError for a step that cannot be repeated.
    """
    slices = [_place(value) for value in inputs if value.numel()]
    if len(set(slices)) < len(slices) or not all(value.is_contiguous() for value in inputs):
        raise ValueError("two inputs are the same tensor, or one is not contiguous")
    before = torch.get_rng_state()
    recorder = KernelRecorder(inputs)
    with recorder:
        outputs = tuple(step(*inputs))
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise ValueError("the model or the method draws random numbers in a step")
    return recorder.player(outputs), outputs


class Call(NamedTuple):
    """One call of a kernel: the text of its arguments, the tensors it reads, and those it gives."""

    kernel: str
    arguments: list[str]
    reads: set[str]
    gives: list[str]
    several: bool
    writes: bool


class KernelRecorder(TorchDispatchMode):
    """Sees every call of a kernel, below autograd and vmap.

    A tensor is known by its place in memory. All that were seen are kept until the end, so that two
    in the same place are the same numbers.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = [f"input{number}" for number in range(len(inputs))]
        self.names = {_place(value): name for value, name in zip(inputs, self.inputs, strict=True)}
        self.seen = list(inputs)
        self.calls: list[Call] = []
        self.known: dict[str, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not have PyTorch import its compiler, which takes seconds and has no part in this."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if looks_inside(func, args):
            raise ValueError(f"a step looks into a tensor ({name})")
        if name == "lift_fresh":  # a tensor made of plain numbers; the step may write into it
            func = torch.ops.aten.clone.default
        reads: set[str] = set()
        texts = [self._text(value, reads) for value in args]
        texts += [f"{key}={self._text(value, reads)}" for key, value in (kwargs or {}).items()]
        kernel, result = bound(func, args, kwargs or {})
        several = isinstance(result, (list, tuple))
        writes = bool(func._schema.is_mutable)
        made = list(result) if several else [result]
        fresh = any(isinstance(value, Tensor) and _place(value) not in self.names for value in made)
        self.seen += [value for value in made if isinstance(value, Tensor)]
        if fresh or writes:
            gives = [self._name(value) if isinstance(value, Tensor) else "_" for value in made]
            self.calls.append(Call(self._keep(kernel), texts, reads, gives, several, writes))
        return result

    def _name(self, value: Tensor) -> str:
        return self.names.setdefault(_place(value), f"value{len(self.names)}")

    def _keep(self, value: object) -> str:
        name = f"known{len(self.known)}"
        self.known[name] = value
        return name

    def _text(self, value: Any, reads: set[str]) -> str:
        """Return an argument as source text; what is no plain number is kept under a name."""
        if isinstance(value, Tensor):
            if _place(value) not in self.names:
                self.seen.append(value)
                self.names[_place(value)] = self._keep(value)
            reads.add(self.names[_place(value)])
            return self.names[_place(value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._text(each, reads) for each in value)}]"
        return repr(value) if value is None or isinstance(value, (bool, int)) else self._keep(value)

    def player(self, outputs: Sequence[Tensor]) -> StepFunction:
        """Return the recorded calls as a function of the inputs; those that nobody reads are left
        out.
        """
        returned = [self._text(value, set()) for value in outputs]
        needed = set(returned)
        calls = list[Call]()
        lines = [f"    return {', '.join(returned)},"]
        for call in reversed(self.calls):
            if not (call.writes or needed.intersection(call.gives)):
                continue
            calls.append(call)
            done = sorted(
                (call.reads | set(call.gives))
                - needed
                - set(self.inputs)
                - self.known.keys()
                - {"_"}
            )
            lines += [f"    {' = '.join(done)} = None"] if done else []
            given = ", ".join(call.gives) + ("," if call.several else "")
            lines.append(f"    {given} = {call.kernel}({', '.join(call.arguments)})")
            needed |= call.reads | set(call.gives)
        source = "\n".join([f"def play({', '.join(self.inputs)}):", *reversed(lines)])
        space = {name: self.known[name] for name in self.known if name in source}
        exec(compile(source, "<tape>", "exec"), space)
        play: StepFunction = space["play"]
        return play


def looks_inside(func: Any, args: Any) -> bool:
    """Return whether a kernel's result, or its shape, follows from a tensor's values in a way that
    is not recorded.
    """
    if func is torch.ops.aten.index.Tensor:
        return any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


class Probe(TorchDispatchMode):
    """Lets one call through, if it is the one that is expected, and refuses any other before it
    does anything.
    """

    def __init__(self, func: Any, args: Any, kwargs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.func = func
        self.given = (_bare(args), _bare(kwargs))
        self.ran = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.ran or func is not self.func or (_bare(args), _bare(kwargs or {})) != self.given:
            raise TypeError("another call than the recorded one")
        self.ran = True
        return func(*args, **(kwargs or {}))


def bound(func: Any, args: Any, kwargs: Any) -> tuple[Callable[..., Any], Any]:
    """Return a quick way to call a kernel with such arguments, and the result of doing so.

    PyTorch's operators can be called by their full name, which takes up to ten microseconds more
    than the function or method most of them also are.
    """
    name = func._schema.name.removeprefix("aten::")
    for home in HOMES:
        if hasattr(home, name):
            probe = Probe(func, args, kwargs)
            quick = getattr(home, name)
            try:
                with probe:
                    return quick, quick(*args, **kwargs)
            except TypeError:
                if probe.ran:
                    raise
    return func._op, func(*args, **kwargs)


def _bare(values: Any) -> Any:
    """Return arguments in a form that can be compared: tensors by their place."""
    if isinstance(values, Tensor):
        return _place(values)
    if isinstance(values, dict):
        return {name: _bare(value) for name, value in values.items()}
    return [_bare(value) for value in values] if isinstance(values, (list, tuple)) else values


def _place(value: Tensor) -> tuple[object, ...]:
    start = value.untyped_storage().data_ptr()
    return start, value.storage_offset(), value.shape, value.stride(), value.dtype
