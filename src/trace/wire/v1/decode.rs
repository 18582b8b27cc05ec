//! Decodes a block's payload into records.

use super::blocks::BlocksState;
use super::counters::CountersState;
use super::definitions::ReaderIds;
use super::events::EventsState;
use super::exact;
use super::follow_totals::WireFollowTotals;
use super::followed::WireFollowedState;
use super::followed_addresses;
use super::job_cost::WireJobCost;
use super::keyframe;
use super::oom_exception;
use super::owners;
use super::records::{self, WireBlockHead, appended, structure};
use super::sample::SampleState;
use super::varint::PayloadCursor;
use super::{BlockClock, MalformedPayload, max_blocks, tag};
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, CudaIndex, EventBatch, FollowedChanges, Nanos, Record,
    RecordSink, RecordingEnd, SinkError, SnapshotConsistency, StackId, StackSample, ThreadId,
    ThreadSample, TrainingStep,
};
use crate::trace::limits::RecordLimits;
use crate::trace::spending::ReadBudget;

#[derive(Debug)]
pub(crate) enum DecodeStop {
    Sink(SinkError),
    /// Breaks the format, although the checksum matches.
    Malformed(MalformedPayload),
}

impl From<MalformedPayload> for DecodeStop {
    fn from(malformed: MalformedPayload) -> Self {
        DecodeStop::Malformed(malformed)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct DecodeCounts {
    pub(crate) records: u64,
    pub(crate) unknown_tags: u64,
    /// Records that use a lost definition.
    pub(crate) dropped: u64,
    pub(crate) end: Option<RecordingEnd>,
}

#[derive(Debug)]
pub(crate) struct RecordDecoder {
    max_blocks: usize,
    ids: ReaderIds,
    clock: BlockClock,
    sample: SampleState,
    counters: CountersState,
    blocks: BlocksState,
    events: EventsState,
    followed: WireFollowedState,
    limits: RecordLimits,
    budget: ReadBudget,
    // Frequent records are reused, so a sample costs no allocation.
    threads_out: StackSample,
    threads_lost: bool,
    counters_out: Box<AllocatorCounters>,
    map_out: AllocatorSnapshot,
    events_out: EventBatch,
}

impl RecordDecoder {
    /// The file's bytes bound what is kept.
    pub(crate) fn new(bytes: u64) -> Self {
        let max_blocks = max_blocks(bytes);
        RecordDecoder {
            max_blocks,
            ids: ReaderIds::default(),
            clock: BlockClock::default(),
            sample: SampleState::default(),
            counters: CountersState::default(),
            blocks: BlocksState::default(),
            events: EventsState::default(),
            followed: WireFollowedState::default(),
            limits: RecordLimits::default(),
            budget: ReadBudget::default(),
            threads_out: StackSample::default(),
            threads_lost: false,
            counters_out: Box::default(),
            map_out: AllocatorSnapshot {
                time: Nanos(0),
                device: CudaIndex(0),
                retries: 0,
                consistency: SnapshotConsistency::Consistent,
                segments: Vec::new(),
            },
            events_out: EventBatch::default(),
        }
    }

    /// Takes the head; older files have no recording number.
    pub(crate) fn head(
        from: &mut PayloadCursor<'_>,
    ) -> Result<(WireBlockHead, Option<u64>), MalformedPayload> {
        match next_record(from)? {
            (tag::HEAD, mut body) => Ok((structure(&mut body)?, appended(&mut body)?)),
            _ => Err(MalformedPayload("a block does not begin with its head")),
        }
    }

    /// `bytes`: what the block takes of the file.
    pub(crate) fn records(
        &mut self,
        head: &WireBlockHead,
        bytes: usize,
        mut from: PayloadCursor<'_>,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        self.budget.grant(bytes);
        self.clock = BlockClock::new(head.time, head.period);
        self.ids.begin_block(head);
        self.sample.reset();
        self.counters.reset();
        self.blocks.reset();
        self.events.reset();
        self.followed.reset();
        while !from.is_empty() {
            let (tag, body) = next_record(&mut from)?;
            self.record(tag, body, sink, tally)?;
        }
        Ok(())
    }

    fn record(
        &mut self,
        tag: u8,
        mut body: PayloadCursor<'_>,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        let from = &mut body;
        match tag {
            tag::SAMPLE | tag::SAMPLE_CHANGED | tag::SAMPLE_SAME => {
                self.sample(tag, from, sink, tally)
            }
            tag::COUNTERS => self.counters(from, sink, tally),
            tag::BLOCKS => self.snapshot(from, sink, tally),
            tag::EVENTS => self.events(from, sink, tally),
            tag::FOLLOWED | tag::FOLLOWED_AT => {
                self.followed(from, tag == tag::FOLLOWED_AT, sink, tally)
            }
            tag::FUNCTION | tag::FRAME | tag::STACK | tag::THREAD | tag::SITE | tag::SOURCE => {
                match self.definition(tag, from)? {
                    Some(record) => self.deliver(&record, sink, tally),
                    None => self.skip(&mut tally.dropped),
                }
            }
            _ => match self.rare(tag, from)? {
                Some(record) => {
                    self.deliver(&record, sink, tally)?;
                    if let Record::End(end) = record {
                        tally.end = Some(end);
                    }
                    Ok(())
                }
                None => self.skip(&mut tally.unknown_tags),
            },
        }
    }

    /// `None`: it uses a lost definition.
    fn definition(
        &mut self,
        tag: u8,
        from: &mut PayloadCursor<'_>,
    ) -> Result<Option<Record>, MalformedPayload> {
        if tag == tag::SOURCE {
            return Ok(self.ids.source(structure(from)?).map(Record::Source));
        }
        Ok(self.ids.definition(tag, from)?.map(Record::Definition))
    }

    /// `None`: an unknown tag.
    fn rare(
        &mut self,
        tag: u8,
        from: &mut PayloadCursor<'_>,
    ) -> Result<Option<Record>, MalformedPayload> {
        Ok(Some(match tag {
            tag::START => start(from)?,
            tag::DEVICE => Record::Device(structure::<records::WireDevice<'_>>(from)?.into()),
            tag::RUNTIME => {
                let time = self.time(from)?;
                Record::Runtime(structure::<records::WireRuntime<'_>>(from)?.at(time))
            }
            tag::USAGE => {
                let time = self.time(from)?;
                Record::Usage(structure::<records::WireDeviceUsage<'_>>(from)?.at(time))
            }
            tag::MISSED => {
                let time = self.time(from)?;
                Record::Missed(structure::<records::WireMissed<'_>>(from)?.at(time))
            }
            tag::EXACT => settings(self.time(from)?, from)?,
            tag::RECONCILED => {
                let time = self.time(from)?;
                Record::CounterCheck(structure::<exact::WireCounterCheck>(from)?.at(time))
            }
            tag::OWNERS => ownership(self.time(from)?, from)?,
            tag::STEP => step(self.time(from)?, from)?,
            tag::KEYFRAME => {
                let time = self.time(from)?;
                Record::Keyframe(keyframe::decode(from, time, &self.ids, self.max_blocks)?)
            }
            tag::TRIGGERED => {
                let time = self.time(from)?;
                Record::TriggerFired(structure::<keyframe::WireTriggerFired<'_>>(from)?.at(time))
            }
            tag::THROWN => self.oom_exception(from)?,
            tag::GAP => {
                let time = self.time(from)?;
                Record::Gap(structure::<records::WireGap<'_>>(from)?.at(time))
            }
            tag::END => end(self.time(from)?, from)?,
            _ => return Ok(None),
        }))
    }

    fn oom_exception(&mut self, from: &mut PayloadCursor<'_>) -> Result<Record, MalformedPayload> {
        let time = self.time(from)?;
        let exception = structure::<oom_exception::WireOomException<'_>>(from)?;
        let (threads, stacks) = (&self.ids.threads, &self.ids.stacks);
        Ok(Record::OomException(exception.at(time, |n| threads.get(n), |n| stacks.get(n))))
    }

    fn time(&mut self, from: &mut PayloadCursor<'_>) -> Result<Nanos, MalformedPayload> {
        Ok(Nanos(self.clock.decode(from.number()?)))
    }

    fn sample(
        &mut self,
        tag: u8,
        from: &mut PayloadCursor<'_>,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        self.threads_out.time = Nanos(self.clock.decode_sample(from.number()?));
        self.sample.decode(tag, from, self.ids.threads.len())?;
        if tag != tag::SAMPLE_SAME || self.threads_lost {
            self.renumber_sample();
        }
        if self.threads_lost {
            return self.skip(&mut tally.dropped);
        }
        let record = Record::Sample(std::mem::take(&mut self.threads_out));
        let delivered = self.deliver(&record, sink, tally);
        if let Record::Sample(sample) = record {
            self.threads_out = sample;
        }
        delivered
    }

    /// A sample that uses a lost number is lost.
    fn renumber_sample(&mut self) {
        let (threads, stacks) = (&self.ids.threads, &self.ids.stacks);
        self.threads_lost = false;
        self.threads_out.threads.clear();
        for entry in self.sample.threads() {
            match (threads.get(entry.thread.0), stacks.get(entry.stack.0)) {
                (Some(thread), Some(stack)) => self.threads_out.threads.push(ThreadSample {
                    thread: ThreadId(thread),
                    stack: StackId(stack),
                    ..*entry
                }),
                _ => self.threads_lost = true,
            }
        }
    }

    fn counters(
        &mut self,
        from: &mut PayloadCursor<'_>,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        let time = self.time(from)?;
        let device = from.number32()?;
        self.counters.decode(device, &mut self.counters_out, from)?;
        let record = Record::Counters {
            time,
            device: CudaIndex(device),
            counters: std::mem::take(&mut self.counters_out),
        };
        let delivered = self.deliver(&record, sink, tally);
        if let Record::Counters { counters, .. } = record {
            self.counters_out = counters;
        }
        delivered
    }

    fn snapshot(
        &mut self,
        from: &mut PayloadCursor<'_>,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        let time = self.time(from)?;
        let mut snapshot = AllocatorSnapshot {
            time,
            device: CudaIndex(from.number32()?),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: std::mem::take(&mut self.map_out.segments),
        };
        self.blocks.decode(&mut snapshot, from, self.max_blocks)?;
        let record = Record::Snapshot(snapshot);
        let delivered = self.deliver(&record, sink, tally);
        if let Record::Snapshot(snapshot) = record {
            self.map_out = snapshot;
        }
        delivered
    }

    fn events(
        &mut self,
        from: &mut PayloadCursor<'_>,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        let mut batch = std::mem::take(&mut self.events_out);
        // Without its site, an event is still an allocation or a free.
        let site = |number| self.ids.sites.get(number);
        self.events.decode(from, &mut self.clock, &mut batch.events, site)?;
        let record = Record::Events(batch);
        let delivered = self.deliver(&record, sink, tally);
        if let Record::Events(batch) = record {
            self.events_out = batch;
        }
        delivered
    }

    fn followed(
        &mut self,
        from: &mut PayloadCursor<'_>,
        with_addresses: bool,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        let mut changes = Vec::new();
        // Without threads or stacks, a delta still changed the counters.
        let (thread, stack) = (|n| self.ids.threads.get(n), |n| self.ids.stacks.get(n));
        self.followed.decode(from, &mut self.clock, &mut changes, thread, stack)?;
        if with_addresses {
            followed_addresses::decode(from, &mut changes)?;
        }
        self.deliver(&Record::Followed(FollowedChanges { changes }), sink, tally)
    }

    fn deliver(
        &mut self,
        record: &Record,
        sink: &mut dyn RecordSink,
        tally: &mut DecodeCounts,
    ) -> Result<(), DecodeStop> {
        self.limits.check(record).map_err(MalformedPayload)?;
        self.budget.spend(record).map_err(MalformedPayload)?;
        sink.record(record).map_err(DecodeStop::Sink)?;
        tally.records += 1;
        Ok(())
    }

    fn skip(&mut self, counted: &mut u64) -> Result<(), DecodeStop> {
        *counted += 1;
        Ok(self.budget.spend_skipped().map_err(MalformedPayload)?)
    }
}

fn start(from: &mut PayloadCursor<'_>) -> Result<Record, MalformedPayload> {
    let start = structure::<records::WireStart<'_>>(from)?;
    Ok(Record::Start(start.of_rank(structure(from)?)))
}

fn settings(time: Nanos, from: &mut PayloadCursor<'_>) -> Result<Record, MalformedPayload> {
    let settings = structure::<exact::WireExactSettings<'_>>(from)?;
    let (knows_backward, starts_empty) = (structure(from)?, structure(from)?);
    let native = appended::<u64>(from)?;
    Ok(Record::ExactSettings(settings.at(time, knows_backward, starts_empty, native)))
}

fn ownership(time: Nanos, from: &mut PayloadCursor<'_>) -> Result<Record, MalformedPayload> {
    let mut snapshot = structure::<owners::WireOwnership<'_>>(from)?.at(time)?;
    structure::<owners::WireUnnamed>(from)?.add_to(&mut snapshot)?;
    structure::<owners::WireAutogradOutputs>(from)?.add_to(&mut snapshot);
    structure::<owners::WireOwnedBlocks>(from)?.add_to(&mut snapshot)?;
    if let Some(retained) = appended::<owners::WireRetained<'_>>(from)? {
        retained.add_to(&mut snapshot);
    }
    Ok(Record::Ownership(snapshot))
}

fn step(time: Nanos, from: &mut PayloadCursor<'_>) -> Result<Record, MalformedPayload> {
    let step = structure(from)?;
    let counted = structure::<records::WireStepOrigin>(from)?;
    let uncertainty = structure::<Option<u64>>(from)?.map(Nanos);
    let is_over = structure(from)?;
    Ok(Record::Step(TrainingStep { is_over, ..counted.at(time, step, uncertainty) }))
}

fn end(time: Nanos, from: &mut PayloadCursor<'_>) -> Result<Record, MalformedPayload> {
    let mut end = structure::<records::WireEnd<'_>>(from)?.at(time);
    let totals: Option<exact::WireEventTotals> = structure(from)?;
    end.totals.exact = totals.map(Into::into);
    let totals: Option<WireFollowTotals> = structure(from)?;
    end.totals.follow = totals.map(Into::into);
    if let Some(exact) = &mut end.totals.exact
        && let Some((native, lost)) = appended::<(u64, u64)>(from)?
    {
        (exact.native, exact.native_lost) = (native, lost);
    }
    end.totals.cost = appended::<WireJobCost>(from)?.map(Into::into);
    Ok(Record::End(end))
}

fn next_record<'a>(
    from: &mut PayloadCursor<'a>,
) -> Result<(u8, PayloadCursor<'a>), MalformedPayload> {
    let tag = from.byte()?;
    let length = usize::try_from(from.number()?).unwrap_or(usize::MAX);
    Ok((tag, PayloadCursor(from.bytes(length)?)))
}
