//! An edit: runs of items kept, dropped, added or changed, each `count << 2 | kind`; 0 ends it.

use super::MalformedPayload;
use super::varint::{PayloadCursor, put};

pub(super) const KEEP: u64 = 0;
pub(super) const DROP: u64 = 1;
pub(super) const NEW: u64 = 2;
pub(super) const CHANGE: u64 = 3;

/// Written when another kind begins.
#[derive(Default)]
pub(super) struct StepRun {
    kind: u64,
    count: u64,
}

impl StepRun {
    pub(super) fn step(&mut self, kind: u64, out: &mut Vec<u8>) {
        if kind != self.kind {
            self.end(out);
            self.kind = kind;
        }
        self.count += 1;
    }

    pub(super) fn end(&mut self, out: &mut Vec<u8>) {
        if self.count > 0 {
            put(out, self.count << 2 | self.kind);
            self.count = 0;
        }
    }
}

/// Kind and number of items; `None` at the end.
pub(super) fn step(from: &mut PayloadCursor<'_>) -> Result<Option<(u64, u64)>, MalformedPayload> {
    let number = from.number()?;
    Ok((number != 0).then_some((number & 3, number >> 2)))
}

pub(super) const BEYOND_PREVIOUS: MalformedPayload =
    MalformedPayload("a snapshot edits more than the one before has");
