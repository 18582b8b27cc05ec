//! Rare records, as bincode structs. Later versions may append fields, never remove or change them.
//!
//! The structs borrow, so each serves encoding and decoding.

use bincode::{BorrowDecode, Encode};

use super::MalformedPayload;
use super::varint::PayloadCursor;
use crate::model;
use crate::trace::block::MAX_PAYLOAD;

/// Ignores fields appended by later writers.
pub(super) fn structure<'a, T: bincode::BorrowDecode<'a, ()>>(
    from: &mut PayloadCursor<'a>,
) -> Result<T, MalformedPayload> {
    // A false length must not cause an allocation.
    let config = bincode::config::standard().with_limit::<MAX_PAYLOAD>();
    match bincode::borrow_decode_from_slice(from.0, config) {
        Ok((value, length)) => {
            from.bytes(length)?;
            Ok(value)
        }
        Err(_) => Err(MalformedPayload("a record's fields cannot be read")),
    }
}

/// Optional fields at a record's end.
pub(super) fn appended<'a, T: bincode::BorrowDecode<'a, ()>>(
    from: &mut PayloadCursor<'a>,
) -> Result<Option<T>, MalformedPayload> {
    if from.is_empty() { Ok(None) } else { structure(from).map(Some) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, BorrowDecode)]
pub(crate) struct WireBlockHead {
    pub(crate) number: u64,
    pub(crate) records: u64,
    pub(crate) time: u64,
    pub(crate) period: u64,
    pub(crate) functions: u32,
    pub(crate) frames: u32,
    pub(crate) stacks: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireStart<'a> {
    memspy: &'a str,
    pid: u32,
    host: &'a str,
    command: Vec<&'a str>,
    directory: Option<&'a str>,
    unix_nanos: u64,
    rate: u32,
}

