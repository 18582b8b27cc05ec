#!/usr/bin/env python3
"""Builds the simulated CUDA libraries that one installed PyTorch wheel needs.

    build.py [--strict] TORCH_LIB_DIR OUT_DIR

Which libraries and which symbols is read from the wheel itself (its DT_NEEDED entries and undefined
symbols), so another PyTorch version needs no other list. What stands in driver/, runtime/, nvml/ and
libraries/ is compiled; every symbol nobody wrote becomes a stub that answers the library's own "not
supported" error, so that no caller goes on with a result that was never written.
Needs a C compiler ($CC, else cc or gcc), readelf and nm; no GPU, no CUDA headers.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CFLAGS = ["-std=gnu11", "-O1", "-fPIC", "-fvisibility=hidden"]
STRICT = ["-Wall", "-Wextra", "-Werror"]

# Library stem -> (prefix of its symbols, its own code for "not supported").
# Longer prefixes come first: cublasLt before cublas, and the driver's bare "cu" last of all.
LIBRARIES = {
    "libcublasLt": ("cublasLt", 15),  # CUBLAS_STATUS_NOT_SUPPORTED
    "libcublas": ("cublas", 15),
    "libcusparseLt": ("cusparseLt", 10),  # CUSPARSE_STATUS_NOT_SUPPORTED
    "libcusparse": ("cusparse", 10),
    "libcusolver": ("cusolver", 9),  # CUSOLVER_STATUS_NOT_SUPPORTED
    "libcudnn": ("cudnn", 3000),  # CUDNN_STATUS_NOT_SUPPORTED
    "libcufft": ("cufft", 16),  # CUFFT_NOT_SUPPORTED
    "libcurand": ("curand", 999),  # CURAND_STATUS_INTERNAL_ERROR; it has no "not supported"
    "libnvrtc": ("nvrtc", 11),  # NVRTC_ERROR_INTERNAL_ERROR, likewise
    "libcupti": ("cupti", 27),  # CUPTI_ERROR_NOT_SUPPORTED
    "libcufile": ("cuFile", 5007),  # CU_FILE_PLATFORM_NOT_SUPPORTED
    "libnccl": ("nccl", 5),  # ncclInvalidUsage
    "libnvshmem_host": ("nvshmem", 3),  # NVSHMEMX_ERROR_NOT_SUPPORTED
    "libnvToolsExt": ("nvtx", -2),  # NVTX_NO_PUSH_POP_TRACKING
    "libcudart": ("cuda|__cuda", 801),  # cudaErrorNotSupported
    "libcuda": ("cu", 801),  # CUDA_ERROR_NOT_SUPPORTED
}
# Opened by name at run time, so no wheel lists it.
ALWAYS = {"libcuda.so.1", "libnvidia-ml.so.1"}


def compiler():
    words = os.environ.get("CC", "").split()
    for candidate in [words] if words else [["cc"], ["gcc"]]:
        if shutil.which(candidate[0]):
            return candidate
    sys.exit("build.py: no C compiler: install gcc, or name one in CC")


def output_of(*command):
    if not shutil.which(command[0]):
        sys.exit(f"build.py: {command[0]} is not installed: install binutils")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def stem(soname):
    return soname.split(".so")[0]


def library_of(symbol):
    for name, (prefix, _) in LIBRARIES.items():
        if re.match(f"(?:{prefix})[A-Z_a-z]", symbol):
            return name
    return None


class Wheel:
    """What the shared objects of one wheel ask for."""

    def __init__(self, directory):
        self.needed = set(ALWAYS)
        self.symbols = {}  # stem -> names
        self.versions = {}  # stem -> symbol version the wheel links against
        files = sorted(p for p in Path(directory).iterdir() if ".so" in p.name)
        if not files:
            sys.exit(f"build.py: no shared objects in {directory}")
        for file in files:
            self._read(file)
        metadata = self._metadata(Path(directory))
        self.cudart_major = int(self._one("libcudart").rsplit(".", 1)[1])
        self.cudnn = self._requirement(metadata, "cudnn", (1, 1, 1), (10000, 100, 1))
        if self.cudnn < 90000:  # up to cuDNN 8 its major version counted a thousand
            self.cudnn = self._requirement(metadata, "cudnn", (1, 1, 1), (1000, 100, 1))
        self.nccl = self._requirement(metadata, "nccl", (1, 1, 1), (10000, 100, 1))

    def _read(self, file):
        self.needed.update(re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^\]]*)\]", output_of("readelf", "-dW", file)))
        for line in output_of("readelf", "-W", "--dyn-syms", file).splitlines():
            words = line.split()
            if len(words) < 8 or words[6] != "UND":
                continue
            name, _, version = words[7].partition("@")
            # C++ names and the header-only cuDNN front end come from inside the wheel.
            if name.startswith(("_Z", "cudnn_frontend")):
                continue
            library = library_of(name)
            if library:
                self.symbols.setdefault(library, set()).add(name)
                if version.strip("@"):
                    self.versions[library] = version.strip("@")

    def _one(self, library):
        found = [soname for soname in self.needed if stem(soname) == library]
        if not found:
            sys.exit(f"build.py: this PyTorch does not use {library}: is it a CPU-only build?")
        return found[0]

    @staticmethod
    def _metadata(directory):
        found = list(directory.parents[1].glob("torch-*.dist-info/METADATA"))
        return found[0].read_text() if found else ""

    @staticmethod
    def _requirement(metadata, library, default, weights):
        """The version the wheel asks for, as the library's own integer: 9.19.0 -> 91900."""
        match = re.search(rf"nvidia-{library}-cu\d+\s*\(?==\s*(\d+)\.(\d+)\.(\d+)", metadata)
        parts = [int(g) for g in match.groups()] if match else default
        return sum(part * weight for part, weight in zip(parts, weights))


