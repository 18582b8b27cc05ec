"""How a target and the test that attaches to it take turns: lines on stdout, lines on stdin.

The target prints what is true about itself as one line of JSON, then READY, and waits. Whatever it printed
stays true until the test writes a line. End of input ends the target, so a test that dies leaves nothing
running.
"""
import json
import re
import select
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


def until_asked():
    """Counts rounds until the test writes the next line, or closes the pipe."""
    rounds = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        yield rounds
        rounds += 1


def marked_lines(file, pattern):
    """Number, function and match of every line of a source file that has the mark."""
    function = None
    with open(file, encoding="utf-8") as source:
        for number, text in enumerate(source, 1):
            if text.startswith("def "):
                function = text[4:].split("(")[0]
            marker = re.search(pattern, text)
            if marker:
                yield number, function, marker


def hold():
    """Waits until the test writes a line or closes the pipe."""
    sys.stdin.readline()