impl<'a> From<&'a model::RecordingStart> for WireStart<'a> {
    fn from(start: &'a model::RecordingStart) -> Self {
        WireStart {
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

impl WireStart<'_> {
    /// The rank follows it, in newer files.
    pub(crate) fn of_rank(self, rank: Option<u32>) -> model::RecordingStart {
        let start = self;
        model::RecordingStart {
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
enum WireBackend<'a> {
    NotLoaded,
    NotInitialized,
    Native,
    CudaMallocAsync,
    Pluggable(&'a str),
    Unknown(&'a str),
}

/// Its time precedes it, as in every record below: a difference on the block's clock.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireRuntime<'a> {
    python: Option<&'a str>,
    torch: Option<&'a str>,
    allocator: WireBackend<'a>,
}

impl<'a> From<&'a model::TargetRuntime> for WireRuntime<'a> {
    fn from(runtime: &'a model::TargetRuntime) -> Self {
        use model::AllocatorBackend as From;
        WireRuntime {
            python: runtime.python.as_deref(),
            torch: runtime.torch.as_deref(),
            allocator: match &runtime.allocator {
                From::NotLoaded => WireBackend::NotLoaded,
                From::NotInitialized => WireBackend::NotInitialized,
                From::Native => WireBackend::Native,
                From::CudaMallocAsync => WireBackend::CudaMallocAsync,
                From::Pluggable(name) => WireBackend::Pluggable(name),
                From::Unknown(what) => WireBackend::Unknown(what),
            },
        }
    }
}

impl WireRuntime<'_> {
    pub(crate) fn at(self, time: model::Nanos) -> model::TargetRuntime {
        use model::AllocatorBackend as To;
        model::TargetRuntime {
            time,
            python: self.python.map(str::to_owned),
            torch: self.torch.map(str::to_owned),
            allocator: match self.allocator {
                WireBackend::NotLoaded => To::NotLoaded,
                WireBackend::NotInitialized => To::NotInitialized,
                WireBackend::Native => To::Native,
                WireBackend::CudaMallocAsync => To::CudaMallocAsync,
                WireBackend::Pluggable(name) => To::Pluggable(name.to_owned()),
                WireBackend::Unknown(what) => To::Unknown(what.to_owned()),
            },
        }
    }
}

/// Numbered by position: a block's first has the head's `functions`. Frames and stacks likewise.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireFunction<'a> {
    pub(crate) name: &'a str,
    pub(crate) file: &'a str,
    pub(crate) first_line: u32,
    pub(crate) last_line: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireFrame {
    pub(crate) function: u32,
    pub(crate) line: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireStack {
    pub(crate) parent: Option<u32>,
    pub(crate) frame: u32,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireThread<'a> {
    pub(crate) number: u32,
    pub(crate) os_id: Option<u64>,
    pub(crate) python_id: u64,
    pub(crate) name: Option<&'a str>,
    pub(crate) main: bool,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireSource<'a> {
    pub(crate) function: u32,
    pub(crate) first_line: u32,
    pub(crate) text: &'a str,
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireDevice<'a> {
    cuda_index: Option<u32>,
    nvml_index: Option<u32>,
    uuid: Option<&'a str>,
    pci_bus_id: Option<&'a str>,
    name: Option<&'a str>,
    total: Option<u64>,
}

impl<'a> From<&'a model::GpuDevice> for WireDevice<'a> {
    fn from(device: &'a model::GpuDevice) -> Self {
        WireDevice {
            cuda_index: device.cuda_index.map(|i| i.0),
            nvml_index: device.nvml_index,
            uuid: device.uuid.as_deref(),
            pci_bus_id: device.pci_bus_id.as_deref(),
            name: device.name.as_deref(),
            total: device.total,
        }
    }
}

impl From<WireDevice<'_>> for model::GpuDevice {
    fn from(device: WireDevice<'_>) -> Self {
        model::GpuDevice {
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
enum WireProcessUsage<'a> {
    Bytes(u64),
    Unknown(&'a str),
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireDeviceUsage<'a> {
    nvml_index: u32,
    total: u64,
    used: u64,
    free: u64,
    reserved: Option<u64>,
    process: WireProcessUsage<'a>,
}

impl<'a> From<&'a model::DeviceUsage> for WireDeviceUsage<'a> {
    fn from(usage: &'a model::DeviceUsage) -> Self {
        WireDeviceUsage {
            nvml_index: usage.nvml_index,
            total: usage.total,
            used: usage.used,
            free: usage.free,
            reserved: usage.reserved,
            process: match &usage.process {
                model::ProcessUsage::Bytes(bytes) => WireProcessUsage::Bytes(*bytes),
                model::ProcessUsage::Unknown(why) => WireProcessUsage::Unknown(why),
            },
        }
    }
}

impl WireDeviceUsage<'_> {
    pub(crate) fn at(self, time: model::Nanos) -> model::DeviceUsage {
        model::DeviceUsage {
            time,
            nvml_index: self.nvml_index,
            total: self.total,
            used: self.used,
            free: self.free,
            reserved: self.reserved,
            process: match self.process {
                WireProcessUsage::Bytes(bytes) => model::ProcessUsage::Bytes(bytes),
                WireProcessUsage::Unknown(why) => model::ProcessUsage::Unknown(why.to_owned()),
            },
        }
    }
}

#[derive(Encode, BorrowDecode)]
enum WireReaderKind {
    Stacks,
    Counters,
    Snapshots,
    Gpu,
    Events,
    Owners,
}

#[derive(Encode, BorrowDecode)]
enum WireMissReason<'a> {
    Torn,
    Late,
    Failed(&'a str),
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireMissed<'a> {
    reader: WireReaderKind,
    why: WireMissReason<'a>,
    count: u64,
}

impl<'a> From<&'a model::MissedObservation> for WireMissed<'a> {
    fn from(missed: &'a model::MissedObservation) -> Self {
        WireMissed {
            reader: match missed.reader {
                model::ReaderKind::Stacks => WireReaderKind::Stacks,
                model::ReaderKind::Counters => WireReaderKind::Counters,
                model::ReaderKind::Snapshots => WireReaderKind::Snapshots,
                model::ReaderKind::Gpu => WireReaderKind::Gpu,
                model::ReaderKind::Events => WireReaderKind::Events,
                model::ReaderKind::Owners => WireReaderKind::Owners,
            },
            why: match &missed.why {
                model::MissReason::Torn => WireMissReason::Torn,
                model::MissReason::Late => WireMissReason::Late,
                model::MissReason::Failed(why) => WireMissReason::Failed(why),
            },
            count: missed.count,
        }
    }
}

impl WireMissed<'_> {
    pub(crate) fn at(self, time: model::Nanos) -> model::MissedObservation {
        model::MissedObservation {
            time,
            reader: match self.reader {
                WireReaderKind::Stacks => model::ReaderKind::Stacks,
                WireReaderKind::Counters => model::ReaderKind::Counters,
                WireReaderKind::Snapshots => model::ReaderKind::Snapshots,
                WireReaderKind::Gpu => model::ReaderKind::Gpu,
                WireReaderKind::Events => model::ReaderKind::Events,
                WireReaderKind::Owners => model::ReaderKind::Owners,
            },
            why: match self.why {
                WireMissReason::Torn => model::MissReason::Torn,
                WireMissReason::Late => model::MissReason::Late,
                WireMissReason::Failed(why) => model::MissReason::Failed(why.to_owned()),
            },
            count: self.count,
        }
    }
}

