//! Adjacent windows of a recording, with profiles.

use crate::analysis::Profile;
use crate::model::{
    AllocatorSnapshot, Definition, Nanos, OwnershipBreakdown, Record, RecordSink, SinkResult,
};
use crate::trace::{DefinitionTables, Renumberer};

#[derive(Default)]
pub(super) struct StreamState {
    names: DefinitionTables,
    tick: Vec<Record>,
    snapshots: Vec<AllocatorSnapshot>,
    owners: Option<OwnershipBreakdown>,
    is_sampled: bool,
}

impl StreamState {
    /// Returns `false` for a definition: its users take it along.
    pub(super) fn on_record(&mut self, record: &Record) -> bool {
        if self.names.on_definition(record) {
            if matches!(record, Record::Definition(Definition::Reset)) {
                // Its numbers changed their meaning.
                self.tick.clear();
            }
            return false;
        }
        match record {
            Record::Start(start) => self.is_sampled = start.rate > 0,
            Record::Sample(_) if self.is_sampled => {
                self.tick.clear();
                self.tick.push(record.clone());
            }
            Record::Counters { .. } if self.is_sampled => self.tick.push(record.clone()),
            Record::Snapshot(snapshot) => {
                self.snapshots.retain(|known| known.device != snapshot.device);
                self.snapshots.push(snapshot.clone());
            }
            Record::Ownership(snapshot) => self.owners = Some(snapshot.clone()),
            _ => {}
        }
        true
    }

    /// A window never begins between a sample and its counters.
    pub(super) fn border(&self, record: &Record) -> Option<Nanos> {
        match record {
            Record::Sample(sample) if self.is_sampled => Some(sample.time),
            Record::Events(batch) => batch.events.first().map(|event| event.time),
            Record::Usage(usage) if !self.is_sampled => Some(usage.time),
            Record::Counters { time, .. } if !self.is_sampled => Some(*time),
            _ => None,
        }
    }
}

/// Has its own numbers: earlier definitions are forgotten.
pub(super) struct StreamWindow {
    profile: Profile,
    rewriter: Renumberer,
    out: Vec<Record>,
    began_with: usize,
}

/// Stacks, frames or sites; each takes some 200 bytes.
const MAX_NAMES: usize = 1 << 16;

impl StreamWindow {
    pub(super) fn new(profile: Profile) -> StreamWindow {
        StreamWindow { profile, rewriter: Renumberer::new(), out: Vec::new(), began_with: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.names() > MAX_NAMES.max(2 * self.began_with)
    }

    fn names(&self) -> usize {
        self.rewriter.names().table().size()
    }

    pub(super) fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(super) fn on_record(
        &mut self,
        stream: &StreamState,
        record: &Record,
        sink: Option<&mut dyn RecordSink>,
    ) -> SinkResult {
        self.rewriter.rewrite(&stream.names, record, &mut self.out);
        self.pass(sink)
    }

    pub(super) fn redefined(&mut self, record: &Record) {
        self.rewriter.redefined(record);
    }

    /// Whether the next window can begin now without loss.
    pub(super) fn is_settled(&mut self) -> bool {
        self.profile.finish();
        self.profile.is_settled()
    }

    pub(super) fn next(
        &mut self,
        time: Nanos,
        stream: &StreamState,
        profile: Profile,
        sink: Option<&mut dyn RecordSink>,
    ) -> SinkResult {
        self.profile.finish();
        let mut rewriter = Renumberer::new();
        let inheritance = Record::Keyframe(self.profile.keyframe(time));
        let mut opening: Vec<Record> = Vec::new();
        for record in self.profile.state_records() {
            let again = |tick: &Record| match (tick, &record) {
                (Record::Counters { device: a, .. }, Record::Counters { device: b, .. }) => a == b,
                _ => false,
            };
            if !stream.tick.iter().any(again) {
                opening.push(record);
            }
        }
        opening.extend(stream.owners.clone().map(Record::Ownership));
        opening.extend(stream.snapshots.iter().cloned().map(Record::Snapshot));
        let mut inherited = Vec::new();
        rewriter.rewrite(self.rewriter.names(), &inheritance, &mut inherited);
        let last = inherited.pop();
        opening.append(&mut inherited);
        rewriter.reset();
        for record in &stream.tick {
            rewriter.rewrite(&stream.names, record, &mut opening);
        }
        opening.extend(last);
        (self.profile, self.rewriter, self.out) = (profile, rewriter, opening);
        self.began_with = self.names();
        self.pass(sink)
    }

    fn pass(&mut self, mut sink: Option<&mut dyn RecordSink>) -> SinkResult {
        for record in self.out.drain(..) {
            if let Some(sink) = &mut sink {
                sink.record(&record)?;
            }
            self.profile.record(&record)?;
        }
        Ok(())
    }
}
