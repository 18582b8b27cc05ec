"""memspy's program, from Python: `%load_ext memspy` in IPython, `@pytest.mark.gpu_memory("2 GiB")` in pytest.

The job is recorded from outside, by the program `memspy`; nothing is patched in this process.
"""
from .recording import MemspyError, Recording, find_program

__all__ = ["MemspyError", "Recording", "find_program", "load_ipython_extension"]


def load_ipython_extension(shell):
    """`%load_ext memspy`: the magics %memspy and %%memspy."""
    from .notebook import MemspyMagics

    shell.register_magics(MemspyMagics)
