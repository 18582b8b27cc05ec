#!/usr/bin/env python3
"""Asks memspy ten questions about real jobs: the screens and pictures of docs/questions.

    scripts/questions/make.py                       runs the jobs here and renews the pages
    scripts/questions/make.py --out DIR --commit ID runs them and writes DIR/questions.tar, which
    scripts/questions/make.py --from TAR            puts into the pages

The jobs (scripts/questions/jobs) run on the GPU if python3's PyTorch finds one, else on the
simulated device (scripts/setup.sh env). Exact stacks need root, and the notebook IPython. The exit
code is 1 if a question has no answer; its page then keeps the old one.
"""
import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import threading

from questions import QUESTIONS
from terminal_svg import draw
from workplace import ROOT, Failed, Machine, Workplace

PICTURE_BYTES, PAGE_WORDS = 60_000, 300
BEGIN, END = "<!-- made by scripts/questions/make.py -->", "<!-- end -->"
NEED_NO_GPU = ["will-it-fit"]


def block(answer, origin):
    """What stands between the marks of a page."""
    screens = "\n\n".join("\n".join([f"$ {command}", *lines]) for command, lines in answer.screens)
    return f"{BEGIN}\n```\n{screens}\n```\n\n{origin}. `…`: lines left out.\n{END}"


def picture(answer, origin):
    drawn = answer.picture if isinstance(answer.picture, str) else draw([answer.picture])
    drawn = re.sub(r"(<svg[^>]*>)", rf"\1<!-- made by scripts/questions/make.py: {origin} -->", drawn, count=1)
    if len(drawn) > PICTURE_BYTES:
        raise Failed(f"the picture has {len(drawn)} bytes, at most {PICTURE_BYTES}")
    return drawn


def answer(name, machine, origin):
    """The files of a question, or none; prints why."""
    with Workplace(name, machine) as place:
        place.say("begins")
        try:
            found = QUESTIONS[name](place)
            files = {f"blocks/{name}.md": block(found, origin), f"pictures/{name}.svg": picture(found, origin)}
        except Exception as error:  # the other questions go on
            kind = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
            place.say(f"FAILED: {kind}{error}")
            return {}
        place.say("done")
        return files


def answer_all(names, machine, origin):
    files = {}
    run = lambda some: [files.update(answer(name, machine, origin)) for name in some]
    aside = [name for name in names if name in NEED_NO_GPU and (os.cpu_count() or 1) >= 8]
    lane = threading.Thread(target=run, args=[aside])
    lane.start()
    run([name for name in names if name not in aside])
    lane.join()
    return files


def commit(given):
    """Of this tree, unless it is given: a copy without .git cannot tell."""
    if given:
        return given
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    if done.returncode:
        sys.exit("make.py: this tree has no git history: name its commit with --commit ID")
    return done.stdout.strip()


def put(files):
    """Writes the files into the pages and beside them."""
    for name, text in sorted(files.items()):
        kind, file = name.split("/")
        if kind == "pictures":
            os.makedirs(os.path.join(ROOT, "docs/pictures"), exist_ok=True)
            with open(os.path.join(ROOT, "docs/pictures", file), "w", encoding="utf-8") as out:
                out.write(text)
            continue
        page = os.path.join(ROOT, "docs/questions", file)
        with open(page, encoding="utf-8") as old:
            before, _, rest = old.read().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            sys.exit(f"make.py: {page} has no lines '{BEGIN}' and '{END}'")
        with open(page, "w", encoding="utf-8") as out:
            out.write(before + text + after)
        words = len((before + text + after).split())
        print(f"docs/questions/{file}: {words} words" + (f": MORE than {PAGE_WORDS}: shorten it" if words > PAGE_WORDS else ""))


def pack(files, folder):
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(os.path.join(folder, "questions.tar"), "w") as tar:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    print(f"{folder}/questions.tar has {len(files)} files")


def unpack(path):
    with tarfile.open(path) as tar:
        files = {entry.name: tar.extractfile(entry).read().decode() for entry in tar}
    wanted = {f"{kind}/{name}.{end}" for name in QUESTIONS for kind, end in [("blocks", "md"), ("pictures", "svg")]}
    if set(files) - wanted:
        sys.exit(f"make.py: {path} has files of no question: {sorted(set(files) - wanted)}")
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memspy", help="the program [default: target/release/memspy, else target/debug/memspy]")
    parser.add_argument("--only", metavar="NAMES", help=f"some questions, commas between them: {', '.join(QUESTIONS)}")
    parser.add_argument("--minutes", type=float, help="for all questions [default: 5, on the simulated device 30]")
    parser.add_argument("--out", metavar="DIR", help="write DIR/questions.tar, and leave the pages as they are")
    parser.add_argument("--from", dest="tar", metavar="TAR", help="put the files of TAR into the pages, and run nothing")
    parser.add_argument("--commit", metavar="ID", help="what the program was built from [default: git's HEAD]")
    args = parser.parse_args()
    if args.tar:
        return put(unpack(args.tar))
    built = [os.path.join(ROOT, "target", kind, "memspy") for kind in ["release", "debug"]]
    memspy = os.path.abspath(args.memspy or next(filter(os.path.exists, built), built[0]))
    if not os.access(memspy, os.X_OK) or os.path.basename(memspy) != "memspy":
        sys.exit(f"make.py: {memspy} is no program 'memspy': 'cargo build --release' builds it")
    names = args.only.split(",") if args.only else list(QUESTIONS)
    if set(names) - set(QUESTIONS):
        sys.exit(f"make.py: no such question: {', '.join(sorted(set(names) - set(QUESTIONS)))}")
    version = subprocess.run([memspy, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    source = commit(args.commit)
    machine = Machine(memspy, args.minutes)
    origin = f"{version} (commit {source}), {machine.gpu}, PyTorch {machine.pytorch}"
    print(origin, flush=True)
    files = answer_all(names, machine, origin)
    pack(files, args.out) if args.out else put(files)
    missing = [name for name in names if f"blocks/{name}.md" not in files]
    if missing:
        sys.exit(f"make.py: no answer to {len(missing)} of {len(names)} questions: {', '.join(missing)}")


if __name__ == "__main__":
    main()
