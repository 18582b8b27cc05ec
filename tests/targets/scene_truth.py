"""What is true of a process's tensors, graphs and holders, said by the process itself without changing anything in it.

`of(frame, expressions)` forks; the child looks and prints, the parent only waits. Looking disturbs: `.grad`
and `_saved_*` make Python objects that stay, `f_locals` makes a dictionary that holds every variable. All of
that happens in the child, which has the same objects at the same addresses, and ends with it. The child calls
no CUDA function, only asks tensors about themselves; what the driver knows is asked in the parent.
"""
import gc
import json
import os
import re
import sys

import kinds
import scene_graphs
import torch

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer_state", "saved_for_backward", "other_tensors")


def of(frame, expressions, **more):
    """One dictionary about this process. `expressions` are variables of `frame`, or paths written in Python that
    lead to tensors, modules and optimizers; one that starts with the name of a module is of its globals."""
    truth = {"pid": os.getpid(), "torch": torch.__version__, "cuda": cuda()}
    truth.update(in_child(seen_from_inside, frame, expressions))
    truth["garbage"] = in_child(garbage)
    truth.update(more)
    return truth


def in_child(look, *arguments):
    """What `look` returns in a fork of this process, which ends without running anything else."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            answer = json.dumps(look(*arguments))
            with os.fdopen(writing, "w") as pipe:
                pipe.write(answer)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the child that looks for the truth failed")
    return json.loads(answer)


def cuda():
    """What the caching allocator says, for each device; `None` where CUDA is not in use."""
    if not torch.cuda.is_initialized():
        return None
    devices = []
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(device)
        segments = [s for s in torch.cuda.memory_snapshot() if s["device"] == device]
        devices.append({
            "device": device,
            **{what: stats.get(f"{what}_bytes.all.current", 0)
               for what in ("allocated", "reserved", "active", "requested")},
            "max_allocated": stats.get("allocated_bytes.all.peak", 0),
            "max_reserved": stats.get("reserved_bytes.all.peak", 0),
            # What empty_cache() would give back: segments in which nothing is in use.
            "wholly_free": sum(s["total_size"] for s in segments if s["active_size"] == 0),
            "segments": [[s["address"], s["total_size"], s["segment_type"]] for s in segments],
            "blocks": [[b["address"], b["size"], b["requested_size"], b["state"]] for s in segments for b in s["blocks"]],
        })
    return devices


def seen_from_inside(frame, expressions):
    gc.unfreeze()  # get_objects() leaves out what gc.freeze() set aside
    tensors = all_of(torch.Tensor)
    modules = all_of(torch.nn.Module)
    optimizers = all_of(torch.optim.Optimizer)
    graphs = {"all": scene_graphs.of([t.grad_fn for t in tensors if t.grad_fn is not None])}
    names = []
    shown = {expression: evaluate(frame, expression) for expression in expressions}
    outermost = outermost_of(modules)
    for expression, thing in shown.items():
        if isinstance(thing, torch.Tensor):
            names += names_of_variable(frame, expression, thing)
            if thing.grad_fn is not None:
                graphs[expression] = scene_graphs.of([thing.grad_fn])
        elif isinstance(thing, torch.nn.Module):
            names += names_of_module(expression, thing, len(outermost) == 1, id(thing) in outermost)
    for expression, thing in shown.items():
        if isinstance(thing, torch.optim.Optimizer):
            names += names_of_optimizer(expression, thing, names)
    rows = sorted((row(tensor) for tensor in tensors), key=lambda tensor: tensor["id"])
    sums = by_category(tensors, modules, optimizers, graphs["all"])
    return {"tensors": rows, "names": names, "graphs": graphs, "by_category": sums, "stack": stack(frame)}


def stack(frame):
    """(file, function, line) from the frame that shows outwards."""
    frames = []
    while frame is not None:
        frames.append([frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    return frames


def all_of(kind):
    # Not isinstance: it asks proxies for their class, and some warn.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


def is_global(frame, expression):
    """Whether it starts with the name of a module, not with a variable of the frame."""
    module = expression.partition(".")[0]
    return module in sys.modules and module not in frame.f_code.co_varnames


def evaluate(frame, expression):
    if is_global(frame, expression):
        module, _, path = expression.partition(".")
        return eval(path, vars(sys.modules[module]))
    return eval(expression, frame.f_globals, dict(frame.f_locals))


def said(frame, expression):
    """As memspy writes it: locals after the name of their function, a generator's variables as `.<locals>.x`."""
    name = re.sub(r"\.(gi|ag|cr)_frame\.f_locals\[.(\w+).\]", r".<locals>.\2", expression)
    name = re.sub(r"\.tb_frame\.f_locals\[.(\w+).\]", r".tb_frame.<locals>.\1", name)
    name = re.sub(r"^next\(iter\((.*)\)\)$", r"\1.keys()", name)
    return name if is_global(frame, expression) else f"{frame.f_code.co_name}: {name}"


