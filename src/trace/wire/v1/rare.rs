//! The records that are written once or now and then, as bincode structs.
//!
//! The structs borrow from what they are written from and read into, so one definition serves both
//! directions. Fields may be appended in a later version, never removed or changed.

use bincode::{BorrowDecode, Encode};

use crate::model;

/// What stands first in every block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, BorrowDecode)]
pub(crate) struct Head {
    pub(crate) number: u64,
    pub(crate) records: u64,
    pub(crate) time: u64,
    pub(crate) period: u64,
    pub(crate) functions: u32,
    pub(crate) frames: u32,
    pub(crate) stacks: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Start<'a> {
    memspy: &'a str,
    pid: u32,
    host: &'a str,
    command: Vec<&'a str>,
    directory: Option<&'a str>,
    unix_nanos: u64,
    rate: u32,
}

impl<'a> From<&'a model::Start> for Start<'a> {
    fn from(start: &'a model::Start) -> Self {
        Start {
            memspy: &start.memspy,
            pid: start.pid,
            host: &start.host,
            command: start.command.iter().map(String::as_str).collect(),
            directory: start.directory.as_deref(),
            unix_nanos: start.unix_nanos,
            rate: start.rate,
        }
    }
}

impl Start<'_> {
    /// The record this stands for; the rank follows it, in files that have one.
    pub(crate) fn of_rank(self, rank: Option<u32>) -> model::Start {
        let start = self;
        model::Start {
            memspy: start.memspy.to_owned(),
            pid: start.pid,
            host: start.host.to_owned(),
            command: start.command.into_iter().map(str::to_owned).collect(),
            directory: start.directory.map(str::to_owned),
            unix_nanos: start.unix_nanos,
            rate: start.rate,
            rank,
        }
    }
}

#[derive(Encode, BorrowDecode)]
enum Backend<'a> {
    NotLoaded,
    NotInitialized,
    Native,
    CudaMallocAsync,
    Pluggable(&'a str),
    Unknown(&'a str),
}

/// Its time goes before it, relative to the block's clock; so with all records below.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Runtime<'a> {
    python: Option<&'a str>,
    torch: Option<&'a str>,
    allocator: Backend<'a>,
}

impl<'a> From<&'a model::Runtime> for Runtime<'a> {
    fn from(runtime: &'a model::Runtime) -> Self {
        use model::AllocatorBackend as From;
        Runtime {
            python: runtime.python.as_deref(),
            torch: runtime.torch.as_deref(),
            allocator: match &runtime.allocator {
                From::NotLoaded => Backend::NotLoaded,
                From::NotInitialized => Backend::NotInitialized,
                From::Native => Backend::Native,
                From::CudaMallocAsync => Backend::CudaMallocAsync,
                From::Pluggable(name) => Backend::Pluggable(name),
                From::Unknown(what) => Backend::Unknown(what),
            },
        }
    }
}

impl Runtime<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> model::Runtime {
        use model::AllocatorBackend as To;
        model::Runtime {
            time,
            python: self.python.map(str::to_owned),
            torch: self.torch.map(str::to_owned),
            allocator: match self.allocator {
                Backend::NotLoaded => To::NotLoaded,
                Backend::NotInitialized => To::NotInitialized,
                Backend::Native => To::Native,
                Backend::CudaMallocAsync => To::CudaMallocAsync,
                Backend::Pluggable(name) => To::Pluggable(name.to_owned()),
                Backend::Unknown(what) => To::Unknown(what.to_owned()),
            },
        }
    }
}

