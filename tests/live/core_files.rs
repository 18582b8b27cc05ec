//! `memspy dump CORE` of a crashed job equals what the job said of its memory, to the byte.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use memspy::target::{LoadedObject, Memory, Process};
use serde_json::Value;

use crate::support::core_file::write_core_of;
use crate::support::memspy::{Done, run};
use crate::support::sim;
use crate::support::target::Target;

fn dump(core: &Path, more: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memspy"));
    run(command.arg("dump").arg(core).args(more))
}

fn json(core: &Path) -> Value {
    serde_json::from_str(&dump(core, &["--json"]).ok().out).unwrap()
}

/// What a job says of itself.
fn truth(target: &Target) -> Value {
    serde_json::from_str(target.said.last().unwrap()).unwrap()
}

/// Whether the kernel writes core files into the working directory.
fn kernel_writes_here() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    !pattern.starts_with('|') && !pattern.contains('/')
}

/// The core file of a job that aborts: the kernel's own or, where that goes elsewhere, one like it.
fn crash(mut target: Target, folder: &Path) -> PathBuf {
    if !kernel_writes_here() {
        let core = folder.join("core");
        write_core_of(target.pid(), &core);
        return core;
    }
    target.say("abort");
    target.wait();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.max().expect("the kernel wrote a core file")
}

fn equals_truth(found: &Value, truth: &Value) {
    assert_eq!(found["pid"], truth["pid"]);
    assert_eq!(found["torch"], truth["torch"]);
    assert_eq!(found["python"], truth["python"]);
    assert_eq!(found["host"], Value::Null);
    let device = &found["devices"][0];
    for (key, number) in truth["stats"].as_object().unwrap() {
        assert_eq!(&device["memory_stats"][key], number, "{key}");
    }
    assert_eq!(device["block_map"]["consistent"], true);
    let blocks = |segments: &Value, size: &str| {
        let mut all: Vec<(u64, u64, bool)> = Vec::new();
        for block in
            segments.as_array().unwrap().iter().flat_map(|it| it["blocks"].as_array().unwrap())
        {
            let is_allocated = block["state"] == "active_allocated";
            all.push((
                block["address"].as_u64().unwrap(),
                block[size].as_u64().unwrap(),
                is_allocated,
            ));
        }
        all.sort_unstable();
        all
    };
    assert_eq!(blocks(&device["segments"], "size"), blocks(&truth["snapshot"], "size"));
    // What only the driver knew is unknown, with the reason.
    for key in ["total", "used", "free", "outside_pytorch", "other_processes"] {
        assert_eq!(device[key], Value::Null, "{key}");
    }
    let why = device["outside_pytorch_unknown_because"].as_str().unwrap();
    assert!(why.contains("core file"), "{why}");
    let owners = found["owners"]["devices"]["cuda:0"].clone();
    assert_eq!(found["owners_unknown_because"], Value::Null);
    let allocated = truth["stats"]["allocated_bytes.all.current"].as_u64().unwrap();
    assert_eq!(owners["allocated"].as_u64().unwrap(), allocated, "{owners}");
}

#[test]
fn a_crashed_jobs_core_file_equals_what_it_said() {
    let folder = tempfile::tempdir().unwrap();
    // Not forked: that process would have another command line.
    let target = Target::start(sim::command("crashed.py", &[folder.path().to_str().unwrap()]));
    let truth = truth(&target);
    let core = crash(target, folder.path());
    let found = json(&core);
    equals_truth(&found, &truth);
    assert_eq!(found["command"], truth["argv"], "the whole command line");
    let text = dump(&core, &[]).ok().out;
    assert!(text.contains("Core file"), "{text}");
    assert!(text.contains("__main__.WEIGHTS[*]"), "{text}");
    assert!(text.contains(": activation"), "{text}");
    let main = &found["threads"].as_array().unwrap().iter().find(|it| it["main"] == true).unwrap();
    assert_eq!(main["name"], "MainThread");
    let functions: Vec<&str> = main["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| frame["function"].as_str().unwrap())
        .filter(|name| ["inner", "outer", "<module>"].contains(name))
        .collect();
    let other =
        found["threads"].as_array().unwrap().iter().find(|it| it["name"] == "waits-for-ever");
    assert!(other.is_some(), "{found}");
    if kernel_writes_here() {
        assert_eq!(functions, ["inner", "outer", "<module>"]);
        assert_eq!(found["core"]["signal"], "SIGABRT");
        assert_eq!(found["core"]["thread"], truth["thread"]);
        assert!(text.contains("written on SIGABRT"), "{text}");
    }
}

#[test]
fn a_core_file_like_gcores_equals_the_continuing_job() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = sim::start("crashed.py", &[folder.path().to_str().unwrap()]);
    let truth = truth(&target);
    let core = folder.path().join("core");
    write_core_of(target.pid(), &core);
    let found = json(&core);
    equals_truth(&found, &truth);
    assert_eq!(found["core"]["signal"], Value::Null);
    target.say("go on");
    // As if every library had been another build: the headers in the core file are changed.
    let damaged = folder.path().join("elsewhere");
    let mut bytes = std::fs::read(&core).unwrap();
    for page in bytes.chunks_mut(4096).skip(1).filter(|page| page.starts_with(b"\x7fELF")) {
        page[60] ^= 1;
    }
    std::fs::write(&damaged, &bytes).unwrap();
    drop(bytes);
    dump(&damaged, &[]).refused(&["Python", "another file", "where these files are unchanged"]);
    // A cut file: what is there is shown, or reported missing; never another number.
    let whole = std::fs::metadata(&core).unwrap().len();
    for part in [95, 60, 20] {
        let file = File::options().write(true).open(&core).unwrap();
        file.set_len(whole * part / 100).unwrap();
        let done = dump(&core, &["--json"]);
        if !done.status.success() {
            assert!(done.err.contains("the core file is cut"), "{}", done.err);
            continue;
        }
        let found: Value = serde_json::from_str(&done.out).unwrap();
        let missing = found["core"]["missing"][0].as_str().unwrap();
        assert!(missing.contains("the core file is cut"), "{missing}");
        if let Some(device) = found["devices"].get(0) {
            let allocated = &truth["stats"]["allocated_bytes.all.current"];
            assert!([allocated, &Value::Null].contains(&&device["allocated"]), "{device}");
        }
    }
}

