"""Reads what memspy exported with the readers of others: a profile of pprof with Google's protobuf, speedscope's JSON by its schema.

    python tests/targets/read_formats.py PPROF SPEEDSCOPE

Prints one line of JSON: {"pprof": {sample type: sum}, "speedscope": sum of the weights}.
"""
import gzip
import json
import sys

import jsonschema
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields

INT, UINT, STRING, MESSAGE, BOOL = 3, 4, 9, 11, 8
# Of perftools.profiles (profile.proto of google/pprof): name, number, type, repeated, message.
MESSAGES = {
    "ValueType": [("type", 1, INT), ("unit", 2, INT)],
    "Label": [("key", 1, INT), ("str", 2, INT), ("num", 3, INT), ("num_unit", 4, INT)],
    "Sample": [("location_id", 1, UINT, True), ("value", 2, INT, True), ("label", 3, MESSAGE, True, "Label")],
    "Line": [("function_id", 1, UINT), ("line", 2, INT), ("column", 3, INT)],
    "Location": [
        ("id", 1, UINT), ("mapping_id", 2, UINT), ("address", 3, UINT), ("line", 4, MESSAGE, True, "Line"),
        ("is_folded", 5, BOOL),
    ],
    "Function": [("id", 1, UINT), ("name", 2, INT), ("system_name", 3, INT), ("filename", 4, INT), ("start_line", 5, INT)],
    "Profile": [
        ("sample_type", 1, MESSAGE, True, "ValueType"), ("sample", 2, MESSAGE, True, "Sample"),
        ("location", 4, MESSAGE, True, "Location"), ("function", 5, MESSAGE, True, "Function"),
        ("string_table", 6, STRING, True), ("drop_frames", 7, INT), ("keep_frames", 8, INT), ("time_nanos", 9, INT),
        ("duration_nanos", 10, INT), ("period_type", 11, MESSAGE, False, "ValueType"), ("period", 12, INT),
        ("comment", 13, INT, True), ("default_sample_type", 14, INT), ("doc_url", 15, INT),
    ],
}
# speedscope's file format, as jlfwong/speedscope describes it in src/lib/file-format-spec.ts: profiles of samples.
FRAME = {
    "type": "object", "required": ["name"],
    "properties": {"name": {"type": "string"}, "file": {"type": "string"}, "line": {"type": "number"}, "col": {"type": "number"}},
}
PROFILE = {
    "type": "object", "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
    "properties": {
        "type": {"const": "sampled"}, "name": {"type": "string"},
        "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]},
        "startValue": {"type": "number"}, "endValue": {"type": "number"},
        "samples": {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
        "weights": {"type": "array", "items": {"type": "number"}},
    },
}
SPEEDSCOPE = {
    "type": "object", "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "shared": {"type": "object", "required": ["frames"], "properties": {"frames": {"type": "array", "items": FRAME}}},
        "profiles": {"type": "array", "items": PROFILE}, "name": {"type": "string"},
        "activeProfileIndex": {"type": "number"}, "exporter": {"type": "string"},
    },
}


def profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, *more in fields:
            of = message.field.add(name=field, number=number, type=kind, label=3 if more and more[0] else 1)
            if kind == MESSAGE:
                of.type_name = f".perftools.profiles.{more[1]}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


def pprof_sums(path):
    profile = profile_class()()
    with gzip.open(path) as file:
        profile.ParseFromString(file.read())
    text = profile.string_table
    assert text[0] == "", "the first text is empty"
    assert len(unknown_fields.UnknownFieldSet(profile)) == 0, "a field that profile.proto does not have"
    locations = {location.id for location in profile.location}
    functions = {function.id for function in profile.function}
    assert all(line.function_id in functions for location in profile.location for line in location.line)
    assert all(set(sample.location_id) <= locations for sample in profile.sample)
    return {
        text[kind.type]: sum(sample.value[at] for sample in profile.sample) for at, kind in enumerate(profile.sample_type)
    }


def speedscope_sum(path):
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    jsonschema.validate(content, SPEEDSCOPE)
    frames = len(content["shared"]["frames"])
    for profile in content["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert all(frame < frames for sample in profile["samples"] for frame in sample)
    return sum(sum(profile["weights"]) for profile in content["profiles"])


if __name__ == "__main__":
    print(json.dumps({"pprof": pprof_sums(sys.argv[1]), "speedscope": speedscope_sum(sys.argv[2])}))