/// Its number is its place: the first of a block has the head's `functions`; so with frames and stacks.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) file: &'a str,
    pub(crate) first_line: u32,
    pub(crate) last_line: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Frame {
    pub(crate) function: u32,
    pub(crate) line: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Stack {
    pub(crate) parent: Option<u32>,
    pub(crate) frame: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Thread<'a> {
    pub(crate) number: u32,
    pub(crate) os_id: Option<u64>,
    pub(crate) python_id: u64,
    pub(crate) name: Option<&'a str>,
    pub(crate) main: bool,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Source<'a> {
    pub(crate) function: u32,
    pub(crate) first_line: u32,
    pub(crate) text: &'a str,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Device<'a> {
    cuda_index: Option<u32>,
    nvml_index: Option<u32>,
    uuid: Option<&'a str>,
    pci_bus_id: Option<&'a str>,
    name: Option<&'a str>,
    total: Option<u64>,
}

impl<'a> From<&'a model::Device> for Device<'a> {
    fn from(device: &'a model::Device) -> Self {
        Device {
            cuda_index: device.cuda_index.map(|i| i.0),
            nvml_index: device.nvml_index,
            uuid: device.uuid.as_deref(),
            pci_bus_id: device.pci_bus_id.as_deref(),
            name: device.name.as_deref(),
            total: device.total,
        }
    }
}

impl From<Device<'_>> for model::Device {
    fn from(device: Device<'_>) -> Self {
        model::Device {
            cuda_index: device.cuda_index.map(model::CudaIndex),
            nvml_index: device.nvml_index,
            uuid: device.uuid.map(str::to_owned),
            pci_bus_id: device.pci_bus_id.map(str::to_owned),
            name: device.name.map(str::to_owned),
            total: device.total,
        }
    }
}

#[derive(Encode, BorrowDecode)]
enum ProcessUsage<'a> {
    Bytes(u64),
    Unknown(&'a str),
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Usage<'a> {
    nvml_index: u32,
    total: u64,
    used: u64,
    free: u64,
    reserved: Option<u64>,
    process: ProcessUsage<'a>,
}

impl<'a> From<&'a model::DeviceUsage> for Usage<'a> {
    fn from(usage: &'a model::DeviceUsage) -> Self {
        Usage {
            nvml_index: usage.nvml_index,
            total: usage.total,
            used: usage.used,
            free: usage.free,
            reserved: usage.reserved,
            process: match &usage.process {
                model::ProcessUsage::Bytes(bytes) => ProcessUsage::Bytes(*bytes),
                model::ProcessUsage::Unknown(why) => ProcessUsage::Unknown(why),
            },
        }
    }
}

impl Usage<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> model::DeviceUsage {
        model::DeviceUsage {
            time,
            nvml_index: self.nvml_index,
            total: self.total,
            used: self.used,
            free: self.free,
            reserved: self.reserved,
            process: match self.process {
                ProcessUsage::Bytes(bytes) => model::ProcessUsage::Bytes(bytes),
                ProcessUsage::Unknown(why) => model::ProcessUsage::Unknown(why.to_owned()),
            },
        }
    }
}

#[derive(Encode, BorrowDecode)]
enum Reader {
    Stacks,
    Counters,
    Blocks,
    Gpu,
    Events,
    Holders,
}

#[derive(Encode, BorrowDecode)]
enum Why<'a> {
    Torn,
    Late,
    Failed(&'a str),
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct Missed<'a> {
    reader: Reader,
    why: Why<'a>,
    count: u64,
}

impl<'a> From<&'a model::Missed> for Missed<'a> {
    fn from(missed: &'a model::Missed) -> Self {
        Missed {
            reader: match missed.reader {
                model::ReaderKind::Stacks => Reader::Stacks,
                model::ReaderKind::Counters => Reader::Counters,
                model::ReaderKind::Blocks => Reader::Blocks,
                model::ReaderKind::Gpu => Reader::Gpu,
                model::ReaderKind::Events => Reader::Events,
                model::ReaderKind::Holders => Reader::Holders,
            },
            why: match &missed.why {
                model::MissedWhy::Torn => Why::Torn,
                model::MissedWhy::Late => Why::Late,
                model::MissedWhy::Failed(why) => Why::Failed(why),
            },
            count: missed.count,
        }
    }
}

impl Missed<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> model::Missed {
        model::Missed {
            time,
            reader: match self.reader {
                Reader::Stacks => model::ReaderKind::Stacks,
                Reader::Counters => model::ReaderKind::Counters,
                Reader::Blocks => model::ReaderKind::Blocks,
                Reader::Gpu => model::ReaderKind::Gpu,
                Reader::Events => model::ReaderKind::Events,
                Reader::Holders => model::ReaderKind::Holders,
            },
            why: match self.why {
                Why::Torn => model::MissedWhy::Torn,
                Why::Late => model::MissedWhy::Late,
                Why::Failed(why) => model::MissedWhy::Failed(why.to_owned()),
            },
            count: self.count,
        }
    }
}

