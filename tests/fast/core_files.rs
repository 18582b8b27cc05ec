//! Damaged, cut or foreign core files: a one-line error, or fewer facts; no panic, no hang.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use memspy::target::{Addr, Memory, Process};

use crate::support::core_file::{CoreBuilder, Segment};

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A small core file with threads, process, files, and a stack with arguments.
fn write(path: &Path) {
    let mut core = CoreBuilder::default();
    let vector = words(&[3, 0x40_0040, 6, 4096, 25, 0x7000_0800, 33, 1, 9, 0x40_1000, 0, 0]);
    let mut registers = [0; 27];
    (registers[16], registers[19]) = (0x40_1000, 0x7000_0100);
    core.thread(77, 6, &registers);
    core.process(77, "python", "python x.py");
    core.auxiliary_vector(&vector);
    core.thread(78, 0, &registers);
    let file = path.with_extension("so").display().to_string();
    core.files(&[
        (0x40_0000, 0x40_3000, 0, file),
        (0x50_0000, 0x50_1000, 4096, "/gone (deleted)".into()),
    ]);
    let mut page = b"\x7fELF\x02\x01\x01".to_vec();
    page.resize(4096, 0);
    core.segments.push(Segment { start: 0x40_0000, end: 0x40_3000, flags: 5, bytes: page });
    core.segments.push(Segment {
        start: 0x50_0000,
        end: 0x50_1000,
        flags: 6,
        bytes: vec![1; 4096],
    });
    let mut stack = vec![0; 8192];
    stack[4096..4106].copy_from_slice(b"arg0\0arg1\0");
    stack[4106..4112].copy_from_slice(b"A=one\0");
    let start = [2, 0x7000_1000, 0x7000_1005, 0, 0x7000_100a, 0];
    stack[0x400..0x430].copy_from_slice(&words(&start));
    stack[0x430..0x430 + vector.len()].copy_from_slice(&vector);
    core.segments.push(Segment { start: 0x7000_0000, end: 0x7000_2000, flags: 6, bytes: stack });
    core.write(path);
}

/// Reads everything from a core file.
fn read(path: &Path) -> Option<Process> {
    let process = Process::open_core(path).ok()?;
    let memory = process.memory();
    let _ = (process.command(), process.program(), process.environment("A"), process.threads());
    for mapping in process.mappings().unwrap().iter() {
        let mut bytes = [0; 64];
        for at in [mapping.start, mapping.start + 4090, mapping.end - 64, mapping.end - 1] {
            let _ = memory.read(at, &mut bytes);
        }
        let _ = process.open_mapped(mapping);
    }
    let _ = (process.core_origin(), memory.read(Addr(u64::MAX - 3), &mut [0; 8]));
    Some(process)
}

#[test]
fn what_a_core_file_says_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("core");
    write(&path);
    let process = read(&path).unwrap();
    assert_eq!(process.pid(), 77);
    assert_eq!(process.command().unwrap(), ["arg0", "arg1"]);
    assert_eq!(process.environment("A").unwrap().as_deref(), Some("one"));
    assert_eq!(process.environment("B").unwrap(), None);
    assert_eq!(process.program().unwrap(), path.with_extension("so"));
    let threads: Vec<u32> = process.threads().unwrap().iter().map(|thread| thread.id).collect();
    assert_eq!(threads, [77, 78]);
    let origin = process.core_origin().unwrap();
    assert_eq!((origin.signal.as_deref(), origin.thread), (Some("SIGABRT"), Some(77)));
    assert!(process.is_alive() && process.reopen().unwrap().is_core());
    // Nothing of the process that has its pid now.
    assert_eq!(process.thread_state(77), None);
    assert!(process.children().is_empty() && process.descendants().is_empty());
    let mut bytes = [0; 4];
    process.memory().read(Addr(0x50_0ffc), &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4]);
    assert!(process.memory().read(Addr(0x50_0ffd), &mut bytes).is_err(), "nothing lies behind it");
}

#[test]
fn a_damaged_core_file_causes_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("core");
    write(&path);
    let whole = std::fs::read(&path).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    for len in (0..1200).chain((1200..whole.len()).step_by(501)) {
        file.set_len(len as u64).unwrap();
        if let Some(process) = read(&path) {
            let missing = process.core_origin().unwrap().missing;
            assert!(missing[0].contains("the core file is cut"), "{len}: {missing:?}");
        }
        file.write_all_at(&whole, 0).unwrap();
    }
    // Headers and notes with impossible numbers.
    for at in 0..1200 {
        for value in [0, 1, 0x7f, 0xff] {
            file.write_all_at(&[value], at).unwrap();
            read(&path);
            file.write_all_at(&whole[at as usize..at as usize + 1], at).unwrap();
        }
    }
    for at in (0..1200).step_by(8) {
        for value in [u64::MAX, 1 << 63, 1 << 40, 0xffff_ffff_0000_ffff] {
            file.write_all_at(&value.to_le_bytes(), at).unwrap();
            read(&path);
            file.write_all_at(&whole[at as usize..at as usize + 8], at).unwrap();
        }
    }
    assert!(read(&path).is_some());
}

#[track_caller]
fn refused(path: &Path, parts: &[&str]) {
    let done = Command::new(cargo_bin("memspy")).arg("dump").arg(path).output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    for part in parts {
        assert!(err.contains(part), "no '{part}' in: {err}");
    }
}

#[test]
fn other_files_are_refused_with_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    refused(&path("missing"), &["cannot read the core file", "No such file"]);
    refused(Path::new("4000000"), &["No such file", "memspy dump -p 4000000"]);
    refused(folder.path(), &["not a core file", "not a regular file"]);
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    refused(&path("pipe"), &["not a core file", "not a regular file"]);
    refused(&cargo_bin("memspy"), &["not a core file", "a program or a library"]);
    std::fs::write(path("text"), "hello\n").unwrap();
    refused(&path("text"), &["not a core file", "as an ELF file does"]);
    std::fs::write(path("empty"), "").unwrap();
    refused(&path("empty"), &["not a core file"]);
    std::fs::write(path("core.zst"), b"\x28\xb5\x2f\xfd....").unwrap();
    refused(&path("core.zst"), &["compressed (zstd)", "zstd -d"]);
    write(&path("core"));
    refused(&path("core"), &["not a Python program", "gdb"]);
    // As py-spy has it.
    let done =
        Command::new(cargo_bin("memspy")).arg("dump").arg("--core").arg(path("core")).output();
    assert!(String::from_utf8(done.unwrap().stderr).unwrap().contains("not a Python program"));
}