def names_of_variable(frame, expression, tensor):
    name = said(frame, expression)
    kind = "global" if is_global(frame, expression) else "variable"
    yield {"kind": kind, "name": name, "expression": expression, "id": id(tensor)}
    for step, part in kinds.named_parts(tensor).items():
        if storage(part) is not None:
            yield {"kind": "part", "name": name + step, "id": None, "storage": storage(part)}
    if gradient(tensor) is not None:
        yield {"kind": "gradient", "name": f"{name}.grad", "expression": f"{expression}.grad", "id": None,
               "storage": storage(tensor.grad)}


storage, parts = kinds.storage, kinds.parts


def gradient(tensor):
    return tensor.grad if tensor.is_leaf or tensor.retains_grad else None  # else asking warns


def row(tensor):
    grad = gradient(tensor)
    at, nbytes = storage(tensor) or (None, None)
    return {
        "id": id(tensor), "type": type(tensor).__name__, "dtype": str(tensor.dtype).replace("torch.", ""),
        "device": kinds.device_of(tensor), **kinds.geometry(tensor),
        "data_ptr": at, "storage_bytes": nbytes,
        "version": None if tensor.is_inference() else tensor._version, "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf, "is_parameter": isinstance(tensor, torch.nn.Parameter),
        "grad": None if grad is None else storage(grad),
        "grad_fn": None if tensor.grad_fn is None else tensor.grad_fn.name().rsplit("::", 1)[-1],
        "parts": [storage(part) for part in parts(tensor)],
    }


def outermost_of(modules):
    """Modules with tensors that no other module has as a child."""
    children = {id(child) for module in modules for child in module._modules.values()}
    return {id(module) for module in modules if id(module) not in children and any(paths_of(module))}


def paths_of(module):
    """(path, tensor, kind) of all its tensors; a shared tensor once for each path."""
    for prefix, inner in module.named_modules(remove_duplicate=False):
        start = prefix + "." if prefix else ""
        for kind, own in (("parameter", inner._parameters), ("buffer", inner._buffers)):
            for name, tensor in own.items():
                if tensor is not None:
                    yield start + name, tensor, kind


def names_of_module(expression, module, alone, outermost):
    """The path is within the module. `name` is how memspy writes it, which leaves out the variable where there is only
    one model, and is `None` for a module within another one: its tensors are named from the outer one."""
    for path, tensor, kind in paths_of(module):
        name = (path if alone else f"{expression}.{path}") if outermost else None
        about = {"root": expression, "path": path, "name": name}
        yield {"kind": kind, **about, "id": id(tensor)}
        if tensor.grad is not None:
            whole = f"{name}.grad" if name else None
            yield {"kind": "gradient", **about, "path": f"{path}.grad", "name": whole, "id": None,
                   "storage": storage(tensor.grad)}


def names_of_optimizer(expression, optimizer, names):
    of_parameters = {}
    for name in names:
        if name["kind"] in ("parameter", "variable"):
            of_parameters.setdefault(name["id"], name)
    for parameter, state in optimizer.state.items():
        of = of_parameters.get(id(parameter), {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                yield {"kind": "optimizer_state", "root": expression, "key": key, "parameter": of.get("path"),
                       "name": f"{type(optimizer).__name__}.{key}[{of.get('name') or '?'}]", "id": id(value)}


def categories():
    """`by_category` of all that is there; to be called in a child."""
    tensors = all_of(torch.Tensor)
    graph = scene_graphs.of([tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None])
    return by_category(tensors, all_of(torch.nn.Module), all_of(torch.optim.Optimizer), graph)


def by_category(tensors, modules, optimizers, graph):
    """Bytes of distinct storages by device and category; one that is several things counts for the first."""
    found = {name: {} for name in CATEGORIES}

    def add(category, tensor):
        for piece in [tensor, *parts(tensor)]:
            whole = storage(piece)
            if whole is not None:
                found[category].setdefault(str(piece.device), {})[whole[0]] = whole[1]

    for tensor in tensors:
        add("parameters" if isinstance(tensor, torch.nn.Parameter) else "other_tensors", tensor)
        if gradient(tensor) is not None:
            add("gradients", gradient(tensor))
    for module in modules:
        for held, category in ((module._parameters, "parameters"), (module._buffers, "buffers")):
            for tensor in held.values():
                if tensor is not None:
                    add(category, tensor)
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    add("optimizer_state", value)
    for saved in graph["saved"]:
        found["saved_for_backward"].setdefault(saved["device"], {})[saved["data_ptr"]] = saved["storage_bytes"]
    sums, counted = {}, set()
    for category in CATEGORIES:
        for device, storages in found[category].items():
            new = {at: size for at, size in storages.items() if at and (device, at) not in counted}
            counted.update((device, at) for at in new)
            sums.setdefault(device, dict.fromkeys(CATEGORIES, 0))[category] += sum(new.values())
    return sums


def garbage():
    """The ids of tensors that only unreachable cycles hold, as the collector itself finds them; frees nothing."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    return [id(thing) for thing in gc.garbage if issubclass(type(thing), torch.Tensor)]
