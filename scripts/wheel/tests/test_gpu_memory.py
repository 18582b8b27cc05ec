"""The marker gpu_memory, in tests that pytest runs in a process of its own."""
import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest, time, torch

def allocate(mib):
    held = torch.zeros(mib << 20, dtype=torch.uint8, device="cuda")
    time.sleep(0.3)
    return held.numel()

@pytest.mark.gpu_memory("64 MiB")
def test_below(): allocate(32)

def test_goes_high_without_a_limit(): allocate(256)

@pytest.mark.gpu_memory("64 MiB")
def test_below_though_another_went_higher(): allocate(32)

@pytest.mark.gpu_memory("64 MiB")
def test_above(): allocate(96)

@pytest.mark.gpu_memory(64 << 20)
def test_fails_by_itself(): assert allocate(96) == 1, "its own failure"

@pytest.mark.gpu_memory("much")
def test_no_size(): pass
"""


def test_a_limit_is_checked_against_the_allocators_peak(pytester):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA")
    outcomes = result.parseoutcomes()
    said = result.stdout.str()
    assert outcomes == {"passed": 3, "failed": 3}, said
    assert "peak of 100,663,296 bytes, the limit is 67,108,864" in said
    assert "its own failure" in said and "'much' is no size" in said


PEAKS = """
import pytest, torch

@pytest.fixture
def large():
    yield torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")

def allocate(mib):
    return torch.zeros(mib << 20, dtype=torch.uint8, device="cuda").numel()

def test_nothing(): pass

@pytest.mark.parametrize("mib", range(12, 36, 2))
def test_sizes(mib): allocate(mib)

def test_fixture(large): allocate(2)

@pytest.mark.gpu_memory("64 MiB")
def test_marked(): allocate(40)

def test_fails(): allocate(50); assert 0
"""


def test_the_highest_peaks_are_listed_at_the_end(pytester):
    pytester.makepyfile(PEAKS)
    said = pytester.runpytest_subprocess("-p", "no:cacheprovider").stdout.str()
    rows = said.split("highest GPU memory")[1].split("short test summary")[0].splitlines()[1:-1]
    names = [row.split("::")[1].strip() for row in rows if "::" in row]
    assert names == ["test_fixture", "test_fails", "test_marked"] + [f"test_sizes[{mib}]" for mib in range(34, 20, -2)], said
    assert rows[0].split()[:2] == ["130.00", "MiB"] and rows[1].split()[:2] == ["50.00", "MiB"], said


def test_no_list_without_a_gpu_or_by_choice(pytester):
    pytester.makepyfile("def test_any(): pass")
    assert "highest GPU memory" not in pytester.runpytest_subprocess("-p", "no:cacheprovider").stdout.str()
    pytester.makepyfile(PEAKS)
    said = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--gpu-memory-top=0").stdout.str()
    assert "highest GPU memory" not in said


def test_a_limit_that_cannot_be_checked_fails(pytester, monkeypatch):
    monkeypatch.setenv("MEMSPY", "/bin/false")
    pytester.makepyfile("import pytest\n@pytest.mark.gpu_memory('1G')\ndef test_any(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes() == {"failed": 1}
    assert "could not record this process" in result.stdout.str()


@pytest.mark.parametrize("size, bytes_", [("2 GiB", 2 << 30), ("512M", 512 << 20), ("1.5g", 3 << 29), (7, 7), ("7 B", 7)])
def test_sizes(size, bytes_):
    from memspy.pytest_plugin import parse_size

    assert parse_size(size) == bytes_


def test_another_processor_is_refused_with_what_is_missing(monkeypatch):
    from memspy import MemspyError, find_program

    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(MemspyError, match="x86-64 Linux only.*aarch64.*lacks"):
        find_program()
