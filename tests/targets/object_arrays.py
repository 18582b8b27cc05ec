"""Tensors in NumPy arrays of objects, and tensors whose memory an array shares, with the name that each should have.

    python tests/targets/object_arrays.py

Prints {"names": {id: name}} and READY; without NumPy there are none.
"""
import handshake
import torch

try:
    import numpy
except ImportError:
    numpy = None

NAMES = {}


def named(name):
    """A tensor that should be called so."""
    tensor = torch.zeros(32768)
    NAMES[id(tensor)] = name
    return tensor


def array(shape, name):
    """An array of tensors; a list of them would be made an array of their numbers."""
    made = numpy.empty(shape, dtype=object)
    places = list(numpy.ndindex(shape))
    for place in places:
        made[place] = named(name.format(*place))
    return made


def main():
    held = []
    if numpy is not None:
        line = array(3, "main: line[{}]")
        table = array((2, 2), "main: table.flat[*]")
        single = array((), "main: single.item()")
        every_other = array(4, "main: every_other.base[{}]")[::2]
        shared = torch.zeros(32768).numpy()
        NAMES[id(shared.base)] = "main: shared.base"
        held += [line, table, single, every_other, shared]
    numbers = None if numpy is None else numpy.arange(100)
    handshake.ready({"names": NAMES})
    handshake.hold()
    return held, numbers


if __name__ == "__main__":
    main()
