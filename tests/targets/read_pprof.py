"""Reads a profile of pprof: the sum of every sample type, the stacks and labels, as JSON.

    python tests/targets/read_pprof.py FILE

Follows profile.proto and the encoding of protocol buffers alone, and refuses what these do not allow.
"""
import gzip
import json
import sys


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7f) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 2:
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
            assert len(value) == length, "a field goes beyond its message"
        else:
            raise ValueError(f"wire type {wire}")
        yield number, value


def packed(data):
    at, values = 0, []
    while at < len(data):
        value, at = varint(data, at)
        values.append(value)
    return values


def of(data, number):
    return [value for field, value in fields(data) if field == number]


def one(data, number):
    return (of(data, number) or [0])[0]


def main():
    with gzip.open(sys.argv[1]) as file:
        profile = file.read()
    strings = [text.decode() for text in of(profile, 6)]
    assert strings[0] == ""
    kinds = [strings[one(kind, 1)] for kind in of(profile, 1)]
    functions = {one(f, 1): (strings[one(f, 2)], strings[one(f, 4)]) for f in of(profile, 5)}
    locations = {}
    for location in of(profile, 4):
        [line] = of(location, 4)
        locations[one(location, 1)] = [*functions[one(line, 1)], one(line, 2)]
    assert 0 not in functions and 0 not in locations
    samples = []
    for sample in of(profile, 2):
        values = [value for part in of(sample, 2) for value in packed(part)]
        assert len(values) == len(kinds)
        stack = [locations[number] for part in of(sample, 1) for number in packed(part)]
        labels = {strings[one(label, 1)]: strings[one(label, 2)] for label in of(sample, 3)}
        samples.append({"values": dict(zip(kinds, values)), "leaf_first": stack, "labels": labels})
    sums = {kind: sum(sample["values"][kind] for sample in samples) for kind in kinds}
    print(json.dumps({"sums": sums, "samples": samples, "default": strings[one(profile, 14)],
                      "units": [strings[one(kind, 2)] for kind in of(profile, 1)]}))


if __name__ == "__main__":
    main()
