//! `memspy exporter`: OpenMetrics or Prometheus text.

mod figures;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::render::shared::one_line;
use figures::{
    FAILED_READS, GPU_FIGURES, NAMED_FIGURES, PROCESS, SAMPLES, SeriesFamily, SeriesValue,
};

/// The job chooses the names.
const MAX_LABEL: usize = 200;

/// Bytes under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedBytes {
    /// A line or an owner.
    pub name: String,
    /// The category; `None` where the name says it.
    pub category: Option<String>,
    /// Bytes.
    pub bytes: u64,
}

/// A GPU of a job. Bytes; unknown (`None`) has no series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportedGpu {
    /// Its number in the job.
    pub gpu: Option<u32>,
    /// Its number in nvidia-smi.
    pub device: Option<u32>,
    /// Its model.
    pub model: Option<String>,
    /// `torch.cuda.memory_allocated()`.
    pub allocated: Option<u64>,
    /// `torch.cuda.memory_reserved()`.
    pub reserved: Option<u64>,
    /// `torch.cuda.max_memory_allocated()`.
    pub allocated_peak: Option<u64>,
    /// `torch.cuda.max_memory_reserved()`.
    pub reserved_peak: Option<u64>,
    /// `inactive_split_bytes.all.current` of `torch.cuda.memory_stats()`.
    pub inactive_split: Option<u64>,
    /// `num_alloc_retries` of `torch.cuda.memory_stats()`.
    pub retries: Option<u64>,
    /// `num_ooms` of `torch.cuda.memory_stats()`.
    pub ooms: Option<u64>,
    /// Held outside PyTorch's allocator.
    pub outside: Option<u64>,
    /// Held by other processes.
    pub others: Option<u64>,
    /// Memory of the device.
    pub total: Option<u64>,
    /// Free on the device.
    pub free: Option<u64>,
    /// Seconds until the device is full, if allocated bytes keep rising.
    pub full_in: Option<f64>,
    /// Free in PyTorch's cache at the last snapshot.
    pub cached_free: Option<u64>,
    /// Its largest free block.
    pub largest_free: Option<u64>,
    /// Live bytes, estimated: the largest lines and `[other]`.
    pub lines: Vec<NamedBytes>,
    /// Bytes allocated since memspy began: proven, probable, unattributed.
    pub attribution: Vec<NamedBytes>,
    /// Bytes of the largest owners, and `[other]`.
    pub owners: Vec<NamedBytes>,
    /// Seconds of stop for the last snapshot of the owners.
    pub owner_stop: Option<f64>,
}

impl ExportedGpu {
    /// Part of the free cache outside its largest block.
    fn fragmentation(&self) -> Option<f64> {
        let (free, largest) = (self.cached_free?, self.largest_free?);
        (free > 0).then(|| 1.0 - largest.min(free) as f64 / free as f64)
    }
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExportedJob {
    /// Its pid.
    pub pid: u32,
    /// Its rank, if any.
    pub rank: Option<u32>,
    /// Its command line.
    pub command: String,
    /// Its PyTorch.
    pub pytorch: Option<String>,
    /// Samples taken.
    pub samples: u64,
    /// Reads that failed or that the job changed.
    pub failed_reads: u64,
    /// Its GPUs.
    pub gpus: Vec<ExportedGpu>,
}

/// The text format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4, for older readers and `promtool check metrics`.
    Prometheus,
}

/// Its HTTP content type.
pub fn metrics_content_type(format: MetricsFormat) -> &'static str {
    match format {
        MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
    }
}

/// The figures of all jobs.
pub fn metrics_text(jobs: &[ExportedJob], format: MetricsFormat) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ExportedJobs(jobs.to_vec())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(match format {
        MetricsFormat::OpenMetrics => text,
        MetricsFormat::Prometheus => prometheus_text(&text),
    })
}

type SeriesLabels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct ExportedJobs(Vec<ExportedJob>);

