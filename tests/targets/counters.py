"""Integer variables of every kind, at the values that a test asks for: locals, cells, variables of the main module."""
import handshake


def in_closure():
    captured = 0

    def inner():
        return captured

    def values():
        nonlocal captured
        for value in [1, 2 ** 29, 2 ** 31, 2 ** 45]:
            captured = value
            yield inner()

    for shadowed in values():
        handshake.ready()
        handshake.hold()


def deep(depth):
    if depth:
        deep(depth - 1)
    else:
        handshake.ready()
        handshake.hold()


def train():
    for epoch in (0, 7):
        for step in (0, 1, 256, 2 ** 30 - 1, 2 ** 30, 2 ** 40 + 5):
            handshake.ready([epoch, step])
            handshake.hold()
            deep(step % 50)


class Trainer:
    def fit(self):
        for batch in range(3):
            text, negative = "no number", -5
            handshake.ready([batch, len(text) + negative])
            handshake.hold()


train()
Trainer().fit()
in_closure()
for in_module in range(3):
    handshake.ready(in_module)
    handshake.hold()