def compile_objects(sources, defines, work):
    """Object files of `sources`, compiled side by side."""
    jobs, objects = [], []
    for source in sources:
        target = Path(work) / (source.parent.name + "-" + source.stem + ".o")
        jobs.append(subprocess.Popen([*compiler(), *CFLAGS, *defines, "-c", source, "-o", target]))
        objects.append(target)
        if len(jobs) >= (os.cpu_count() or 1):
            wait(jobs)
    wait(jobs)
    return objects


def wait(jobs):
    while jobs:
        if jobs.pop(0).wait():
            sys.exit("build.py: the C compiler failed")


def defined_symbols(objects):
    listing = output_of("nm", "-g", "--defined-only", *objects) if objects else ""
    return {line.split()[-1] for line in listing.splitlines() if len(line.split()) == 3}


def stub_source(names, code):
    lines = ['#include "library.h"']
    for name in sorted(names):
        if name.endswith("String"):  # these answer text, not a status
            lines.append(f'API const char *{name}(void) {{ return "not supported by the simulated device"; }}')
        else:
            lines.append(f'API int {name}(void) {{ return sim_unsupported("{name}", {code}); }}')
    return "\n".join(lines) + "\n"


def build(wheel, out, work):
    out.mkdir(parents=True, exist_ok=True)
    defines = [f"-DCUDART_MAJOR={wheel.cudart_major}", f"-DCUDNN_VERSION={wheel.cudnn}", f"-DNCCL_VERSION={wheel.nccl}",
               f"-I{HERE / 'libraries'}"]
    hand_written = {"libcuda": "driver/*.c", "libcudart": "runtime/*.c", "libnvidia-ml": "nvml/*.c"}
    counts = []
    # The driver first: everything else links against it.
    for soname in sorted(wheel.needed, key=lambda s: (s != "libcuda.so.1", s)):
        library = stem(soname)
        if library in hand_written:
            sources = sorted(HERE.glob(hand_written[library]))
        else:
            sources = sorted(set(HERE.glob(f"libraries/{library}.c")) | set(HERE.glob(f"libraries/{library}_*.c")))
        objects = compile_objects(sources, defines, work)
        missing = wheel.symbols.get(library, set()) - defined_symbols(objects)
        if missing or not objects:
            generated = Path(work) / f"stubs-{library}.c"
            generated.write_text(stub_source(missing, LIBRARIES.get(library, ("", 1))[1]))
            objects += compile_objects([generated], defines, work)
        link(soname, objects, wheel.versions.get(library), out, work)
        counts.append(f"{library} {len(defined_symbols(objects)) - len(missing)}+{len(missing)}")
    # Some readers open the management library by its development name.
    development_name = out / "libnvidia-ml.so"
    if not development_name.is_symlink():
        development_name.symlink_to("libnvidia-ml.so.1")
    print("simulated (hand-written + refusing):", ", ".join(counts))


def link(soname, objects, version, out, work):
    # Never unloaded: a reader that opens NVML anew for every reading would leave the shared card open each time.
    command = [*compiler(), "-shared", "-Wl,-z,nodelete", f"-Wl,-soname,{soname}", "-o", out / soname, *objects, "-lpthread", "-ldl"]
    if version:
        # The wheel's references carry this version; the loader warns when the library has none.
        script = Path(work) / f"{soname}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script={script}")
    if soname != "libcuda.so.1":
        command += [f"-L{out}", "-l:libcuda.so.1", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(command, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("torch_lib", type=Path, help="the torch/lib folder of an installed wheel")
    parser.add_argument("out", type=Path, help="where the libraries go")
    parser.add_argument("--strict", action="store_true", help="warnings of the compiler are errors")
    arguments = parser.parse_args()
    CFLAGS.extend(STRICT if arguments.strict else ["-w"])
    with tempfile.TemporaryDirectory() as work:
        build(Wheel(arguments.torch_lib), arguments.out, work)


if __name__ == "__main__":
    main()
