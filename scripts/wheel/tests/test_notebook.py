"""The magics in a real kernel: started, spoken to over its own protocol, and recorded while its cells run."""
import json
import queue

import pytest
from jupyter_client.manager import start_new_kernel

SETUP = """
%load_ext memspy
import torch
torch.zeros(1, device="cuda")
def grow(mib):
    return torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
def work(mib, times=100):
    import time
    kept = grow(mib)
    for _ in range(times):
        time.sleep(0.01)
    return kept
"""


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=120)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code):
    """What a cell printed, displayed and returned, and its error."""
    asked = client.execute(code)
    told = {"text": "", "html": [], "result": None, "error": None}
    while True:
        try:
            message = client.get_iopub_msg(timeout=180)
        except queue.Empty:
            raise AssertionError(f"the kernel does not answer to:\n{code}") from None
        if message["parent_header"].get("msg_id") != asked:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            told["text"] += content["text"]
        elif kind == "display_data":
            told["html"].append(content["data"].get("text/html", ""))
        elif kind == "execute_result":
            told["result"] = content["data"]["text/plain"]
        elif kind == "error":
            told["error"] = f"{content['ename']}: {content['evalue']}"
        elif kind == "status" and content["execution_state"] == "idle":
            return told


def value(client, expression):
    told = run(client, f"import json; print(json.dumps({expression}))")
    assert told["error"] is None, told
    return json.loads(told["text"])


@pytest.fixture(scope="module")
def ready(kernel):
    told = run(kernel, SETUP)
    assert told["error"] is None, told
    return kernel


def test_a_bare_magic_shows_what_keeps_the_kernels_memory_and_what_frees_it(kernel):
    """Each change is made, and PyTorch's own counter falls by what was said of it."""
    told = run(kernel, """
%load_ext memspy
import torch
def bytes_of(mib):
    return torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
def fail():
    kept = bytes_of(64)
    raise ValueError("to be kept")
one = bytes_of(30)
two = same = bytes_of(200)
""")
    assert told["error"] is None, told
    for cell in ("bytes_of(100)", "bytes_of(50)", "fail()"):
        run(kernel, cell)
    told = run(kernel, "%memspy")
    assert told["error"] is None, told
    lines = told["text"].splitlines()
    rows = {row[27:].strip(): (row[13:25].strip(), change.strip()) for row, change in zip(lines, lines[1:])}
    expected = {
        "the frames of the last error": "64.00 MiB",
        "same, two: the same memory": "≤200.00 MiB",
        "Out: results of earlier cells": "150.00 MiB",
        "one": "30.00 MiB",
    }
    for name, frees in expected.items():
        said, change = rows[name]
        assert said == frees, told["text"]
        before = value(kernel, "torch.cuda.memory_allocated()")
        for cell in change.split(" ; then "):
            assert run(kernel, cell)["error"] is None, change
        freed = before - value(kernel, "torch.cuda.memory_allocated()")
        assert freed == float(frees.strip("≤").split()[0]) * (1 << 20), (name, change, freed)
    assert "no tensor is on a GPU" in run(kernel, "%memspy")["text"]


def test_a_cell_shows_its_lines_and_the_page(ready):
    told = run(ready, "%%memspy\nheld = work(96)\nprint('ran')")
    assert told["error"] is None, told
    assert "ran" in told["text"] and "MiB" in told["text"], told["text"]
    assert len(told["html"]) == 1 and 'sandbox="allow-scripts"' in told["html"][0]
    assert "&lt;html" in told["html"][0] and "<html" not in told["html"][0]
    assert value(ready, "held.numel()") == 96 << 20, "the cell ran in the namespace of the notebook"


def test_a_line_returns_the_recording_quietly_and_its_peak_is_the_allocators(ready):
    run(ready, "del held; torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()")
    told = run(ready, "recording = %memspy -q -r held = work(64)")
    assert told["error"] is None and told["text"] == "" and told["html"] == [], told
    truth = value(ready, "torch.cuda.max_memory_allocated()")
    lines = value(ready, "recording.lines()")
    assert lines["peak_allocated"]["bytes"] == truth
    assert lines["device"] == 0


def test_stacks_are_exact_where_the_kernel_may_have_them(ready):
    """As root, which these tests run as, unless the user declines."""
    for words, exact in (("", True), ("-n", False)):
        run(ready, f"recording = %memspy -q -r {words} held = work(16, 20)")
        assert ("exact" in value(ready, "recording.table()").splitlines()[0]) == exact, value(ready, "recording.table()")


def test_functions_columns_devices_and_a_file_are_as_asked_for(ready, tmp_path):
    table, trace = tmp_path / "table.txt", tmp_path / "kept.bin"
    options = f"-f work -c reserved_bytes.all.current -D -g 0 -T {table} -t {trace}"
    told = run(ready, f"%memspy {options} held = work(32)")
    assert told["error"] is None, told
    text = table.read_text()
    assert "reserved_bytes.all.current" in text.replace("\n", " ") or "reserved" in text, text
    assert "work" in text and "active" not in text, text
    assert told["text"].strip() == text.strip()
    assert trace.stat().st_size > 0, "a trace that was named is kept"


def test_an_exact_cell_knows_what_each_line_freed(ready):
    run(ready, """
del held
def frees():
    kept = grow(6)
    more = grow(8)
    del kept
    return more
""")
    told = run(ready, "recording = %memspy -q -r -e frees()")
    assert told["error"] is None, told
    lines = value(ready, "recording.lines('--all-lines')")
    function = next(f for f in lines["functions"] if f["function"] == "frees")
    freed = [row for row in function["lines"] if row["allocated"] == 0 and row["freed"] == 6 << 20]
    assert len(freed) == 1, function


def test_the_error_of_a_cell_is_the_cells_and_wrong_words_are_told(ready):
    told = run(ready, "%%memspy -q\n1 / 0")
    assert told["error"].startswith("ZeroDivisionError"), told
    assert "nothing to run" in run(ready, "%memspy -q")["error"]
    assert "-D leaves no column" in run(ready, "%memspy -D 1")["error"]
    assert value(ready, "1 + 1") == 2