#[derive(Encode, BorrowDecode)]
enum WireEndReason<'a> {
    Duration,
    Interrupted,
    TargetExited,
    TargetExecuted,
    Failed(&'a str),
    Condition(&'a str),
    OtherProcess { condition: &'a str, process: &'a str },
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireEnd<'a> {
    reason: WireEndReason<'a>,
    ticks: u64,
    late: u64,
    stacks: u64,
    torn: u64,
    snapshots_consistent: u64,
    snapshots_degraded: u64,
}

impl<'a> From<&'a model::RecordingEnd> for WireEnd<'a> {
    fn from(end: &'a model::RecordingEnd) -> Self {
        WireEnd {
            reason: match &end.reason {
                model::EndReason::Duration => WireEndReason::Duration,
                model::EndReason::Interrupted => WireEndReason::Interrupted,
                model::EndReason::TargetExited => WireEndReason::TargetExited,
                model::EndReason::TargetExecuted => WireEndReason::TargetExecuted,
                model::EndReason::Failed(why) => WireEndReason::Failed(why),
                model::EndReason::Condition(what) => WireEndReason::Condition(what),
                model::EndReason::OtherProcess { condition, process } => {
                    WireEndReason::OtherProcess { condition, process }
                }
            },
            ticks: end.totals.ticks,
            late: end.totals.late,
            stacks: end.totals.stacks,
            torn: end.totals.torn,
            snapshots_consistent: end.totals.snapshots_consistent,
            snapshots_degraded: end.totals.snapshots_degraded,
        }
    }
}

impl WireEnd<'_> {
    pub(crate) fn at(self, time: model::Nanos) -> model::RecordingEnd {
        model::RecordingEnd {
            time,
            reason: match self.reason {
                WireEndReason::Duration => model::EndReason::Duration,
                WireEndReason::Interrupted => model::EndReason::Interrupted,
                WireEndReason::TargetExited => model::EndReason::TargetExited,
                WireEndReason::TargetExecuted => model::EndReason::TargetExecuted,
                WireEndReason::Failed(why) => model::EndReason::Failed(why.to_owned()),
                WireEndReason::Condition(what) => model::EndReason::Condition(what.to_owned()),
                WireEndReason::OtherProcess { condition, process } => {
                    model::EndReason::OtherProcess {
                        condition: condition.to_owned(),
                        process: process.to_owned(),
                    }
                }
            },
            totals: model::RecordingTotals {
                ticks: self.ticks,
                late: self.late,
                stacks: self.stacks,
                torn: self.torn,
                snapshots_consistent: self.snapshots_consistent,
                snapshots_degraded: self.snapshots_degraded,
                exact: None,
                follow: None,
                cost: None,
            },
        }
    }
}

/// Field after the steps of a [`model::TrainingStep`].
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireStepOrigin {
    epoch: Option<u64>,
    clock: WireStepSource,
}

#[derive(Encode, BorrowDecode)]
enum WireStepSource {
    Optimizer,
    Variable,
    Trainer,
    Scheduler,
}

impl From<model::TrainingStep> for WireStepOrigin {
    fn from(step: model::TrainingStep) -> Self {
        let clock = match step.clock {
            model::StepSource::Optimizer => WireStepSource::Optimizer,
            model::StepSource::Variable => WireStepSource::Variable,
            model::StepSource::Trainer => WireStepSource::Trainer,
            model::StepSource::Scheduler => WireStepSource::Scheduler,
        };
        WireStepOrigin { epoch: step.epoch, clock }
    }
}

impl WireStepOrigin {
    /// `within` follows it, in newer files.
    pub(crate) fn at(
        self,
        time: model::Nanos,
        step: u64,
        within: Option<model::Nanos>,
    ) -> model::TrainingStep {
        let clock = match self.clock {
            WireStepSource::Optimizer => model::StepSource::Optimizer,
            WireStepSource::Variable => model::StepSource::Variable,
            WireStepSource::Trainer => model::StepSource::Trainer,
            WireStepSource::Scheduler => model::StepSource::Scheduler,
        };
        model::TrainingStep {
            time,
            step,
            epoch: self.epoch,
            clock,
            uncertainty: within,
            is_over: false,
        }
    }
}
/// Its end precedes it as the time.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireGap<'a> {
    from: u64,
    why: &'a str,
}

impl<'a> From<&'a model::RecordingGap> for WireGap<'a> {
    fn from(gap: &'a model::RecordingGap) -> Self {
        WireGap { from: gap.from.0, why: &gap.why }
    }
}

impl WireGap<'_> {
    pub(crate) fn at(self, time: model::Nanos) -> model::RecordingGap {
        model::RecordingGap { from: model::Nanos(self.from), to: time, why: self.why.to_owned() }
    }
}
