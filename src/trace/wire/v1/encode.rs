//! Encodes records into the current block's payload.

use thiserror::Error;

use super::blocks::BlocksState;
use super::counters::CountersState;
use super::events::EventsState;
use super::exact;
use super::follow_totals::WireFollowTotals;
use super::followed::WireFollowedState;
use super::followed_addresses;
use super::job_cost::WireJobCost;
use super::keyframe;
use super::oom_exception;
use super::owners;
use super::records::{self, WireBlockHead};
use super::sample::SampleState;
use super::varint::put;
use super::{BlockClock, MalformedPayload, tag};
use crate::model::{
    AllocationSite, AllocationSource, Definition, EventBatch, ExactSettings, FollowedChanges,
    Frame, Function, Keyframe, OomException, OwnershipBreakdown, Record, RecordingEnd,
    RecordingStart, SourceText, StackNode, StackSample, Thread, TrainingStep,
};
use crate::trace::block::MAX_PAYLOAD;

/// Why a trace cannot hold a record.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RejectedRecord {
    #[error("{what} {number} is defined where number {next} is due")]
    OutOfOrder { what: &'static str, number: u32, next: u32 },
    #[error("{what} {number} is used but was never defined")]
    Undefined { what: &'static str, number: u32 },
    #[error("a record of {bytes} bytes is too large for a trace (limit {MAX_PAYLOAD} bytes)")]
    TooLarge { bytes: usize },
    #[error("a record came after the recording's end")]
    AfterEnd,
    #[error("the record cannot be encoded: {why}")]
    Inexpressible { why: String },
}

impl From<MalformedPayload> for RejectedRecord {
    fn from(MalformedPayload(why): MalformedPayload) -> Self {
        RejectedRecord::Inexpressible { why: why.to_owned() }
    }
}

#[derive(Debug)]
pub(crate) struct RecordEncoder {
    payload: Vec<u8>,
    body: Vec<u8>,
    empty: usize,
    /// Of the next block.
    head: WireBlockHead,
    /// The random number.
    recording: u64,
    threads: u32,
    sites: u32,
    clock: BlockClock,
    sample: SampleState,
    counters: CountersState,
    blocks: BlocksState,
    events: EventsState,
    followed: WireFollowedState,
    ended: bool,
}

impl RecordEncoder {
    pub(crate) fn new(recording: u64) -> Result<Self, RejectedRecord> {
        let head = WireBlockHead {
            number: 0,
            records: 0,
            time: 0,
            period: 0,
            functions: 0,
            frames: 0,
            stacks: 0,
        };
        let mut encoder = RecordEncoder {
            payload: Vec::new(),
            body: Vec::new(),
            empty: 0,
            head,
            recording,
            threads: 0,
            sites: 0,
            clock: BlockClock::default(),
            sample: SampleState::default(),
            counters: CountersState::default(),
            blocks: BlocksState::default(),
            events: EventsState::default(),
            followed: WireFollowedState::default(),
            ended: false,
        };
        encoder.begin_block()?;
        Ok(encoder)
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.payload.len() == self.empty
    }

    /// Last recorded, in nanoseconds.
    pub(crate) fn time(&self) -> u64 {
        self.clock.last()
    }

    pub(crate) fn records(&self) -> u64 {
        self.head.records
    }

    /// Only definitions carry over.
    pub(crate) fn next_block(&mut self) -> Result<(), RejectedRecord> {
        self.head.number += 1;
        self.head.time = self.clock.last();
        self.begin_block()
    }

    fn begin_block(&mut self) -> Result<(), RejectedRecord> {
        self.clock = BlockClock::new(self.head.time, self.head.period);
        self.sample.reset();
        self.counters.reset();
        self.blocks.reset();
        self.events.reset();
        self.followed.reset();
        self.payload.clear();
        self.body.clear();
        put_struct(self.head, &mut self.body)?;
        put(&mut self.body, self.recording);
        self.append(tag::HEAD)?;
        self.empty = self.payload.len();
        Ok(())
    }

    /// On error the block keeps the earlier records.
    pub(crate) fn record(&mut self, record: &Record) -> Result<(), RejectedRecord> {
        if self.ended {
            return Err(RejectedRecord::AfterEnd);
        }
        self.body.clear();
        let tag = self.encode(record)?;
        self.append(tag)?;
        self.head.records += 1;
        Ok(())
    }

    fn append(&mut self, tag: u8) -> Result<(), RejectedRecord> {
        let bytes = self.body.len();
        // 16: the tag and the length.
        if self.payload.len() + bytes + 16 > MAX_PAYLOAD {
            return Err(RejectedRecord::TooLarge { bytes });
        }
        self.payload.push(tag);
        put(&mut self.payload, bytes as u64);
        self.payload.extend_from_slice(&self.body);
        Ok(())
    }

    fn encode(&mut self, record: &Record) -> Result<u8, RejectedRecord> {
        if let Some(time) = record.time()
            && !matches!(record, Record::Sample(_) | Record::Events(_) | Record::Followed(_))
        {
            put(&mut self.body, self.clock.encode(time.0));
        }
        let out = &mut self.body;
        match record {
            Record::Start(start) => self.start(start),
            Record::Runtime(runtime) => {
                put_record(tag::RUNTIME, records::WireRuntime::from(runtime), out)
            }
            Record::Definition(definition) => self.define(definition),
            Record::Source(source) => self.source(source),
            Record::Device(device) => {
                put_record(tag::DEVICE, records::WireDevice::from(device), out)
            }
            Record::Sample(sample) => self.sample(sample),
            Record::Counters { device, counters, .. } => {
                put(out, device.0.into());
                self.counters.encode(device.0, counters, out)?;
                Ok(tag::COUNTERS)
            }
            Record::Snapshot(snapshot) => {
                put(out, snapshot.device.0.into());
                self.blocks.encode(snapshot, out)?;
                Ok(tag::BLOCKS)
            }
            Record::Usage(usage) => {
                put_record(tag::USAGE, records::WireDeviceUsage::from(usage), out)
            }
            Record::Missed(missed) => {
                put_record(tag::MISSED, records::WireMissed::from(missed), out)
            }
            Record::ExactSettings(settings) => put_settings(settings, out),
            Record::Events(batch) => self.events(batch),
            Record::Followed(batch) => self.followed(batch),
            Record::CounterCheck(check) => {
                put_record(tag::RECONCILED, exact::WireCounterCheck::from(check), out)
            }
            Record::Ownership(snapshot) => put_ownership(snapshot, out),
            Record::Step(step) => put_step(step, out),
            Record::Keyframe(keyframe) => self.keyframe(keyframe),
            Record::TriggerFired(trigger) => {
                put_record(tag::TRIGGERED, keyframe::WireTriggerFired::from(trigger), out)
            }
            Record::OomException(exception) => self.oom_exception(exception),
            Record::Gap(gap) => put_record(tag::GAP, records::WireGap::from(gap), out),
            Record::End(end) => self.end(end),
        }
    }

    fn start(&mut self, start: &RecordingStart) -> Result<u8, RejectedRecord> {
        self.head.period = 1_000_000_000u64.checked_div(start.rate.into()).unwrap_or(0);
        put_struct(records::WireStart::from(start), &mut self.body)?;
        put_record(tag::START, start.rank, &mut self.body)
    }

    fn source(&mut self, source: &SourceText) -> Result<u8, RejectedRecord> {
        used("function", source.function.0, self.head.functions)?;
        let source = records::WireSource {
            function: source.function.0,
            first_line: source.first_line,
            text: &source.text,
        };
        put_record(tag::SOURCE, source, &mut self.body)
    }

    fn events(&mut self, batch: &EventBatch) -> Result<u8, RejectedRecord> {
        for site in batch.events.iter().filter_map(|event| event.site) {
            used("site", site.0, self.sites)?;
        }
        self.events.encode(&batch.events, &mut self.clock, &mut self.body)?;
        Ok(tag::EVENTS)
    }

    fn followed(&mut self, batch: &FollowedChanges) -> Result<u8, RejectedRecord> {
        for thread in batch.changes.iter().flat_map(|change| &change.threads) {
            used("thread", thread.thread.0, self.threads)?;
            for reading in thread.sides() {
                reading.stack().map_or(Ok(()), |s| used("stack", s.0, self.head.stacks))?;
            }
        }
        self.followed.encode(&batch.changes, &mut self.clock, &mut self.body)?;
        if followed_addresses::any(&batch.changes) {
            followed_addresses::encode(&batch.changes, &mut self.body)?;
            Ok(tag::FOLLOWED_AT)
        } else {
            Ok(tag::FOLLOWED)
        }
    }

    fn keyframe(&mut self, keyframe: &Keyframe) -> Result<u8, RejectedRecord> {
        for allocation_source in &keyframe.allocation_sources {
            self.source_is_defined(allocation_source)?;
        }
        keyframe::encode(keyframe, &mut self.body)?;
        Ok(tag::KEYFRAME)
    }

    fn oom_exception(&mut self, exception: &OomException) -> Result<u8, RejectedRecord> {
        if let Some(error) = &exception.error {
            error.thread.map_or(Ok(()), |t| used("thread", t.0, self.threads))?;
            error.stack.map_or(Ok(()), |s| used("stack", s.0, self.head.stacks))?;
        }
        put_record(tag::THROWN, oom_exception::WireOomException::from(exception), &mut self.body)
    }

    fn end(&mut self, end: &RecordingEnd) -> Result<u8, RejectedRecord> {
        let out = &mut self.body;
        put_struct(records::WireEnd::from(end), out)?;
        put_struct(end.totals.exact.as_ref().map(exact::WireEventTotals::from), out)?;
        put_struct(end.totals.follow.as_ref().map(WireFollowTotals::from), out)?;
        if let Some(totals) = &end.totals.exact
            && ((totals.native, totals.native_lost) != (0, 0) || end.totals.cost.is_some())
        {
            put_struct((totals.native, totals.native_lost), out)?;
        }
        if let Some(cost) = &end.totals.cost {
            put_struct(WireJobCost::from(cost), out)?;
        }
        self.ended = true;
        Ok(tag::END)
    }

    fn source_is_defined(
        &self,
        allocation_source: &AllocationSource,
    ) -> Result<(), RejectedRecord> {
        match allocation_source {
            AllocationSource::Site(site) => used("site", site.0, self.sites),
            AllocationSource::Observed { shares, .. } => {
                shares.iter().filter_map(|share| share.by).try_for_each(|(thread, stack)| {
                    used("thread", thread.0, self.threads)?;
                    used("stack", stack.0, self.head.stacks)
                })
            }
            AllocationSource::Before
            | AllocationSource::BeforeOwned(_)
            | AllocationSource::NoEvent
            | AllocationSource::Lost
            | AllocationSource::NotTaken => Ok(()),
        }
    }

    fn sample(&mut self, sample: &StackSample) -> Result<u8, RejectedRecord> {
        for entry in &sample.threads {
            used("thread", entry.thread.0, self.threads)?;
            used("stack", entry.stack.0, self.head.stacks)?;
        }
        put(&mut self.body, self.clock.encode_sample(sample.time.0));
        Ok(self.sample.encode(&sample.threads, &mut self.body))
    }

    fn define(&mut self, definition: &Definition) -> Result<u8, RejectedRecord> {
        match definition {
            Definition::Function(id, function) => self.define_function(id.0, function),
            Definition::Frame(id, frame) => self.define_frame(id.0, frame),
            Definition::Stack(id, node) => self.define_stack(id.0, node),
            Definition::Thread(id, thread) => self.define_thread(id.0, thread),
            Definition::Reset => Err(RejectedRecord::Inexpressible {
                why: "numbers do not restart within a trace".to_owned(),
            }),
            Definition::Site(id, site) => self.define_site(id.0, site),
        }
    }

    fn define_function(&mut self, number: u32, function: &Function) -> Result<u8, RejectedRecord> {
        let Function { name, file, first_line, last_line, is_native } = function;
        let function =
            records::WireFunction { name, file, first_line: *first_line, last_line: *last_line };
        put_struct(function, &mut self.body)?;
        if *is_native {
            put_struct(true, &mut self.body)?;
        }
        next("function", number, &mut self.head.functions)?;
        Ok(tag::FUNCTION)
    }

    fn define_frame(&mut self, number: u32, frame: &Frame) -> Result<u8, RejectedRecord> {
        used("function", frame.function.0, self.head.functions)?;
        let frame = records::WireFrame { function: frame.function.0, line: frame.line };
        put_struct(frame, &mut self.body)?;
        next("frame", number, &mut self.head.frames)?;
        Ok(tag::FRAME)
    }

    fn define_stack(&mut self, number: u32, node: &StackNode) -> Result<u8, RejectedRecord> {
        used("frame", node.frame.0, self.head.frames)?;
        if let Some(parent) = node.parent {
            used("stack", parent.0, self.head.stacks)?;
        }
        let stack = records::WireStack { parent: node.parent.map(|p| p.0), frame: node.frame.0 };
        put_struct(stack, &mut self.body)?;
        if let Some(module) = node.module {
            used("function", module.0, self.head.functions)?;
            put_struct(module.0, &mut self.body)?;
        }
        next("stack", number, &mut self.head.stacks)?;
        Ok(tag::STACK)
    }

    fn define_thread(&mut self, number: u32, thread: &Thread) -> Result<u8, RejectedRecord> {
        // A known thread may get a new name; a new one must have the next number.
        if number >= self.threads {
            next("thread", number, &mut self.threads)?;
        }
        let thread = records::WireThread {
            number,
            os_id: thread.os_id,
            python_id: thread.python_id,
            name: thread.name.as_deref(),
            main: thread.main,
        };
        put_record(tag::THREAD, thread, &mut self.body)
    }

    fn define_site(&mut self, number: u32, site: &AllocationSite) -> Result<u8, RejectedRecord> {
        used("thread", site.thread.0, self.threads)?;
        let stacks = [site.stack, site.forward, site.native.stack()];
        for stack in stacks.into_iter().flatten() {
            used("stack", stack.0, self.head.stacks)?;
        }
        put_struct(exact::WireAllocationSite::new(number, site), &mut self.body)?;
        if let Some(native) = exact::wire_native(site.native) {
            put_struct(native, &mut self.body)?;
        }
        next("site", number, &mut self.sites)?;
        Ok(tag::SITE)
    }
}

fn put_settings(settings: &ExactSettings, out: &mut Vec<u8>) -> Result<u8, RejectedRecord> {
    put_struct(exact::WireExactSettings::from(settings), out)?;
    put_struct(settings.knows_backward, out)?;
    put_struct(settings.starts_empty, out)?;
    // Absent fields keep the trace as earlier versions wrote it.
    if let Some(native_from) = settings.native_from {
        put_struct(native_from, out)?;
    }
    Ok(tag::EXACT)
}

fn put_ownership(snapshot: &OwnershipBreakdown, out: &mut Vec<u8>) -> Result<u8, RejectedRecord> {
    put_struct(owners::WireOwnership::from(snapshot), out)?;
    put_struct(owners::WireUnnamed::new(snapshot), out)?;
    put_struct(owners::WireAutogradOutputs::new(snapshot), out)?;
    put_struct(owners::WireOwnedBlocks::new(snapshot), out)?;
    // Absent fields keep the trace as earlier versions wrote it.
    if !snapshot.retained.is_empty() {
        put_struct(owners::WireRetained::new(snapshot), out)?;
    }
    Ok(tag::OWNERS)
}

fn put_step(step: &TrainingStep, out: &mut Vec<u8>) -> Result<u8, RejectedRecord> {
    put(out, step.step);
    put_struct(records::WireStepOrigin::from(*step), out)?;
    put_struct(step.uncertainty.map(|within| within.0), out)?;
    put_record(tag::STEP, step.is_over, out)
}

/// Puts the last or only part of a record, and returns the record's tag.
fn put_record(
    tag: u8,
    value: impl bincode::Encode,
    out: &mut Vec<u8>,
) -> Result<u8, RejectedRecord> {
    put_struct(value, out)?;
    Ok(tag)
}

fn put_struct(value: impl bincode::Encode, out: &mut Vec<u8>) -> Result<(), RejectedRecord> {
    bincode::encode_into_std_write(value, out, bincode::config::standard())
        .map(drop)
        .map_err(|error| RejectedRecord::Inexpressible { why: error.to_string() })
}

fn used(what: &'static str, number: u32, defined: u32) -> Result<(), RejectedRecord> {
    if number < defined { Ok(()) } else { Err(RejectedRecord::Undefined { what, number }) }
}

fn next(what: &'static str, number: u32, defined: &mut u32) -> Result<(), RejectedRecord> {
    if number != *defined {
        return Err(RejectedRecord::OutOfOrder { what, number, next: *defined });
    }
    *defined += 1;
    Ok(())
}