impl Collector for ExportedJobs {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let of_jobs = |labels: fn(&ExportedJob) -> SeriesLabels, value: fn(&ExportedJob) -> u64| {
            let one = |job: &ExportedJob| (labels(job), SeriesValue::Count(value(job)));
            self.0.iter().map(one).collect::<Vec<_>>()
        };
        write(&mut encoder, &PROCESS, &of_jobs(info_labels, |_| 1))?;
        write(&mut encoder, &SAMPLES, &of_jobs(job_labels, |job| job.samples))?;
        write(&mut encoder, &FAILED_READS, &of_jobs(job_labels, |job| job.failed_reads))?;
        for figure in GPU_FIGURES {
            let one = |job, gpu| figure.read(gpu).map(|value| (gpu_labels(job, gpu), value));
            let series: Vec<_> =
                self.gpus().filter_map(|(job, gpu): (&ExportedJob, _)| one(job, gpu)).collect();
            write(&mut encoder, &figure.family, &series)?;
        }
        for (family, key, rows) in NAMED_FIGURES {
            write(&mut encoder, &family, &self.named(key, rows))?;
        }
        Ok(())
    }
}

impl ExportedJobs {
    fn gpus(&self) -> impl Iterator<Item = (&ExportedJob, &ExportedGpu)> {
        self.0.iter().flat_map(|job| job.gpus.iter().map(move |gpu| (job, gpu)))
    }

    /// Equal names are summed.
    fn named(
        &self,
        key: &'static str,
        of: fn(&ExportedGpu) -> &Vec<NamedBytes>,
    ) -> Vec<(SeriesLabels, SeriesValue)> {
        let mut series: Vec<(SeriesLabels, SeriesValue)> = Vec::new();
        for (job, gpu) in self.gpus() {
            let before = series.len();
            for row in of(gpu) {
                let mut labels = gpu_labels(job, gpu);
                if let Some(category) = &row.category {
                    labels.push(("category", label(category)));
                }
                labels.push((key, label(&row.name)));
                match series[before..].iter_mut().find(|(known, _)| *known == labels) {
                    Some((_, SeriesValue::Count(bytes))) => *bytes += row.bytes,
                    _ => series.push((labels, SeriesValue::Count(row.bytes))),
                }
            }
        }
        series
    }
}

fn job_labels(job: &ExportedJob) -> SeriesLabels {
    let mut labels = vec![("pid", job.pid.to_string())];
    labels.extend(job.rank.map(|rank| ("rank", rank.to_string())));
    labels
}

fn info_labels(job: &ExportedJob) -> SeriesLabels {
    let mut labels = job_labels(job);
    labels.push(("command", label(&job.command)));
    labels.extend(job.pytorch.as_ref().map(|version| ("pytorch", label(version))));
    labels
}

fn gpu_labels(job: &ExportedJob, gpu: &ExportedGpu) -> SeriesLabels {
    let mut labels = job_labels(job);
    labels.extend(gpu.gpu.map(|number| ("gpu", number.to_string())));
    labels.extend(gpu.device.map(|number| ("device", number.to_string())));
    labels.extend(gpu.model.as_ref().map(|model| ("model", label(model))));
    labels
}

/// The job chooses the text: escape it and bound its length.
fn label(text: &str) -> String {
    let text = one_line(text);
    match text.char_indices().nth(MAX_LABEL) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn write(
    encoder: &mut DescriptorEncoder<'_>,
    family: &SeriesFamily,
    series: &[(SeriesLabels, SeriesValue)],
) -> fmt::Result {
    if series.is_empty() {
        return Ok(());
    }
    let mut metric =
        encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), family.kind)?;
    for (labels, value) in series {
        let one = metric.encode_family(labels)?;
        match (value, family.kind) {
            (SeriesValue::Count(count), MetricType::Counter) => {
                ConstCounter::new(*count).encode(one)?
            }
            (SeriesValue::Count(count), _) => ConstGauge::new(*count).encode(one)?,
            (SeriesValue::Part(part), _) => ConstGauge::new(*part).encode(one)?,
        }
    }
    Ok(())
}

/// Counters get `_total`; units and the end mark go.
fn prometheus_text(text: &str) -> String {
    let counters: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut older = String::with_capacity(text.len());
    for line in text.lines() {
        let comment = |keyword: &str| line.strip_prefix(keyword)?.split_once(' ');
        let named = comment("# TYPE ").map(|it| ("# TYPE ", it));
        match named.or_else(|| comment("# HELP ").map(|it| ("# HELP ", it))) {
            Some((keyword, (name, rest))) if counters.contains(&name) => {
                older.push_str(&format!("{keyword}{name}_total {rest}"));
            }
            None if line == "# EOF" || line.starts_with("# UNIT ") => continue,
            _ => older.push_str(line),
        }
        older.push('\n');
    }
    older
}

#[cfg(test)]
#[path = "open_metrics_tests.rs"]
mod tests;
