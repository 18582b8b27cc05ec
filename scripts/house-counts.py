#!/usr/bin/env python3
"""Prints counts of the tree: size, comments, names, longest functions, words of the documents.

    python3 scripts/house-counts.py [ROOT]

Needs only Python. Files named *tests.rs and code below `#[cfg(test)] mod` count as tests.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
COLUMNS = 100
DOCUMENTS = ["README.md", "CHANGELOG.md", "SECURITY.md", "benches/README.md", "docs/*.md"]
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:struct|enum|union|trait|type)\s+([A-Z]\w*)")
FUNCTION = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))?\s+)?(?:const\s+|unsafe\s+|async\s+|extern\s+\S+\s+)*fn\s+(\w+)")
PUBLIC = re.compile(r"^\s*pub\s+(?:const|static|fn|unsafe|async|struct|enum|union|trait|type|mod|use)\b")
PANICS = re.compile(r"\.unwrap\(\)|\.expect\(|\bpanic!|\bunreachable!|\btodo!|\bunimplemented!")


def without_tests(lines):
    """The lines outside `#[cfg(test)] mod x { … }`, by rustfmt's indentation."""
    kept, skip, pending = [], None, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if skip is not None:
            if line.strip() == "}" and indent == skip:
                skip = None
            continue
        if pending and re.match(r"\s*(pub\S*\s+)?mod\s+\w+\s*\{", line):
            skip, pending = indent, False
            continue
        pending = line.strip() == "#[cfg(test)]"
        kept.append(line)
    return kept


def comment(line):
    """The line's own comment, or None."""
    found = re.match(r"\s*//[/!]?(.*)", line)
    return found and found.group(1)


def functions(lines):
    """(length, name) of each function with a body, by rustfmt's indentation."""
    found = []
    for start, line in enumerate(lines):
        name = FUNCTION.match(line)
        if not name:
            continue
        for end in range(start, len(lines)):
            text = lines[end].rstrip()
            if end == start and text.endswith("}") or text == name.group(1) + "}":
                found.append((end - start + 1, name.group(2)))
                break
            if text.endswith(";") and "{" not in "".join(lines[start : end + 1]):
                break
    return found


def table(title, rows):
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(f"{cell:>8}" if isinstance(cell, int) else str(cell) for cell in row))


files = {path: path.read_text().splitlines() for path in sorted((ROOT / "src").rglob("*.rs"))}
rooms = {}
for path, lines in files.items():
    room = path.relative_to(ROOT / "src").parts[0]
    count = rooms.setdefault(room, [0, 0])
    count[0] += len(lines)
    count[1] += 1
table("lines, files: a room", sorted(((n, f, r) for r, (n, f) in rooms.items()), reverse=True))
table("lines, files: all of src", [(sum(n for n, _ in rooms.values()), len(files))])

words, followed, long_lines, longest = 0, 0, 0, 0
public, panics, unsafe, types, bodies = 0, 0, 0, [], []
for path, lines in files.items():
    name = str(path.relative_to(ROOT))
    for text in lines:
        if comment(text) is None:
            continue
        count = len(comment(text).split())
        words += count
        followed += count * ("analysis/followed" in name)
        long_lines += len(text) > COLUMNS
        longest = max(longest, len(text))
    if path.stem.endswith("tests"):
        continue
    code = [line for line in without_tests(lines)]
    bodies += [(length, f"{function}  {name}") for length, function in functions(code)]
    code = [line for line in code if comment(line) is None]
    public += sum(bool(PUBLIC.match(line)) for line in code)
    panics += sum(bool(PANICS.search(line)) for line in code)
    unsafe += sum(bool(re.search(r"\bunsafe\b(?!_)", line)) for line in code)
    types += [found.group(1) for line in code if (found := TYPE.match(line))]
bodies.sort(reverse=True)
long_names = [name for name in types if len(re.findall(r"[A-Z][a-z0-9]*|[A-Z]+(?![a-z])", name)) > 2]

table("comments in src", [
    (words, "words"),
    (words - followed, "words, analysis/followed apart"),
    (long_lines, f"lines above {COLUMNS} columns; the longest has {longest}"),
])
table("names in src, tests apart", [
    (public, "public items"),
    (len(types), "types"),
    (len(set(types)), "names of types"),
    (len(long_names), "names of types of more than two words"),
])
table("code in src, tests apart", [
    (panics, "lines with unwrap, expect, panic! or the like"),
    (unsafe, "lines with unsafe"),
    (sum(length > 60 for length, _ in bodies), f"functions above 60 lines, of {len(bodies)}"),
])
table("longest functions", bodies[:8])
tests = sorted((ROOT / "tests").glob("*.rs")) + sorted((ROOT / "tests").glob("*/main.rs"))
table("test binaries, beside the unit tests", [(len(tests), " ".join(
    path.parent.name if path.name == "main.rs" else path.stem for path in tests))])
documents = [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]
table("words, lines of the documents", [
    (len(text.split()), len(text.splitlines()), str(path.relative_to(ROOT)))
    for path in documents
    for text in [path.read_text()]
])
