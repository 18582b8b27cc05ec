"""Walks an autograd graph from within: its nodes, and everything that they keep.

The walk makes Python objects for nodes and saved tensors; see `scene_truth.py` for how it is kept from the
process that is looked at.
"""
import gc
import re

import kinds
import torch

LOOKING = False


class Packed(Exception):
    """Raised instead of unpacking: a hook keeps the value, and unpacking it may run a forward pass."""


class Hooks:
    """Counts what saved-tensor hooks pack, and lets the walk see that a value is packed without unpacking it.

    Hooks made within `with Hooks() as hooks` are watched; it has to stay there while the graph is built."""

    def __enter__(self):
        self.packed = 0
        self.original = torch.autograd.graph.saved_tensors_hooks.__init__
        hooks = self

        def watched(which, pack, unpack):
            def counted(tensor):
                hooks.packed += 1
                return pack(tensor)

            def refused(value):
                if LOOKING:
                    raise Packed
                return unpack(value)

            hooks.original(which, counted, refused)

        torch.autograd.graph.saved_tensors_hooks.__init__ = watched
        return self

    def __exit__(self, *_):
        torch.autograd.graph.saved_tensors_hooks.__init__ = self.original


def nodes_from(roots):
    """Every node, kept so that its Python object, by which it is told from others, stays."""
    found, waiting = {}, list(roots)
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting.extend(after for after, _ in node.next_functions)
    return list(found.values())


def class_of(node):
    return node.name().rsplit("::", 1)[-1]


def looked_up(node):
    """(attribute, how it is kept, value) of what a node keeps; the value is an exception where it cannot be had."""
    names = [(name, "field") for name in dir(node) if name.startswith("_saved_")]
    if hasattr(type(node), "saved_tensors"):
        names.append(("saved_tensors", "function"))
    for name, how in names:
        try:
            value = getattr(node, name)
        except (Packed, RuntimeError) as error:
            value = as_it_was(node, name, error)
            if value is None:
                yield name, how, error
                continue
        several = isinstance(value, (tuple, list))
        for one in value if several else [value]:
            if isinstance(one, torch.Tensor):
                yield name, "vector" if several and how == "field" else how, one


def as_it_was(node, name, error):
    """A value that is refused because it was modified in place since; `None` when it is refused for another reason.
    Autograd compares versions, so each tensor of the version that it complains of gets the expected one for a moment."""
    versions = re.search(r"is at version (\d+); expected version (\d+)", str(error))
    if versions is None:
        return None
    now, expected = map(int, versions.groups())
    for tensor in [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]:
        if not tensor.is_inference() and tensor._version == now:
            set_version(tensor, expected)
            try:
                return getattr(node, name)
            except RuntimeError:
                continue
            finally:
                set_version(tensor, now)
    return None


def set_version(tensor, version):
    setter = torch._C._autograd._unsafe_set_version_counter
    try:
        setter((tensor,), (version,))
    except TypeError:  # up to torch 2.5
        setter(tensor, version)


def why(error):
    """RuntimeErrors of `torch/csrc/autograd/saved_variable.cpp` by what they mean."""
    if isinstance(error, Packed):
        return "packed"
    text = str(error)
    if "have already been freed" in text:
        return "freed"
    return "modified" if "modified by an inplace operation" in text else text


def of(roots):
    """The nodes that `roots` lead to, by class; what they keep, each entry and as distinct storages; how many of the
    attributes could not be had, because a hook packed them or a backward pass freed them; the leaves; what
    functions written in Python keep as attributes of their context, which is not counted as saved; and the shapes of
    what each node's operation returned."""
    global LOOKING
    LOOKING = True
    nodes = nodes_from(roots)
    classes, saved, absent, variables, attributes, outputs = {}, [], {}, [], [], []
    for node in nodes:
        name = class_of(node)
        classes[name] = classes.get(name, 0) + 1
        if name == "AccumulateGrad":
            variables.append(id(node.variable))
            continue
        # What the node's operation returned, which backward is given the gradients of; since torch 2.1.
        outputs.append([name, [kinds.numbers(lambda: output.shape) for output in getattr(node, "_input_metadata", ())]])
        attributes += [{"class": name, "attribute": attribute, "id": id(value)}
                       for attribute, value in getattr(node, "__dict__", {}).items() if isinstance(value, torch.Tensor)]
        for attribute, how, value in looked_up(node):
            if isinstance(value, Exception):
                absent[why(value)] = absent.get(why(value), 0) + 1
                continue
            try:
                whole = value.untyped_storage()
            except (NotImplementedError, RuntimeError):
                continue  # sparse: its parts are tensors of their own
            saved.append({"class": name, "attribute": attribute, "how": how, "device": str(value.device),
                          "data_ptr": whole.data_ptr(), "storage_bytes": whole.nbytes(),
                          "tensor_bytes": value.numel() * value.element_size(), "shape": list(value.shape)})
    LOOKING = False
    # Roots come in the order in which the collector has tensors, which a collection changes.
    saved.sort(key=lambda entry: (entry["class"], entry["attribute"], entry["data_ptr"], entry["shape"]))
    outputs.sort()
    attributes.sort(key=lambda entry: entry["id"])
    storages = {entry["data_ptr"]: entry["storage_bytes"] for entry in saved}
    return {"nodes": len(nodes), "edges": sum(after is not None for node in nodes for after, _ in node.next_functions),
            "classes": classes, "saved": saved, "storages": sorted(storages.items()), "bytes": sum(storages.values()),
            "absent": absent, "variables": sorted(variables), "attributes": attributes, "outputs": outputs}
