"""What ops give on tensors without memory, remembered by what they took.

Layers repeat: most ops of a step take tensors of shapes, orders and formats that the same op took
before, and give what it gave then. PyTorch asks its rules for tensors without memory at each call
(0.3 to 1 ms); here a result is made from the shape, order and format of the first one (some
30 us). A view is asked of PyTorch's own kernel, so that it lies in the storage that it is a view
of.

Not remembered is whatever shapes do not decide: results sized by numbers, tensors whose few numbers
are known, complex ones, ops of others, results that share a storage with one another or have more
of it than their sizes need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

_SPACES = ("aten", "hybridperf")  # of ops whose results follow from shapes
_LISTS = ("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad")
_UNSAFE_VIEW = "aten::_unsafe_view"  # which PyTorch does not call a view, for gradients' sake
_GROUPED = "aten::_grouped_mm"  # whose rule knows bf16 alone, its kernels fp16 and fp32 besides
_NOTHING = object()  # is given by ops in place
_SCALARS = (int, float, bool, str, type(None))


class _Fresh(NamedTuple):
    """A tensor with a storage of its own."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any


class _Unknown(Exception):
    """A call whose result is not remembered."""


def _lists(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How long lists of an op are that go on by places; 0 where a tensor tells of all places."""
    lengths = {len(one) for one in (*args, *kwargs.values()) if isinstance(one, list | tuple)}
    tensors = [one for one in (*args, *kwargs.values()) if hasattr(one, "numel")]
    alike = len(lengths) == 1 and all(one.numel() == 1 for one in tensors)
    return lengths.pop() if alike else 0


def _of_place(args: Sequence[Any], kwargs: Mapping[str, Any], at: int) -> tuple[Any, Any]:
    """Arguments with the tensor or number of one place for each list."""

    def cut(one: Any) -> Any:
        return [one[at]] if isinstance(one, list | tuple) else one

    return [cut(one) for one in args], {name: cut(one) for name, one in kwargs.items()}


class Results:
    """Of the ops that run in one mode of tensors without memory."""

    def __init__(self, torch: ModuleType) -> None:
        from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

        self._torch, self._fake, self._in_kernel = torch, FakeTensor, in_kernel_invocation_manager
        self._constants = (torch.dtype, torch.device, torch.memory_format, torch.layout)
        tag = torch.Tag
        self._by_numbers = {tag.data_dependent_output, tag.dynamic_output_shape, tag.inplace_view}
        self._asked: dict[Any, bool] = {}  # by op: whether its results are remembered
        self._known: dict[Any, Any] = {}  # by op and what it takes

    def of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the op gives."""
        follows = self._asked.get(func)
        if follows is None:
            follows = self._asked[func] = self._follows(func)
        if not follows:
            return func(*args, **kwargs)
        if func._schema.name.startswith(_LISTS) and (taken := _lists(args, kwargs)) > 1:
            return self._of_lists(func, args, kwargs, taken)
        key, tensors = [func, self._torch.get_default_dtype()], list[Any]()
        try:
            self._describe(args, key, tensors)
            if kwargs:
                key.extend(kwargs)
                self._describe(tuple(kwargs.values()), key, tensors)
            asked = tuple(key)
            hash(asked)
        except (_Unknown, TypeError):
            return func(*args, **kwargs)
        if tensors and (func.is_view or func._schema.name == _UNSAFE_VIEW):
            mode = tensors[0].fake_mode
            with self._in_kernel(mode):
                views = func(*args, **kwargs)
            return self._wrapped(views, mode, tensors[0].fake_device)
        kept = self._known.get(asked)
        if kept is None:
            result = self._by_rule(func, args, kwargs)
            self._known[asked] = self._kept(result, tensors)
            return result
        if kept is NotImplemented:
            return self._by_rule(func, args, kwargs)
        return self._made(kept, tensors)

    def _by_rule(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """By PyTorch's own rule."""
        if func._schema.name != _GROUPED:
            return func(*args, **kwargs)
        return func(*(one.bfloat16() for one in args[:2]), *args[2:], **kwargs).to(args[0].dtype)

    def _of_lists(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], n: int) -> Any:
        """Of an op that goes over lists: what it gives for each place of them."""
        each = [self.of(func, *_of_place(args, kwargs, at)) for at in range(n)]
        if not func._schema.returns:
            return None
        return [one for given in each for one in given]

    def _follows(self, func: Any) -> bool:
        return func.namespace in _SPACES and not (
            self._by_numbers & {*func.tags} or "lift" in func._schema.name
        )

    def _describe(self, given: Sequence[Any], key: list[Any], tensors: list[Any]) -> None:
        """Adds what decides a result to `key`, and the tensors among it to `tensors`."""
        key.append(len(given))
        for one in given:
            kind = type(one)
            if kind is self._fake:
                if self._apart(one):
                    raise _Unknown
                key += (one.shape, one.stride(), one.storage_offset(), one.dtype, one.fake_device)
                tensors.append(one)
            elif kind is list or kind is tuple:
                self._describe(one, key, tensors)
            elif kind in _SCALARS or isinstance(one, self._constants):
                key += (kind, one)
            else:
                raise _Unknown

    def _apart(self, one: Any) -> bool:
        """Whether a tensor has known numbers, complex ones, or is sparse."""
        of_lists = one.layout != self._torch.strided
        return one.constant is not None or one.dtype.is_complex or of_lists

    def _wrapped(self, views: Any, mode: Any, device: Any) -> Any:
        if isinstance(views, list | tuple):
            return type(views)(self._wrapped(one, mode, device) for one in views)
        return self._fake(mode, views, device)

    def _kept(self, result: Any, tensors: list[Any]) -> Any:
        """What a result is made from; `NotImplemented` where shapes do not say enough."""
        storages = {one.untyped_storage()._cdata for one in tensors}
        try:
            return self._template(result, tensors, storages)
        except _Unknown:
            return NotImplemented

    def _template(self, one: Any, tensors: list[Any], storages: set[int]) -> Any:
        if isinstance(one, list | tuple):
            return type(one), [self._template(each, tensors, storages) for each in one]
        if one is None:
            return _NOTHING
        at = next((at for at, each in enumerate(tensors) if each is one), None)
        if at is not None:  # in place
            return at
        if type(one) is not self._fake or self._apart(one):
            raise _Unknown
        storage = one.untyped_storage()
        last = sum((size - 1) * by for size, by in zip(one.shape, one.stride(), strict=True))
        needed = (last + 1) * one.element_size() if one.numel() else 0
        if one.storage_offset() or storage._cdata in storages or storage.nbytes() != needed:
            raise _Unknown
        storages.add(storage._cdata)
        return _Fresh(tuple(one.shape), one.stride(), one.dtype, one.fake_device)

    def _made(self, kept: Any, tensors: list[Any]) -> Any:
        if isinstance(kept, _Fresh):
            mode = self._mode()
            with self._in_kernel(mode):
                alike = self._torch.empty_strided(
                    kept.shape, kept.strides, dtype=kept.dtype, device="meta"
                )
            return self._fake(mode, alike, kept.device)
        if isinstance(kept, tuple):
            kind, parts = kept
            return kind([self._made(one, tensors) for one in parts])
        return None if kept is _NOTHING else tensors[kept]

    def _mode(self) -> Any:
        return self._torch._guards.detect_fake_mode()
