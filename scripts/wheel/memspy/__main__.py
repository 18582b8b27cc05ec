"""`python -m memspy` is the program memspy."""
import os
import sys

from .recording import find_program

PROGRAM = find_program()
os.execv(PROGRAM, [PROGRAM, *sys.argv[1:]])
