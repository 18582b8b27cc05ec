#!/usr/bin/env python3
"""Packs a program that was built before into a wheel.

    scripts/release/pack-wheel.py PROGRAM FOLDER

The tag of the wheel says the glibc that the program needs. scripts/build-wheel.sh builds program and wheel.
"""
import base64
import csv
import hashlib
import io
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def metadata(version):
    project = tomllib.loads((ROOT / "scripts/wheel/pyproject.toml").read_text())["project"]
    lines = ["Metadata-Version: 2.3", "Name: memspy", f"Version: {version}", f"Summary: {project['description']}"]
    if "requires-python" in project:
        lines.append(f"Requires-Python: {project['requires-python']}")
    readme = (ROOT / "README.md").read_text()
    points = project.get("entry-points", {})
    entries = "".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
                      for group, names in points.items())
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme]), entries


def main():
    program, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    version = subprocess.run([program.resolve(), "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    symbols = subprocess.run(["objdump", "-T", program], capture_output=True, text=True, check=True).stdout
    glibc = max((int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))
    tag = f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_x86_64"
    text, entries = metadata(version)
    info = f"memspy-{version}.dist-info"
    files = {f"memspy/{path.name}": path.read_bytes() for path in sorted((ROOT / "scripts/wheel/memspy").glob("*.py"))}
    files[f"memspy-{version}.data/scripts/memspy"] = program.read_bytes()
    files[f"{info}/METADATA"] = text.encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: memspy\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    if entries:
        files[f"{info}/entry_points.txt"] = entries.encode()
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{info}/licenses/{name}"] = (ROOT / name).read_bytes()
    listing = io.StringIO()
    writer = csv.writer(listing, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([f"{info}/RECORD", "", ""])
    files[f"{info}/RECORD"] = listing.getvalue().encode()
    wheel = folder / f"memspy-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.endswith("scripts/memspy") else 0o100644) << 16
            archive.writestr(entry, content)
    print(f"pack-wheel: {wheel} ({wheel.stat().st_size} bytes), glibc {glibc[0]}.{glibc[1]} or newer")


if __name__ == "__main__":
    main()
