"""What keeps GPU memory in this process, as a notebook's user thinks of it: results, the last error, variables."""
import re

# Names that IPython gives to the results of cells.
OUTPUT = re.compile(r"(__main__\.)?(Out|_oh|_|__|___|_\d+)(\[.*|\..*)?$")
# What leads to the frames of the last error, in IPython and in sys.
TRACEBACK = re.compile(r"\.InteractiveTB\.|\blast_(traceback|value|exc)\b|\.__traceback__\b")
VARIABLE = re.compile(r"__main__\.([^.\[]+)")
ROWS = 15
# IPython keeps the last three results under other names as well, which %reset leaves.
FORGET_RESULTS = "%reset -f out ; then get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)"
FORGET_ERROR = "import gc, sys; get_ipython().InteractiveTB.tb = sys.last_value = sys.last_traceback = sys.last_exc = None; gc.collect()"


def size(number):
    """`1.50 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number} B" if unit == "B" else f"{number:.2f} {unit}"
        number /= 1024
    return f"{number:.2f} GiB"


def owners_text(snapshot):
    """The table of a snapshot, which is the JSON of `memspy tensors`."""
    kept = _kept(snapshot)
    devices = {name: sums for name, sums in snapshot["devices"].items() if name.startswith("cuda")}
    lines = [f"{name}: {size(sums['allocated'])} allocated" for name, sums in devices.items() if sums["allocated"] is not None]
    if not kept:
        return "\n".join(lines + ["no tensor is on a GPU"]) + "\n"
    lines += ["", f"{'bytes':>11}  {'frees':>12}  kept by"]
    rows = sorted(kept.values(), key=lambda row: -row["bytes"])
    for row in rows[:ROWS]:
        lines.append(f"{size(row['bytes']):>11}  {row['frees']:>12}  {row['name']}")
        if row["change"]:
            lines.append(f"{'':>27}    {row['change']}")
    if len(rows) > ROWS:
        lines.append(f"{size(sum(row['bytes'] for row in rows[ROWS:])):>11}  {'':>12}  [{len(rows) - ROWS} more]")
    for name, sums in devices.items():
        if sums.get("in_no_tensor"):
            lines.append(f"{size(sums['in_no_tensor']):>11}  {'':>12}  [in no tensor: work spaces, C++] on {name}")
    if snapshot["incomplete"]:
        lines.append(f"not all was read: {', '.join(snapshot['incomplete']['missing'])}")
    lines += ["", f"'frees': what the change gives back to PyTorch (≥ at least, ≤ at most, ? not known); the kernel was stopped for {1e3 * (snapshot['pause_seconds'] or 0):.0f} ms"]
    return "\n".join(lines) + "\n"


def _kept(snapshot):
    """Each storage once, by what a user would delete."""
    freed = {one["reference"]: one for one in snapshot["retained"]}
    names = {}
    for tensor in snapshot["tensors"]:
        if tensor["device"].startswith("cuda") and tensor["storage"] is not None:
            storage = names.setdefault(tensor["storage"], {"bytes": 0, "names": set(), "garbage": False})
            storage["bytes"] = max(storage["bytes"], tensor["storage_bytes"] or 0)
            storage["names"].update(tensor["names"])
            storage["garbage"] |= tensor["garbage"]
    owners = {}
    for group in snapshot["groups"]:
        if group["device"].startswith("cuda"):
            row = owners.setdefault(*_row(group, freed))
            row["bytes"] += group["bytes"]
    only_results = sum(one["bytes"] for one in names.values() if one["names"] and all(map(OUTPUT.match, one["names"])))
    only_error = sum(one["bytes"] for one in names.values() if one["names"] and all(map(TRACEBACK.search, one["names"])))
    for key, only in (("results", only_results), ("error", only_error)):
        if key in owners:
            owners[key]["frees"] = size(only)
    _name_others(owners, names)
    return owners


def _row(group, freed):
    owner = group["owner"] or group["label"]
    row = {"bytes": 0, "frees": _frees(group["frees"]), "name": group["label"], "change": ""}
    variable = VARIABLE.match(owner)
    if group["kind"] == "garbage":
        return "garbage", {**row, "name": "garbage: cycles that nothing refers to", "change": "import gc; gc.collect()"}
    if OUTPUT.match(owner):
        return "results", {**row, "name": "Out: results of earlier cells", "change": FORGET_RESULTS}
    if TRACEBACK.search(owner):
        return "error", {**row, "name": "the frames of the last error", "change": FORGET_ERROR}
    if variable:
        name = variable[1]
        found = freed.get(f"__main__.{name}")
        return name, {**row, "name": name, "frees": _frees(found), "change": f"del {name}" + ("; gc.collect()" if found and found["after_collect"] else "")}
    return owner, row


def _frees(found):
    """What memspy says that deleting a reference frees; unknown is `?`."""
    if found is None or (found["is_least"] and not found["at_once"] + found["after_collect"]):
        return "?"
    return ("≥" if found["is_least"] else "") + size(found["at_once"] + found["after_collect"])


def _name_others(owners, storages):
    """Says which other names a variable's memory has: deleting one of two frees nothing."""
    for name, row in owners.items():
        if not row["change"].startswith("del "):
            continue
        others = set()
        for storage in storages.values():
            roots = {match[1] for match in map(VARIABLE.match, storage["names"]) if match}
            if name in roots:
                others |= roots - {name}
        others = {other for other in others if not OUTPUT.match(other)}
        if others:
            every = ", ".join(sorted(others | {name}))
            row["name"], row["change"] = f"{every}: the same memory", f"del {every}"
            row["frees"] = f"≤{size(row['bytes'])}"
