//! The rooms of `src/`: what they may import, and what each is the only home of.

use std::collections::BTreeMap;

/// Which rooms it may import, and which external crates.
pub struct Room {
    pub imports: &'static [&'static str],
    pub crates: &'static [&'static str],
}

/// By name.
pub fn rooms() -> BTreeMap<&'static str, Room> {
    let room = |imports, crates| Room { imports, crates };
    BTreeMap::from([
        ("model", room(&[], &[])),
        ("abi", room(&[], &[])),
        ("ownership", room(&["model"], &[])),
        ("files", room(&[], &["rustix", "tempfile"])),
        ("target", room(&["model"], &["memmap2", "nix", "procfs", "object", "regex", "rustix"])),
        ("trace", room(&["model", "files"], &["bincode", "zstd", "crc32c"])),
        ("analysis", room(&["model", "ownership"], &[])),
        ("python", room(&["model", "abi", "target"], &["py_spy", "remoteprocess"])),
        ("native", room(&["model", "target"], &["gimli", "cpp_demangle", "rustc_demangle"])),
        ("torch", room(&["model", "abi", "target"], &[])),
        ("gpu", room(&["model", "target"], &["nvml_wrapper"])),
        (
            "probe",
            room(&["model", "abi", "target"], &["aya", "aya_obj", "perf_event", "nix", "rustix"]),
        ),
        (
            "render",
            room(
                &["model", "ownership", "analysis"],
                &[
                    "base64",
                    "inferno",
                    "serde",
                    "serde_json",
                    "csv",
                    "chrono",
                    "flate2",
                    "textwrap",
                    "parquet",
                    "prometheus_client",
                ],
            ),
        ),
        ("owners", room(&["model", "abi", "ownership", "target", "python", "torch"], &[])),
        ("flight", room(&["model", "files", "trace", "analysis", "render"], &[])),
        (
            "sampler",
            room(
                &[
                    "model",
                    "abi",
                    "ownership",
                    "files",
                    "target",
                    "python",
                    "native",
                    "torch",
                    "gpu",
                    "probe",
                    "owners",
                    "suspend",
                ],
                &["nix", "rustix"],
            ),
        ),
        ("suspend", room(&["model", "files", "target", "gpu"], &["cudarc", "libloading"])),
        ("tui", room(&["model", "ownership", "analysis", "render", "sampler"], &["ratatui"])),
        (
            "cli",
            room(
                &[
                    "model",
                    "ownership",
                    "files",
                    "trace",
                    "analysis",
                    "render",
                    "flight",
                    "sampler",
                    "suspend",
                    "tui",
                ],
                &[
                    "clap",
                    "clap_complete",
                    "clap_mangen",
                    "httparse",
                    "serde", // the messages of MCP
                    "serde_json",
                    "anyhow",
                    "chrono",
                    "include_dir",
                    "indicatif",
                    "signal_hook",
                    "terminal_size",
                    "rustix",
                ],
            ),
        ),
    ])
}

/// Crates that any room may use.
pub const EVERYWHERE: &[&str] = &["std", "core", "thiserror", "rustc_hash", "parking_lot"];

/// Files that may have `unsafe`, each for one stated reason.
pub const UNSAFE: &[&str] = &[
    "src/probe/syscall.rs",          // bpf(2), descriptors
    "src/sampler/time_slice.rs",     // sched_setattr(2)
    "src/suspend/checkpoint_api.rs", // calls the driver's library
    "src/target/tsc.rs",             // rdtsc
];

/// Rooms or files that may start threads or sleep.
pub const THREADS: &[&str] = &[
    "src/suspend/checkpointer.rs", // waits for the driver, which moves gigabytes
    "src/sampler/",
    "src/tui/",
    "src/cli/",
    "src/probe/keeper/holding.rs", // the kernel waits at each probe that ends: many at the same time
    "src/target/bounded_worker.rs", // a read of a file that may never return
    "src/python/heap/threads.rs", // all objects looked into by several threads, which end before the call does
    "src/target/page_copy.rs",    // a copy by several threads, while the target stands still
    "src/trace/read_ahead.rs", // the thread that reads a trace beside the one that takes its records
    "src/target/ptrace_stop.rs", // the thread that lets the target go on when its time is over
    "src/torch/version.rs",    // a note that may be on a file system that hangs
];

/// Names that a room hands on, or that its public fields and results lead to, to rooms that may not
/// import their home. Each is a value or an error, nothing that reads a target.
pub const HANDED_ON: &[(&str, &str)] = &[
    ("gpu", "DriverError"),
    ("owners", "SnapshotOptions"),
    ("owners", "OwnerError"),
    ("owners", "StopPolicy"),
    ("probe", "Availability"),
    ("probe", "PlacementError"),
    ("target", "AccessFacts"),
    ("target", "CommandPattern"),
    ("target", "MachineFacts"),
    ("target", "host_name"),
    ("target", "ignored_signals"),
    ("target", "ProcessError"),
    ("target", "StopError"),
    ("torch", "BackwardError"),
    ("torch", "AllocatorError"),
];
