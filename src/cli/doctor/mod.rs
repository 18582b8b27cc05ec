//! `memspy doctor`: what works with a process, and why the rest fails.

mod bug_report;

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::model::{
    AllocatorBackend, AllocatorSnapshot, CudaIndex, ProcessUsage, SnapshotConsistency,
};
use crate::render::json::{DoctorJson, FindingJson, FindingStatus, JsonDocument};
use crate::render::{self, FittingWriter};
use crate::sampler::{
    AllocatorError, ExactAvailability, TargetIdentity, TargetReaders, TimedSnapshot, attach,
    exact_availability,
};

use super::args::DoctorArgs;
use super::output::into_io;
use super::{hints, in_one_line, output};

const BUSY: &str =
    "it is busy at this moment; a recording tries again at every sample, so nothing is wrong";

struct DoctorReport<W: Write> {
    out: W,
    findings: Vec<FindingJson>,
    json: bool,
}

impl<W: Write> DoctorReport<W> {
    fn line(&mut self, what: &str, is: FindingStatus, text: &str) -> io::Result<()> {
        let finding = FindingJson { about: what.to_owned(), status: is, text: text.to_owned() };
        if self.json {
            self.findings.push(finding);
            return Ok(());
        }
        writeln!(self.out, "{}", finding_line(&finding))
    }

    fn finish(mut self, pid: u32, recordable: bool) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let content = DoctorJson { pid, recordable, findings: self.findings };
        JsonDocument::new(content).write(&mut self.out, true).map_err(into_io)
    }
}

fn finding_line(finding: &FindingJson) -> String {
    let mark = match finding.status {
        FindingStatus::Works => "yes",
        FindingStatus::Fails => "NO ",
        FindingStatus::Warning => "!  ",
        FindingStatus::Fact => "-  ",
    };
    format!("{mark}  {:<18} {}", finding.about, render::visible(&finding.text))
}

pub(super) fn run(args: &DoctorArgs) -> Result<()> {
    match (&args.report, args.pid) {
        (Some(path), _) => bug_report::write(args, path),
        (None, pid) => findings(args, pid.unwrap_or_default()),
    }
}

/// Prints one line per finding; fails if the process cannot be recorded at all.
fn findings(args: &DoctorArgs, pid: u32) -> Result<()> {
    let out: Box<dyn Write> = match output::width().filter(|_| !args.json) {
        Some(width) => Box::new(FittingWriter::new(io::stdout().lock(), width)),
        None => Box::new(io::stdout().lock()),
    };
    let mut report = DoctorReport { out, findings: Vec::new(), json: args.json };
    let process = TargetIdentity::open(pid).map_err(|e| hints::attach(e, pid))?;
    about_process(&mut report, &process).context("cannot write to standard output")?;
    let attached = attach(pid, &AtomicBool::new(false));
    let recordable = attached.is_ok();
    match attached {
        Ok(mut readers) => about_readers(&mut report, &mut readers),
        Err(error) => {
            let error = hints::attach(error, pid);
            report.line("recording", FindingStatus::Fails, &in_one_line(&error))
        }
    }
    .and_then(|()| report.finish(pid, recordable))
    .context("cannot write to standard output")?;
    if !recordable {
        bail!("process {} cannot be recorded", pid);
    }
    Ok(())
}

fn about_process<W: Write>(
    report: &mut DoctorReport<W>,
    process: &TargetIdentity,
) -> io::Result<()> {
    let command = process.command().join(" ");
    report.line("process", FindingStatus::Fact, &format!("{} {command}", process.pid()))?;
    let access = process.access();
    if access.target_in_container {
        let pids: Vec<String> = process.pids().iter().map(u32::to_string).collect();
        report.line(
            "container",
            FindingStatus::Fact,
            &format!("its pids from here inwards: {}", pids.join(" > ")),
        )?;
    }
    about_rights(report, process)
}

fn about_rights<W: Write>(
    report: &mut DoctorReport<W>,
    process: &TargetIdentity,
) -> io::Result<()> {
    let access = process.access();
    let scope = access.ptrace_scope.map_or("not there".to_owned(), |s| s.to_string());
    let rights = format!(
        "memspy runs as user {}{}, the process as {}; ptrace_scope {scope}",
        access.user,
        if access.sys_ptrace { " with CAP_SYS_PTRACE" } else { "" },
        access.target_user.map_or("an unknown user".to_owned(), |u| u.to_string()),
    );
    report.line("rights", FindingStatus::Fact, &rights)
}

