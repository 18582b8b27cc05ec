//! Files that are no traces, that exist already, or that change while read.

use std::fs;
use std::path::PathBuf;

use crate::trace_support::{Dice, Loop, borders, write};
use memspy::model::{Definition, Function, FunctionId, Record, RecordSink, SourceText};
use memspy::trace::{CreateError, ReadError, TraceReader, TraceWriter};

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
        TraceReader::open(&path).unwrap_err()
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
    assert!(matches!(TraceReader::open(directory.path()).unwrap_err(), ReadError::NotAFile { .. }));
    assert!(matches!(
        TraceReader::open(directory.path().join("none")).unwrap_err(),
        ReadError::Open { .. }
    ));
}

#[test]
fn a_newer_version_is_refused_naming_both() {
    let mut bytes = write(&Loop::story(1, 3));
    bytes[8..10].copy_from_slice(&7u16.to_le_bytes());
    let message = TraceReader::from_bytes(&bytes).unwrap_err().to_string();
    assert!(message.contains("version 7") && message.contains("up to 1"), "{message}");
}

#[test]
fn an_existing_file_is_replaced_only_on_request() {
    let (directory, path) = place();
    let old = Loop::story(2, 500);
    fs::write(&path, write(&old)).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(matches!(TraceWriter::create(&path, false), Err(CreateError::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), before, "untouched");
    assert!(matches!(
        TraceWriter::create(directory.path(), true),
        Err(CreateError::Directory { .. })
    ));
    assert!(matches!(
        TraceWriter::create(directory.path().join("no/such"), true),
        Err(CreateError::Create { .. })
    ));

    let mut reader = TraceReader::open(&path).unwrap();
    let mut writer = TraceWriter::create(&path, true).unwrap();
    let new = Loop::story(3, 5);
    for record in &new {
        writer.record(record).unwrap();
    }
    writer.finish().unwrap();
    let mut records = Vec::new();
    reader.replay(&mut records).unwrap();
    assert_eq!(records, old);
    records.clear();
    TraceReader::open(&path).unwrap().replay(&mut records).unwrap();
    assert_eq!(records, new);
}

#[test]
#[cfg(unix)]
fn overwriting_through_a_link_keeps_the_link() {
    let (directory, path) = place();
    let link = directory.path().join("latest");
    fs::write(&path, "old").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    TraceWriter::create(&link, true).unwrap().finish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    TraceReader::open(&path).unwrap();
}

fn mode(path: &std::path::Path) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions()) & 0o7777
}

#[test]
fn a_trace_stays_private_to_its_owner_when_overwritten() {
    let (_directory, path) = place();
    TraceWriter::create(&path, false).unwrap().finish().unwrap();
    assert_eq!(mode(&path), 0o600);
    for kept in [0o400, 0o600, 0o640] {
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(kept)).unwrap();
        TraceWriter::create(&path, true).unwrap().finish().unwrap();
        assert_eq!(mode(&path), kept);
    }
}

#[test]
fn overwriting_does_not_write_to_a_hard_link() {
    let (directory, path) = place();
    let link = directory.path().join("link");
    fs::write(&path, "old").unwrap();
    fs::hard_link(&path, &link).unwrap();
    TraceWriter::create(&path, true).unwrap().finish().unwrap();
    assert_eq!(fs::read_to_string(&link).unwrap(), "old");
    assert_ne!(fs::read(&path).unwrap(), b"old");
    let names: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// Gives the file to another user.
fn give_away(path: &std::path::Path) {
    std::os::unix::fs::lchown(path, Some(65534), Some(65534))
        .expect("this test has to run as root");
}

#[test]
fn a_link_of_another_user_is_not_written_through() {
    let (directory, path) = place();
    let other = directory.path().join("other");
    fs::write(&other, "precious").unwrap();
    std::os::unix::fs::symlink(&other, &path).unwrap();
    give_away(&path);
    for overwrite in [false, true] {
        let error = TraceWriter::create(&path, overwrite).err().unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "precious", "{error}");
        if overwrite {
            assert!(error.to_string().contains("65534"), "{error}");
        }
    }
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
}

#[test]
fn another_users_pipe_in_a_shared_folder_gets_nothing() {
    let (directory, path) = place();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777))
        .unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    give_away(&path);
    // With a reader, nothing blocks.
    let _reader = fs::File::options().read(true).write(true).open(&path).unwrap();
    let error = TraceWriter::create(&path, false).err().expect("it is refused");
    assert!(error.to_string().contains("65534"), "{error}");
}

#[test]
fn a_ring_of_another_user_is_not_used() {
    use memspy::trace::{RecordingRing, Retention};
    let (directory, _) = place();
    let keep = Retention::Bytes(1 << 20);
    let folder = directory.path().join("own.ring");
    RecordingRing::create(&folder, keep, false).unwrap();
    assert_eq!(mode(&folder), 0o700);
    RecordingRing::create(&folder, keep, true).unwrap();
    let theirs = directory.path().join("theirs.ring");
    fs::create_dir(&theirs).unwrap();
    give_away(&theirs);
    assert!(RecordingRing::create(&theirs, keep, true).is_err());
    let link = directory.path().join("link.ring");
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    give_away(&link);
    assert!(RecordingRing::create(&link, keep, true).is_err());
}

#[test]
fn a_growing_recording_is_read_to_its_last_whole_block() {
    let (_directory, path) = place();
    let records = Loop::story(4, 1000);
    let mut writer = TraceWriter::create(&path, false).unwrap();
    let mut reader = TraceReader::open(&path).unwrap();
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
fn a_file_that_shrank_is_an_error_not_a_crash() {
    let (_directory, path) = place();
    let bytes = write(&Loop::story(5, 1000));
    fs::write(&path, &bytes).unwrap();
    let mut reader = TraceReader::open(&path).unwrap();
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
    let mut writer = TraceWriter::create(path, false).unwrap();
    let function = Function {
        name: "f".into(),
        file: "f.py".into(),
        first_line: 1,
        last_line: 1,
        is_native: false,
    };
    let definition = Definition::Function(FunctionId(0), function);
    writer.record(&Loop::start()).unwrap();
    writer.record(&Record::Definition(definition)).unwrap();
    let mut dice = Dice(5);
    for _ in 0..60 {
        let text = (0..150_000).map(|_| char::from(b' ' + dice.roll(94) as u8)).collect::<String>();
        let source = SourceText { function: FunctionId(0), first_line: 1, text: text.into() };
        writer.record(&Record::Source(source)).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_trace_cut_while_read_is_an_error() {
    use std::os::unix::process::ExitStatusExt;
    let (directory, path) = place();
    large(&path);
    let bytes = fs::read(&path).unwrap();
    // When and where it is cut is chance: memspy must survive all of it.
    for round in 0..60 {
        let copy = directory.path().join(format!("copy-{round}"));
        fs::write(&copy, &bytes).unwrap();
        let mut memspy = std::process::Command::new(env!("CARGO_BIN_EXE_memspy"));
        let memspy = memspy.arg("oom-report").arg(&copy).stdout(std::process::Stdio::null());
        let child = memspy.stderr(std::process::Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round % 20));
        let file = fs::OpenOptions::new().write(true).open(&copy).unwrap();
        file.set_len(bytes.len() as u64 * (round % 7) / 10 + 20).unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!(done.status.signal(), None, "round {round}: {}", done.status);
        let _ = fs::remove_file(&copy);
    }
}
