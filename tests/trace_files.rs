//! Files that are no traces, files that exist already, files that change while they are read.

mod trace_support;

use std::fs;
use std::path::PathBuf;

use memspy::model::{Definition, Function, FunctionId, Record, RecordSink, Source};
use memspy::trace::{CreateError, ReadError, Reader, Writer};
use trace_support::{Dice, Loop, borders, write};

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trace");
    (directory, path)
}

#[test]
fn what_is_no_trace_is_named() {
    let (directory, path) = place();
    let open = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Reader::open(&path).unwrap_err()
    };
    assert!(matches!(open(b""), ReadError::Empty { .. }));
    assert!(matches!(open(b"MEMSPY\r\n\x01"), ReadError::HeadCut { bytes: 9, .. }));
    assert!(matches!(open(b"MEM"), ReadError::HeadCut { bytes: 3, .. }));
    for (bytes, kind) in [
        (b"\x1f\x8b\x08\0\0\0\0".as_slice(), "gzip"),
        (b"\x80\x04\x95abc", "pickle"),
        (b"PK\x03\x04....", "zip"),
        (b"hello world\n", "text"),
        (b"MEMSPY\n\x01\0", "text mode"),
        (b"MEMSPY\r\n\0\0", "version 0"),
    ] {
        match open(bytes) {
            ReadError::NotATrace { looks_like, .. } => {
                assert!(looks_like.contains(kind), "{looks_like}");
            }
            other => panic!("{kind}: {other}"),
        }
    }
    assert!(matches!(Reader::open(directory.path()).unwrap_err(), ReadError::NotAFile { .. }));
    assert!(matches!(
        Reader::open(directory.path().join("none")).unwrap_err(),
        ReadError::Open { .. }
    ));
}

#[test]
fn a_newer_version_is_refused_naming_both() {
    let mut bytes = write(&Loop::story(1, 3));
    bytes[8..10].copy_from_slice(&7u16.to_le_bytes());
    let message = Reader::from_bytes(&bytes).unwrap_err().to_string();
    assert!(message.contains("version 7") && message.contains("up to 1"), "{message}");
}

#[test]
fn an_existing_file_is_replaced_only_when_asked_and_open_readers_keep_the_old_one() {
    let (directory, path) = place();
    let old = Loop::story(2, 500);
    fs::write(&path, write(&old)).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(matches!(Writer::create(&path, false), Err(CreateError::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), before, "untouched");
    assert!(matches!(Writer::create(directory.path(), true), Err(CreateError::Directory { .. })));
    assert!(matches!(
        Writer::create(directory.path().join("no/such"), true),
        Err(CreateError::Create { .. })
    ));

    let mut reader = Reader::open(&path).unwrap();
    let mut writer = Writer::create(&path, true).unwrap();
    let new = Loop::story(3, 5);
    for record in &new {
        writer.record(record).unwrap();
    }
    writer.finish().unwrap();
    let mut records = Vec::new();
    reader.replay(&mut records).unwrap();
    assert_eq!(records, old);
    records.clear();
    Reader::open(&path).unwrap().replay(&mut records).unwrap();
    assert_eq!(records, new);
}

#[test]
#[cfg(unix)]
fn overwriting_through_a_link_keeps_the_link() {
    let (directory, path) = place();
    let link = directory.path().join("latest");
    fs::write(&path, "old").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    Writer::create(&link, true).unwrap().finish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    Reader::open(&path).unwrap();
}

#[test]
fn a_recording_in_progress_is_read_up_to_its_last_whole_block() {
    let (_directory, path) = place();
    let records = Loop::story(4, 1000);
    let mut writer = Writer::create(&path, false).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let mut last = 0;
    for (n, record) in records.iter().enumerate() {
        writer.record(record).unwrap();
        if n % 150 == 0 {
            let mut copy = Vec::new();
            let summary = reader.replay(&mut copy).unwrap();
            assert!(!summary.complete);
            assert!(copy.len() >= last);
            assert_eq!(copy, records[..copy.len()]);
            last = copy.len();
        }
    }
    assert!(last > 500);
}

#[test]
fn a_file_that_shrank_is_an_error_and_not_a_crash() {
    let (_directory, path) = place();
    let bytes = write(&Loop::story(5, 1000));
    fs::write(&path, &bytes).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let half = borders(&bytes)[2] as u64;
    let mut cut = false;
    let outcome = reader.replay_with(&mut Vec::new(), &mut |_| {
        if !cut {
            let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(half).unwrap();
            cut = true;
        }
        std::ops::ControlFlow::Continue(())
    });
    assert!(matches!(outcome, Err(ReadError::Shrunk { .. })), "{outcome:?}");
}

/// A trace of some megabytes.
fn large(path: &std::path::Path) {
    let mut writer = Writer::create(path, false).unwrap();
    let function = Function { name: "f".into(), file: "f.py".into(), first_line: 1, last_line: 1 };
    let definition = Definition::Function(FunctionId(0), function);
    writer.record(&Loop::start()).unwrap();
    writer.record(&Record::Definition(definition)).unwrap();
    let mut dice = Dice(5);
    for _ in 0..60 {
        let text = (0..150_000).map(|_| char::from(b' ' + dice.roll(94) as u8)).collect::<String>();
        let source = Source { function: FunctionId(0), first_line: 1, text: text.into() };
        writer.record(&Record::Source(source)).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_trace_cut_while_memspy_reads_it_is_an_error_and_no_signal() {
    use std::os::unix::process::ExitStatusExt;
    let (directory, path) = place();
    large(&path);
    let bytes = fs::read(&path).unwrap();
    // When it is cut, and by how much, is up to chance: none of it may end memspy.
    for round in 0..60 {
        let copy = directory.path().join(format!("copy-{round}"));
        fs::write(&copy, &bytes).unwrap();
        let mut memspy = std::process::Command::new(env!("CARGO_BIN_EXE_memspy"));
        let memspy = memspy.arg("verdict").arg(&copy).stdout(std::process::Stdio::null());
        let child = memspy.stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round % 20));
        let file = fs::OpenOptions::new().write(true).open(&copy).unwrap();
        file.set_len(bytes.len() as u64 * (round % 7) / 10 + 20).unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.signal(), None, "round {round}: {}", done.status);
        let _ = fs::remove_file(&copy);
    }
}