fn about_readers<W: Write>(
    report: &mut DoctorReport<W>,
    readers: &mut TargetReaders,
) -> io::Result<()> {
    report.line("memory", FindingStatus::Works, "can be read, without stopping the process")?;
    if let Some(coverage) = readers.stack_coverage() {
        report.line(
            "stacks",
            FindingStatus::Works,
            &format!("CPython {}, {}", coverage.version, coverage.layout),
        )?;
        for uncovered in coverage.uncovered {
            report.line("stacks", FindingStatus::Fails, uncovered)?;
        }
    }
    match readers.source_refusal() {
        None => report.line(
            "source text",
            FindingStatus::Works,
            "of files that the job's own user may read",
        )?,
        Some(error) => report.line("source text", FindingStatus::Fails, &error)?,
    }
    about_torch(report, readers)?;
    about_gpu(report, readers)?;
    about_exact(report, &exact_availability(readers))?;
    let took = format!("attaching took {:.0} ms", readers.attach_time().as_secs_f64() * 1e3);
    report.line("recording", FindingStatus::Works, &took)
}

fn about_exact<W: Write>(
    report: &mut DoctorReport<W>,
    outlook: &ExactAvailability,
) -> io::Result<()> {
    let offer = match &outlook.offer {
        Ok(offer) => {
            let torch = match offer.torch {
                Some((mallocs, frees)) => {
                    let places = render::number(mallocs as u64, "place");
                    format!("pytorch:malloc at {places}, pytorch:free at {frees}")
                }
                None => "no PyTorch CUDA allocator".to_owned(),
            };
            let driver = offer.driver.as_ref();
            format!("{torch}; {}", driver.map_or("no CUDA driver", |name| name))
        }
        Err(error) => error.to_string(),
    };
    report.line("exact mode", FindingStatus::Fact, &format!("to be probed: {offer}"))?;
    for (way, open) in &outlook.ways {
        let name = render::way(*way);
        match open {
            Ok(()) => {
                report.line("exact mode", FindingStatus::Works, &format!("{name} is open"))?
            }
            Err(error) => {
                let advice = hints::probe_advice(error);
                report.line(
                    "exact mode",
                    FindingStatus::Fails,
                    &format!("{name}: {error}; {advice}"),
                )?;
            }
        }
    }
    match &outlook.keeper {
        Ok(()) => report.line(
            "exact mode",
            FindingStatus::Works,
            "a helper process can hold the probes: they go even if memspy is killed",
        )?,
        Err(error) => report.line(
            "exact mode",
            FindingStatus::Warning,
            &format!(
                "memspy holds its probes itself, as it cannot start a helper process ({error}): if killed \
                 while the kernel places or removes one, it may leave a breakpoint"
            ),
        )?,
    }
    match &outlook.backward {
        None => Ok(()),
        Some(Ok(())) => report.line(
            "exact mode",
            FindingStatus::Works,
            "the backward pass can be followed to its forward lines",
        ),
        Some(Err(error)) => report.line("exact mode", FindingStatus::Fails, &error.to_string()),
    }
}

fn about_torch<W: Write>(
    report: &mut DoctorReport<W>,
    readers: &mut TargetReaders,
) -> io::Result<()> {
    about_allocator(report, readers)?;
    let counters = match readers.counters() {
        None => return Ok(()),
        Some(Ok(counters)) => counters,
        Some(Err(error)) => {
            return report.line("counters", FindingStatus::Fails, &error.to_string());
        }
    };
    for (device, counters) in &counters {
        let text = format!(
            "GPU {}: allocated {}, reserved {}, peak {}",
            device.0,
            render::bytes(counters.allocated().max(0) as u64),
            render::bytes(counters.reserved().max(0) as u64),
            render::bytes(counters.max_allocated().max(0) as u64),
        );
        report.line("counters", FindingStatus::Works, &text)?;
    }
    for (device, _) in counters {
        let Some(TimedSnapshot { snapshot, took }) = readers.snapshot(device) else { continue };
        let (is, text) = match snapshot {
            Ok(snapshot) => snapshot_finding(device, &snapshot, took),
            Err(error @ AllocatorError::Torn { .. }) => {
                (FindingStatus::Warning, format!("GPU {}: {error}: {BUSY}", device.0))
            }
            Err(error) => (FindingStatus::Fails, format!("GPU {}: {error}", device.0)),
        };
        report.line("snapshot", is, &text)?;
    }
    Ok(())
}