/// A program that waits, with its own library.
struct Program {
    folder: tempfile::TempDir,
}

const LIBRARY: &str = "const char text[] = \"constant\"; int VALUE = 7; const char *get(void) { return text; } \
    void set(int value) { VALUE = value; }";

impl Program {
    fn compile() -> Program {
        let program = Program { folder: tempfile::tempdir().unwrap() };
        program.compile_library(LIBRARY);
        let main = "#include <stdio.h>\n#include <unistd.h>\nvoid set(int); const char *get(void);\n\
                    int main(void) { char c; set(9); puts(get()); fflush(stdout); return read(0, &c, 1); }\n";
        std::fs::write(program.path("main.c"), main).unwrap();
        let mut compiler = Command::new("cc");
        compiler.arg("-o").arg(program.path("main")).arg(program.path("main.c"));
        compiler.arg(program.path("libown.so")).arg("-Wl,-rpath").arg(program.folder.path());
        assert!(compiler.status().unwrap().success());
        program
    }

    fn compile_library(&self, text: &str) {
        // Too many names for the first page, which the core file holds.
        let more: String =
            (0..500).map(|n| format!("\nint more{n}(void) {{ return {n}; }}")).collect();
        std::fs::write(self.path("own.c"), format!("{text}{more}\n")).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wl,--build-id", "-o"]).arg(self.path("new.so"));
        assert!(compiler.arg(self.path("own.c")).status().unwrap().success());
        // As a package manager does: another file under the same name.
        std::fs::rename(self.path("new.so"), self.path("libown.so")).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its core file, written while it waits.
    fn core(&self) -> PathBuf {
        let target = Target::start_when(Command::new(self.path("main")), |line| line == "constant");
        let core = self.path("core");
        write_core_of(target.pid(), &core);
        core
    }
}

fn value_of(core: &Path) -> (Process, Option<u32>) {
    let process = Process::open_core(core).unwrap();
    let memory = process.memory();
    let mappings = process.mappings().unwrap();
    let library =
        LoadedObject::read(&memory, mappings.object(|name| name == "libown.so").unwrap()).unwrap();
    let at = library.exported(&memory, "VALUE").ok().flatten();
    let value = at.and_then(|at| (&memory as &dyn Memory).u32(at).ok());
    (process, value)
}

#[test]
fn a_library_replaced_since_the_crash_is_not_read() {
    let program = Program::compile();
    let core = program.core();
    let (process, value) = value_of(&core);
    assert_eq!(value, Some(9), "as it was in memory, not as in the file");
    assert_eq!(process.program().unwrap(), program.path("main"));
    assert!(process.core_origin().unwrap().missing.is_empty());
    // Symbol names are in the library's file only; another build has them elsewhere.
    program.compile_library(&format!(
        "int other = 3; {LIBRARY} int another(void) {{ return other; }}"
    ));
    let (process, value) = value_of(&core);
    assert_eq!(value, None);
    let missing = process.core_origin().unwrap().missing.join("\n");
    assert!(missing.contains("libown.so") && missing.contains("another file"), "{missing}");
    // The library's file is gone.
    std::fs::remove_file(program.path("libown.so")).unwrap();
    let (process, value) = value_of(&core);
    assert_eq!(value, None);
    assert!(process.core_origin().unwrap().missing[0].contains("libown.so"));
}

#[test]
fn a_core_file_without_python_is_refused_in_one_line() {
    let program = Program::compile();
    dump(&program.core(), &[]).refused(&["core", "not a Python", "gdb"]);
}
