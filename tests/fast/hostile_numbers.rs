//! Recordings whose numbers are beyond all memory there is: read or refused, never a panic.

use std::path::Path;

use assert_cmd::cargo::cargo_bin;
use memspy::model::Record;

use crate::hostile_support::{sampled, save};

/// Every size becomes `large`.
fn with_numbers(mut records: Vec<Record>, large: u64) -> Vec<Record> {
    for record in &mut records {
        match record {
            Record::Ownership(owners) => {
                let held = owners.devices.iter_mut().flat_map(|device| &mut device.held);
                held.for_each(|held| held.bytes = large);
            }
            Record::Snapshot(snapshot) => {
                for segment in &mut snapshot.segments {
                    segment.size = large;
                    let blocks = segment.blocks.iter_mut();
                    blocks.for_each(|block| (block.size, block.requested) = (large, large));
                }
            }
            _ => {}
        }
    }
    records
}

/// More than any scale of colours and any table of shares could multiply.
const LARGE: u64 = 1 << 59;

/// `flame --diff` ended in inferno's scale of colours, `oom-report` in its table of owners.
#[test]
fn sizes_beyond_all_memory_are_no_panic_in_differences_and_tables_of_owners() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, sound) = (folder.path().join("trace"), folder.path().join("sound"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    save(&sound, &sampled(None));
    save(&trace, &with_numbers(sampled(None), LARGE));
    let (trace, sound) = (text(&trace), text(&sound));
    let commands: [&[&str]; 3] = [
        &["flame", &trace, "--diff", &sound, "-o", "-"],
        &["flame", &sound, "--diff", &trace, "-o", "-"],
        &["oom-report", &trace],
    ];
    let mut failed = Vec::new();
    for words in commands {
        let done = std::process::Command::new(cargo_bin("memspy")).args(words).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        if err.contains("panicked") || !matches!(done.status.code(), Some(0 | 1)) {
            failed.push(format!("{words:?}: {err}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