fn about_allocator<W: Write>(
    report: &mut DoctorReport<W>,
    readers: &mut TargetReaders,
) -> io::Result<()> {
    let version = readers.torch_version().unwrap_or_else(|| "of unknown version".to_owned());
    let (is, text) = match readers.allocator() {
        AllocatorBackend::NotLoaded => (
            FindingStatus::Fails,
            "PyTorch's CUDA part is not loaded in it (yet): stacks and the driver's totals only"
                .to_owned(),
        ),
        AllocatorBackend::NotInitialized => (
            FindingStatus::Fact,
            format!("PyTorch {version} has not used CUDA yet; a recording waits for it"),
        ),
        AllocatorBackend::Native => {
            (FindingStatus::Works, format!("PyTorch {version}, native caching allocator"))
        }
        AllocatorBackend::CudaMallocAsync => (
            FindingStatus::Fails,
            format!(
                "PyTorch {version} with backend:cudaMallocAsync keeps no counters or blocks: the driver's totals only"
            ),
        ),
        AllocatorBackend::Pluggable(name) => (
            FindingStatus::Fails,
            format!(
                "PyTorch {version} with the program's own allocator {name}: the driver's totals only"
            ),
        ),
        AllocatorBackend::Unknown(what) => (FindingStatus::Fails, what),
    };
    report.line("allocator", is, &text)
}

fn snapshot_finding(
    device: CudaIndex,
    snapshot: &AllocatorSnapshot,
    took: Duration,
) -> (FindingStatus, String) {
    let (is, check) = match snapshot.consistency {
        SnapshotConsistency::Consistent => {
            (FindingStatus::Works, "its sums equal the counters".to_owned())
        }
        SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter } => (
            FindingStatus::Warning,
            format!(
                "the process changed it during every attempt, blocks {}, counter {}: {BUSY}",
                render::bytes(allocated_in_blocks),
                render::bytes(allocated_counter)
            ),
        ),
    };
    let count = snapshot.blocks().count();
    let text = format!(
        "GPU {}: {} in {}, read in {:.1} ms; {check}",
        device.0,
        render::number(count as u64, "block"),
        render::number(snapshot.segments.len() as u64, "segment"),
        took.as_secs_f64() * 1e3,
    );
    (is, text)
}

fn about_gpu<W: Write>(report: &mut DoctorReport<W>, readers: &TargetReaders) -> io::Result<()> {
    if let Some(error) = readers.driver_refusal() {
        let text = format!("{error}: memory outside PyTorch stays unknown");
        return report.line("driver", FindingStatus::Fails, &text);
    }
    let version = readers.driver_version().map(|it| it.unwrap_or_else(|e| e.to_string()));
    let version = version.unwrap_or_default();
    report.line("driver", FindingStatus::Works, &format!("NVML answers, driver {version}"))?;
    for device in readers.devices() {
        let Some(nvml_index) = device.nvml_index else { continue };
        let cuda = match device.cuda_index {
            Some(index) => format!("GPU {} of the process", index.0),
            None => "not visible to the process (or its number is unknown)".to_owned(),
        };
        let name = device.name.as_deref().unwrap_or("unnamed");
        let Some(usage) = readers.device_usage(nvml_index) else { continue };
        let (is, usage) = match usage {
            Ok(usage) => match usage.process {
                ProcessUsage::Bytes(bytes) => {
                    (FindingStatus::Works, format!("the process uses {}", render::bytes(bytes)))
                }
                ProcessUsage::Unknown(why) => {
                    (FindingStatus::Fact, format!("its use is unknown: {why}"))
                }
            },
            Err(error) => (FindingStatus::Fails, error.to_string()),
        };
        report.line("device", is, &format!("nvidia-smi {nvml_index}, {name}, {cuda}: {usage}"))?;
    }
    Ok(())
}
