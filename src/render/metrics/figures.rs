//! The series of `memspy exporter` and their sources.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::{ExportedGpu, NamedBytes};

pub(super) struct SeriesFamily {
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
}

impl SeriesFamily {
    const fn bytes(name: &'static str, help: &'static str) -> SeriesFamily {
        SeriesFamily { name, unit: Some(Unit::Bytes), kind: MetricType::Gauge, help }
    }

    const fn ratio(name: &'static str, help: &'static str) -> SeriesFamily {
        SeriesFamily { name, unit: None, kind: MetricType::Gauge, help }
    }

    const fn seconds(name: &'static str, help: &'static str) -> SeriesFamily {
        SeriesFamily { name, unit: Some(Unit::Seconds), kind: MetricType::Gauge, help }
    }

    const fn counter(name: &'static str, help: &'static str) -> SeriesFamily {
        SeriesFamily { name, unit: None, kind: MetricType::Counter, help }
    }
}

#[derive(Clone, Copy)]
pub(super) enum SeriesValue {
    Count(u64),
    Part(f64),
}

type CountOf = fn(&ExportedGpu) -> Option<u64>;

type PartOf = fn(&ExportedGpu) -> Option<f64>;

enum FigureOf {
    Count(CountOf),
    Part(PartOf),
}

pub(super) struct GpuFigure {
    pub(super) family: SeriesFamily,
    of: FigureOf,
}

impl GpuFigure {
    const fn bytes(name: &'static str, help: &'static str, of: CountOf) -> GpuFigure {
        GpuFigure { family: SeriesFamily::bytes(name, help), of: FigureOf::Count(of) }
    }

    const fn counter(name: &'static str, help: &'static str, of: CountOf) -> GpuFigure {
        GpuFigure { family: SeriesFamily::counter(name, help), of: FigureOf::Count(of) }
    }

    const fn ratio(name: &'static str, help: &'static str, of: PartOf) -> GpuFigure {
        GpuFigure { family: SeriesFamily::ratio(name, help), of: FigureOf::Part(of) }
    }

    const fn seconds(name: &'static str, help: &'static str, of: PartOf) -> GpuFigure {
        GpuFigure { family: SeriesFamily::seconds(name, help), of: FigureOf::Part(of) }
    }

    pub(super) fn read(&self, gpu: &ExportedGpu) -> Option<SeriesValue> {
        match self.of {
            FigureOf::Count(of) => of(gpu).map(SeriesValue::Count),
            FigureOf::Part(of) => of(gpu).map(SeriesValue::Part),
        }
    }
}

/// One number a GPU, in the order of the output.
pub(super) const GPU_FIGURES: [GpuFigure; 16] = [
    GpuFigure::bytes(
        "memspy_allocated",
        "Allocated by the program in PyTorch: torch.cuda.memory_allocated()",
        |gpu| gpu.allocated,
    ),
    GpuFigure::bytes(
        "memspy_reserved",
        "Held by PyTorch's caching allocator: torch.cuda.memory_reserved()",
        |gpu| gpu.reserved,
    ),
    GpuFigure::bytes(
        "memspy_allocated_peak",
        "torch.cuda.max_memory_allocated(): since the job last reset its peaks",
        |gpu| gpu.allocated_peak,
    ),
    GpuFigure::bytes(
        "memspy_reserved_peak",
        "torch.cuda.max_memory_reserved(): since the job last reset its peaks",
        |gpu| gpu.reserved_peak,
    ),
    GpuFigure::bytes(
        "memspy_inactive_split",
        "Free pieces of segments that are also in use: inactive_split_bytes.all.current of torch.cuda.memory_stats()",
        |gpu| gpu.inactive_split,
    ),
    GpuFigure::bytes(
        "memspy_cached_free",
        "Free in the caching allocator, in the last snapshot of its blocks",
        |gpu| gpu.cached_free,
    ),
    GpuFigure::bytes(
        "memspy_largest_free_block",
        "The largest free block of the caching allocator, in the last snapshot of its blocks",
        |gpu| gpu.largest_free,
    ),
    GpuFigure::ratio(
        "memspy_fragmentation_ratio",
        "Part of the free cache that is not in its largest block; no series where nothing is free",
        |gpu| gpu.fragmentation(),
    ),
    GpuFigure::bytes(
        "memspy_outside_pytorch",
        "Held by the process outside PyTorch's allocator: CUDA context, libraries, other allocators",
        |gpu| gpu.outside,
    ),
    GpuFigure::bytes(
        "memspy_other_processes",
        "Held by other processes on the same device",
        |gpu| gpu.others,
    ),
    GpuFigure::bytes("memspy_device_total", "Memory of the device", |gpu| gpu.total),
    GpuFigure::bytes("memspy_device_free", "Free on the device", |gpu| gpu.free),
    GpuFigure::seconds(
        "memspy_time_to_full",
        "Until the device is full if allocated bytes rise as they did in the last minutes; no series where they do not",
        |gpu| gpu.full_in,
    ),
    GpuFigure::counter(
        "memspy_alloc_retries",
        "Driver allocations that failed and were tried again after the cache was freed: num_alloc_retries",
        |gpu| gpu.retries,
    ),
    GpuFigure::counter("memspy_ooms", "Out-of-memory errors that PyTorch threw: num_ooms", |gpu| {
        gpu.ooms
    }),
    GpuFigure::seconds(
        "memspy_owner_snapshot_stop",
        "For how long the job was stopped for the last snapshot of its owners",
        |gpu| gpu.owner_stop,
    ),
];

pub(super) const PROCESS: SeriesFamily = SeriesFamily::ratio(
    "memspy_process_info",
    "A watched process, its command and its PyTorch; always 1",
);

pub(super) const SAMPLES: SeriesFamily =
    SeriesFamily::counter("memspy_samples", "Samples taken of the process");
pub(super) const FAILED_READS: SeriesFamily = SeriesFamily::counter(
    "memspy_failed_reads",
    "Reads of the process that failed, or during which it changed what was read",
);

/// A number for each name; the label of the name.
pub(super) type NamedFigure = (SeriesFamily, &'static str, fn(&ExportedGpu) -> &Vec<NamedBytes>);

pub(super) const NAMED_FIGURES: [NamedFigure; 3] = [
    (
        SeriesFamily::bytes(
            "memspy_line",
            "ESTIMATE from samples: live bytes by the line of the program that allocated them; the greatest lines, and [other]",
        ),
        "line",
        |gpu| &gpu.lines,
    ),
    (
        SeriesFamily::bytes(
            "memspy_attributed",
            "Live bytes allocated since memspy began, by whether their line is proven, probable or unattributed",
        ),
        "evidence",
        |gpu| &gpu.attribution,
    ),
    (
        SeriesFamily::bytes(
            "memspy_owner",
            "Bytes by owner in the last snapshot (--owners); the greatest owners, and [other]",
        ),
        "owner",
        |gpu| &gpu.owners,
    ),
];
