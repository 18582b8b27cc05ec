"""Tensors of every kind that are not plain ones, and what PyTorch says of any tensor, as far as it says it."""
import types
import warnings

import torch


class Wrapper(torch.Tensor):
    """Stands for another tensor and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        raise NotImplementedError


def all_of(device):
    """By name; quantized and opaque ones are on the CPU, where alone they exist."""
    made = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pieces = [torch.randn(2, 3, device=device), torch.randn(4, 3, device=device)]
        made["nested"] = torch.nested.nested_tensor(pieces)
        made["of_nested"] = torch.nested.nested_tensor(pieces, requires_grad=True).transpose(1, 2)
        if tuple(map(int, torch.__version__.split(".")[:2])) > (2, 2):  # up to 2.2 its sizes were in Python only
            made["jagged"] = torch.nested.nested_tensor(pieces, layout=torch.jagged)
        coo = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), device=device)
        made["coo"], made["hybrid"] = coo, torch.sparse_coo_tensor([[0, 1]], [[1.0, 2.0], [3.0, 4.0]], (3, 2), device=device)
        made["csr"] = torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=device)
        made["csc"] = torch.sparse_csc_tensor([0, 1, 2], [0, 1], [1.0, 2.0], (2, 2), device=device)
        blocks = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]
        made["bsr"] = torch.sparse_bsr_tensor([0, 1, 2], [0, 1], blocks, (4, 4), device=device)
        made["bsc"] = torch.sparse_bsc_tensor([0, 1, 2], [0, 1], blocks, (4, 4), device=device)
        made["quantized"] = torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 3, torch.qint8)
        made["by_channel"] = torch.quantize_per_channel(torch.randn(4, 4), torch.ones(4), torch.zeros(4), 0, torch.qint8)
        made["opaque"] = torch.randn(4, 4).to_mkldnn()
        made["meta"] = torch.empty(1000, 1000, device="meta")
        made["zero"] = torch._efficientzerotensor(3, device=device)
        numbers = torch.zeros(3, dtype=torch.complex64, device=device)
        made["conjugated"], made["negated"] = numbers.conj(), numbers.conj().imag
        made["functional"] = torch._to_functional_tensor(torch.randn(3, device=device))
        made["wrapper"] = Wrapper(torch.randn(3, 8, device=device))
        # What functions of torch.func were given, kept for longer than they ran.
        torch.vmap(lambda x: made.update(batched=x) or x * 2)(torch.randn(3, 4, device=device))
        torch.func.grad(lambda x: made.update(tracked=x) or x.sum())(torch.randn(3, 4, device=device))
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        with FakeTensorMode():
            made["fake"] = torch.empty(7, 9, device=device)
        made["symbolic"] = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.empty(11, 13), static_shapes=False)
    return made


def of(device):
    """The same as attributes, which are easily written as a path."""
    return types.SimpleNamespace(**all_of(device))


def numbers(look):
    """A number or a list of numbers; `None` where PyTorch refuses to say, or says that it is symbolic."""
    try:
        said = look()
    except (NotImplementedError, RuntimeError):
        return None
    if isinstance(said, int):
        return said
    if isinstance(said, torch.SymInt):
        return None
    return list(said) if all(type(number) is int for number in said) else None


def geometry(tensor):
    """Sizes and the like; strides and offset only where they mean something."""
    strided = tensor.layout == torch.strided and not tensor.is_nested
    shape = numbers(tensor.size)
    return {
        "shape": shape, "stride": numbers(tensor.stride) if strided else None,
        "offset": numbers(tensor.storage_offset) if strided else None,
        "nested": tensor._nested_tensor_size().tolist() if tensor.is_nested and type(tensor) is torch.Tensor else None,
        "numel": numbers(tensor.numel) if shape is not None or type(tensor) is torch.Tensor else None,
    }


def storage(tensor):
    """Address and bytes of its storage; `None` where it has none of its own, or none with bytes."""
    try:
        whole = tensor.untyped_storage()
        at, size = whole.data_ptr(), whole.nbytes()
    except (NotImplementedError, RuntimeError):
        return None
    return [at, size] if at and type(size) is int else None


def device_of(tensor):
    """Fake tensors say which device they stand for; what they have of memory, they have on none."""
    return "meta" if hasattr(tensor, "fake_device") else str(tensor.device)


def parts(tensor):
    """The tensors that it is made of."""
    return list(named_parts(tensor).values())


def named_parts(tensor):
    """The same by how they are come to; what Python has no name for is `.<wrapped>`."""
    def called(*methods):
        return {f".{method}()": getattr(tensor, method)() for method in methods}

    if tensor.layout == torch.sparse_coo:
        return called("_indices", "_values")
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return called("crow_indices", "col_indices", "values")
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return called("ccol_indices", "row_indices", "values")
    if type(tensor) is not torch.Tensor:
        return {}
    if tensor.is_nested:
        return called("_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets")
    if torch._is_functional_tensor(tensor):
        return {".<wrapped>": torch._from_functional_tensor(tensor)}
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return {".<wrapped>": torch._C._functorch.get_unwrapped(tensor)}
    return {}
