"""How a target and the test that attaches to it take turns: lines on stdout, lines on stdin.

The target prints what is true about itself as one line of JSON, then READY, and waits. Whatever it printed
stays true until the test writes a line. End of input ends the target, so a test that dies leaves nothing
running.
"""
import json
import sys


def ready(truth=None):
    """Prints the truth (if any) and READY."""
    if truth is not None:
        print(json.dumps(truth), flush=True)
    print("READY", flush=True)


def requests():
    """The words of each line the test writes, until it closes the pipe."""
    for line in iter(sys.stdin.readline, ""):
        words = line.split()
        if words:
            yield words


def hold():
    """Waits until the test writes a line or closes the pipe."""
    sys.stdin.readline()
