//! Encodes records into the current block's payload.

use thiserror::Error;

use super::blocks::BlocksState;
use super::counters::CountersState;
use super::events::EventsState;
use super::exact;
use super::follow_totals::WireFollowTotals;
use super::followed::WireFollowedState;
use super::followed_addresses;
use super::keyframe;
use super::oom_exception;
use super::owners;
use super::records::{self, WireBlockHead};
use super::sample::SampleState;
use super::varint::put;
use super::{BlockClock, MalformedPayload, tag};
use crate::model::{AllocationSource, Definition, Function, Record, SiteId, StackSample, ThreadId};
use crate::trace::block::MAX_PAYLOAD;

/// Why a trace cannot hold a record: source of an `io::Error` of kind `InvalidInput`.
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
        let out = &mut self.body;
        if let Some(time) = record.time()
            && !matches!(record, Record::Sample(_) | Record::Events(_) | Record::Followed(_))
        {
            put(out, self.clock.encode(time.0));
        }
        Ok(match record {
            Record::Start(start) => {
                self.head.period = 1_000_000_000u64.checked_div(start.rate.into()).unwrap_or(0);
                put_struct(records::WireStart::from(start), out)?;
                put_struct(start.rank, out)?;
                tag::START
            }
            Record::Runtime(runtime) => {
                put_struct(records::WireRuntime::from(runtime), out)?;
                tag::RUNTIME
            }
            Record::Definition(definition) => self.define(definition)?,
            Record::Source(source) => {
                used("function", source.function.0, self.head.functions)?;
                let source = records::WireSource {
                    function: source.function.0,
                    first_line: source.first_line,
                    text: &source.text,
                };
                put_struct(source, out)?;
                tag::SOURCE
            }
            Record::Device(device) => {
                put_struct(records::WireDevice::from(device), out)?;
                tag::DEVICE
            }
            Record::Sample(sample) => self.sample(sample)?,
            Record::Counters { device, counters, .. } => {
                put(out, device.0.into());
                self.counters.encode(device.0, counters, out)?;
                tag::COUNTERS
            }
            Record::Snapshot(snapshot) => {
                put(out, snapshot.device.0.into());
                self.blocks.encode(snapshot, out)?;
                tag::BLOCKS
            }
            Record::Usage(usage) => {
                put_struct(records::WireDeviceUsage::from(usage), out)?;
                tag::USAGE
            }
            Record::Missed(missed) => {
                put_struct(records::WireMissed::from(missed), out)?;
                tag::MISSED
            }
            Record::ExactSettings(what) => {
                put_struct(exact::WireExactSettings::from(what), out)?;
                put_struct(what.knows_backward, out)?;
                put_struct(what.starts_empty, out)?;
                // Absent fields keep the form of earlier versions.
                if let Some(native_from) = what.native_from {
                    put_struct(native_from, out)?;
                }
                tag::EXACT
            }
            Record::Events(batch) => {
                for site in batch.events.iter().filter_map(|event| event.site) {
                    used("site", site.0, self.sites)?;
                }
                self.events.encode(&batch.events, &mut self.clock, out)?;
                tag::EVENTS
            }
            Record::Followed(batch) => {
                for thread in batch.changes.iter().flat_map(|change| &change.threads) {
                    used("thread", thread.thread.0, self.threads)?;
                    for reading in thread.sides() {
                        reading.stack().map_or(Ok(()), |s| used("stack", s.0, self.head.stacks))?;
                    }
                }
                self.followed.encode(&batch.changes, &mut self.clock, out)?;
                if followed_addresses::any(&batch.changes) {
                    followed_addresses::encode(&batch.changes, out)?;
                    tag::FOLLOWED_AT
                } else {
                    tag::FOLLOWED
                }
            }
            Record::CounterCheck(counter_check) => {
                put_struct(exact::WireCounterCheck::from(counter_check), out)?;
                tag::RECONCILED
            }
            Record::Ownership(snapshot) => {
                put_struct(owners::WireOwnership::from(snapshot), out)?;
                put_struct(owners::WireUnnamed::new(snapshot), out)?;
                put_struct(owners::WireAutogradOutputs::new(snapshot), out)?;
                put_struct(owners::WireOwnedBlocks::new(snapshot), out)?;
                tag::OWNERS
            }
            Record::Step(step) => {
                put(out, step.step);
                put_struct(records::WireStepOrigin::from(*step), out)?;
                put_struct(step.uncertainty.map(|within| within.0), out)?;
                put_struct(step.is_over, out)?;
                tag::STEP
            }
            Record::Keyframe(what) => {
                for allocation_source in &what.allocation_sources {
                    self.source_is_defined(allocation_source)?;
                }
                keyframe::encode(what, &mut self.body)?;
                tag::KEYFRAME
            }
            Record::TriggerFired(what) => {
                put_struct(keyframe::WireTriggerFired::from(what), out)?;
                tag::TRIGGERED
            }
            Record::OomException(what) => {
                if let Some(error) = &what.error {
                    error.thread.map_or(Ok(()), |t| used("thread", t.0, self.threads))?;
                    error.stack.map_or(Ok(()), |s| used("stack", s.0, self.head.stacks))?;
                }
                put_struct(oom_exception::WireOomException::from(what), out)?;
                tag::THROWN
            }
            Record::Gap(gap) => {
                put_struct(records::WireGap::from(gap), out)?;
                tag::GAP
            }
            Record::End(end) => {
                put_struct(records::WireEnd::from(end), out)?;
                put_struct(end.totals.exact.as_ref().map(exact::WireEventTotals::from), out)?;
                put_struct(end.totals.follow.as_ref().map(WireFollowTotals::from), out)?;
                if let Some(totals) = &end.totals.exact
                    && (totals.native, totals.native_lost) != (0, 0)
                {
                    put_struct((totals.native, totals.native_lost), out)?;
                }
                self.ended = true;
                tag::END
            }
        })
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
        let out = &mut self.body;
        let head = &mut self.head;
        match definition {
            Definition::Function(id, function) => {
                let Function { name, file, first_line, last_line, is_native } = function;
                let function = records::WireFunction {
                    name,
                    file,
                    first_line: *first_line,
                    last_line: *last_line,
                };
                put_struct(function, out)?;
                if *is_native {
                    put_struct(true, out)?;
                }
                next("function", id.0, &mut head.functions)?;
                Ok(tag::FUNCTION)
            }
            Definition::Frame(id, frame) => {
                used("function", frame.function.0, head.functions)?;
                let frame = records::WireFrame { function: frame.function.0, line: frame.line };
                put_struct(frame, out)?;
                next("frame", id.0, &mut head.frames)?;
                Ok(tag::FRAME)
            }
            Definition::Stack(id, node) => {
                used("frame", node.frame.0, head.frames)?;
                if let Some(parent) = node.parent {
                    used("stack", parent.0, head.stacks)?;
                }
                let stack =
                    records::WireStack { parent: node.parent.map(|p| p.0), frame: node.frame.0 };
                put_struct(stack, out)?;
                next("stack", id.0, &mut head.stacks)?;
                Ok(tag::STACK)
            }
            Definition::Thread(ThreadId(number), thread) => {
                // A known thread may get a new name; a new one must have the next number.
                if *number >= self.threads {
                    next("thread", *number, &mut self.threads)?;
                }
                let thread = records::WireThread {
                    number: *number,
                    os_id: thread.os_id,
                    python_id: thread.python_id,
                    name: thread.name.as_deref(),
                    main: thread.main,
                };
                put_struct(thread, out)?;
                Ok(tag::THREAD)
            }
            Definition::Reset => Err(RejectedRecord::Inexpressible {
                why: "numbers do not restart within a trace".to_owned(),
            }),
            Definition::Site(SiteId(number), site) => {
                used("thread", site.thread.0, self.threads)?;
                let stacks = [site.stack, site.forward, site.native.stack()];
                for stack in stacks.into_iter().flatten() {
                    used("stack", stack.0, head.stacks)?;
                }
                put_struct(exact::WireAllocationSite::new(*number, site), out)?;
                if let Some(native) = exact::wire_native(site.native) {
                    put_struct(native, out)?;
                }
                next("site", *number, &mut self.sites)?;
                Ok(tag::SITE)
            }
        }
    }
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
