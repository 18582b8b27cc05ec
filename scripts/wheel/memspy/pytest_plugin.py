"""`@pytest.mark.gpu_memory("2 GiB")`: a test fails when this process allocates more GPU memory in PyTorch while it runs.

memspy records the test's process from outside. The peak is the allocator's own high-water mark of the greatest device.
At the end of the session the tests with the highest peaks are listed, if any used a GPU.
"""
import re
import sys

import pytest

from .kernel import size
from .recording import MemspyError, Recording

UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
ROWS = 10


# pytest-xdist passes this on with a test's report, to the process that prints the list.
PEAK = "gpu_memory_peak"
HIGHEST = 10


def pytest_addoption(parser):
    """--gpu-memory-top"""
    group = parser.getgroup("memspy")
    group.addoption("--gpu-memory-top", type=int, default=HIGHEST, metavar="N",
                    help="list the N tests with the highest peaks of GPU memory in PyTorch (default: %(default)s; 0: no list)")


def pytest_configure(config):
    """Makes the marker known."""
    text = 'gpu_memory(limit): fails the test when its peak of GPU memory in PyTorch is greater ("2 GiB", 512M, or bytes); memspy records it'
    config.addinivalue_line("markers", text)


def parse_size(size):
    """Bytes of `"2 GiB"`, `"512M"` or a number."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(size), re.IGNORECASE)
    if not match:
        raise pytest.UsageError(f"gpu_memory: {size!r} is no size; write it as '2 GiB', '512M' or a number of bytes")
    return int(float(match[1]) * UNITS[match[2].lower()])


def _cuda():
    """torch.cuda where PyTorch uses a device in this process."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _marker(item):
    marker = item.get_closest_marker("gpu_memory")
    if marker is None:
        return None
    if len(marker.args) != 1 or marker.kwargs:
        raise pytest.UsageError('gpu_memory takes one size: @pytest.mark.gpu_memory("2 GiB")')
    return parse_size(marker.args[0])


def _devices():
    cuda = _cuda()
    return [(cuda, device) for device in range(cuda.device_count() if cuda else 0)]


def _reset_peaks(item):
    """From here on the counters tell of this test alone; what they told before is kept."""
    _keep_peak(item)
    for cuda, device in _devices():
        cuda.reset_peak_memory_stats(device)


def _keep_peak(item):
    peak = max((cuda.max_memory_allocated(device) for cuda, device in _devices()), default=None)
    if peak is not None and getattr(item, "_memspy_began", False):
        item._memspy_peak = max(peak, getattr(item, "_memspy_peak", 0))


def _lists(config):
    return config.getoption("--gpu-memory-top", 0) > 0


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item):
    """A test's peak begins with its fixtures."""
    if _lists(item.config):
        # What stood before this test is not its own.
        _reset_peaks(item)
        item._memspy_began = True
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item):
    """Its end, before the report of this phase is made."""
    yield
    if _lists(item.config):
        _keep_peak(item)
        if getattr(item, "_memspy_peak", 0) > 0:
            item.user_properties.append((PEAK, item._memspy_peak))


def pytest_terminal_summary(terminalreporter, config):
    """The tests with the highest peaks."""
    peaks = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, peak in getattr(report, "user_properties", ()):
                if name == PEAK:
                    peaks[report.nodeid] = peak
    if not peaks or not _lists(config):
        return
    highest = sorted(peaks.items(), key=lambda test: (-test[1], test[0]))[: config.getoption("--gpu-memory-top")]
    terminalreporter.section("highest GPU memory")
    for test, peak in highest:
        terminalreporter.line(f"{size(peak):>11}  {test}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Records the test, and fails it where its peak is too high."""
    limit = _marker(item)
    if limit is None:
        yield
        return
    _reset_peaks(item)
    recording = Recording()
    try:
        recording.start()
    except MemspyError as error:
        # Not skipped: a limit that is not checked is no limit.
        pytest.fail(f"gpu_memory: {error}", pytrace=False)
    outcome = yield
    try:
        recording.stop()
        if outcome.excinfo is None and _cuda() is not None:
            _check(recording, limit)
    except (MemspyError, pytest.fail.Exception) as error:
        if outcome.excinfo is None:
            outcome.force_exception(pytest.fail.Exception(f"gpu_memory: {error}", pytrace=False))
    finally:
        recording.close()


def _check(recording, limit):
    """Of all devices the one with the highest peak."""
    peak = recording.lines().get("peak_allocated") or {}
    if not isinstance(peak.get("bytes"), int):
        raise MemspyError("the peak of the test is not known")
    if peak["bytes"] > limit:
        table = recording.table(f"--limit={ROWS}")
        raise MemspyError(f"peak of {peak['bytes']:,} bytes, the limit is {limit:,}\n{table}")