#[derive(Encode, BorrowDecode)]
enum Reason<'a> {
    Duration,
    Interrupted,
    TargetExited,
    TargetExecuted,
    Failed(&'a str),
    Condition(&'a str),
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct End<'a> {
    reason: Reason<'a>,
    ticks: u64,
    late: u64,
    stacks: u64,
    torn: u64,
    maps_consistent: u64,
    maps_degraded: u64,
}

impl<'a> From<&'a model::End> for End<'a> {
    fn from(end: &'a model::End) -> Self {
        End {
            reason: match &end.reason {
                model::EndReason::Duration => Reason::Duration,
                model::EndReason::Interrupted => Reason::Interrupted,
                model::EndReason::TargetExited => Reason::TargetExited,
                model::EndReason::TargetExecuted => Reason::TargetExecuted,
                model::EndReason::Failed(why) => Reason::Failed(why),
                model::EndReason::Condition(what) => Reason::Condition(what),
            },
            ticks: end.totals.ticks,
            late: end.totals.late,
            stacks: end.totals.stacks,
            torn: end.totals.torn,
            maps_consistent: end.totals.maps_consistent,
            maps_degraded: end.totals.maps_degraded,
        }
    }
}

impl End<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> model::End {
        model::End {
            time,
            reason: match self.reason {
                Reason::Duration => model::EndReason::Duration,
                Reason::Interrupted => model::EndReason::Interrupted,
                Reason::TargetExited => model::EndReason::TargetExited,
                Reason::TargetExecuted => model::EndReason::TargetExecuted,
                Reason::Failed(why) => model::EndReason::Failed(why.to_owned()),
                Reason::Condition(what) => model::EndReason::Condition(what.to_owned()),
            },
            totals: model::Totals {
                ticks: self.ticks,
                late: self.late,
                stacks: self.stacks,
                torn: self.torn,
                maps_consistent: self.maps_consistent,
                maps_degraded: self.maps_degraded,
                exact: None,
            },
        }
    }
}

/// What follows the steps of a [`model::Step`]; files older than it end there.
#[derive(Encode, BorrowDecode)]
pub(crate) struct CountedBy {
    epoch: Option<u64>,
    clock: Clock,
}

#[derive(Encode, BorrowDecode)]
enum Clock {
    Optimizer,
    Variable,
    Trainer,
    Scheduler,
}

impl From<model::Step> for CountedBy {
    fn from(step: model::Step) -> Self {
        let clock = match step.clock {
            model::StepClock::Optimizer => Clock::Optimizer,
            model::StepClock::Variable => Clock::Variable,
            model::StepClock::Trainer => Clock::Trainer,
            model::StepClock::Scheduler => Clock::Scheduler,
        };
        CountedBy { epoch: step.epoch, clock }
    }
}

impl CountedBy {
    /// The record this stands for; how exactly it was seen follows, in files that have it.
    pub(crate) fn at(
        self,
        time: model::Nanos,
        step: u64,
        within: Option<model::Nanos>,
    ) -> model::Step {
        let clock = match self.clock {
            Clock::Optimizer => model::StepClock::Optimizer,
            Clock::Variable => model::StepClock::Variable,
            Clock::Trainer => model::StepClock::Trainer,
            Clock::Scheduler => model::StepClock::Scheduler,
        };
        model::Step { time, step, epoch: self.epoch, clock, within, is_over: false }
    }
}
/// A stretch that is missing; its end goes before it as the time.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Gap<'a> {
    from: u64,
    why: &'a str,
}

impl<'a> From<&'a model::Gap> for Gap<'a> {
    fn from(gap: &'a model::Gap) -> Self {
        Gap { from: gap.from.0, why: &gap.why }
    }
}

impl Gap<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: model::Nanos) -> model::Gap {
        model::Gap { from: model::Nanos(self.from), to: time, why: self.why.to_owned() }
    }
}
