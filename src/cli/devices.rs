//! `memspy devices`: GPUs, and the jobs on them.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use crate::analysis::{DeviceSnapshot, ProcessSnapshot};
use crate::model::{DeviceStatus, LeftBehind, RecordSink};
use crate::render::{self, DevicesTarget, DevicesView};
use crate::sampler::{DevicePoll, TargetReaders, sleep_unless};

use super::args::{DevicesArgs, DevicesFormat};
use super::members::{members, refuse_launcher};
use super::output::into_io;
use super::signals::StopSignals;
use super::{eprint_line, hints, output};

pub(super) fn run(args: &DevicesArgs) -> Result<()> {
    let mut readers = Vec::new();
    let mut pids = args.pids.clone();
    if args.subprocesses {
        pids.clear();
        for &pid in &args.pids {
            pids.extend(members(pid)?.iter().map(|member| member.readers.pid()));
        }
        pids.dedup();
    }
    for &pid in &pids {
        let attached =
            TargetReaders::attach_devices(pid).map_err(|error| hints::attach(error, pid))?;
        refuse_launcher(&attached)?;
        // The driver's figures need no rights.
        if let Some(error) = attached.torch_refusal()
            && error.is_denied()
        {
            eprint_line(&format!("{error}; {}", hints::denied(pid)));
        }
        readers.push(attached);
    }
    let watch = DevicePoll::open(readers).map_err(|error| {
        anyhow!("cannot read the GPUs: {error}; 'nvidia-smi' shows whether a driver is loaded")
    })?;
    let format = if args.json { DevicesFormat::Json } else { args.format };
    let jobs = pids.len();
    let mut poller = DevicePoller { watch, format, jobs, again: args.every.is_some(), first: true };
    let Some(every) = args.every else {
        let seen = poller.poll()?;
        let is_text = matches!(format, DevicesFormat::Text);
        let path = Path::new("-");
        let write = |out: &mut dyn Write| poller.print(&seen, out);
        return output::write(path, false, output::fitted(path, is_text, write));
    };
    let stop = StopSignals::watch()?.stop;
    loop {
        let begun = Instant::now();
        let seen = poller.poll()?;
        // What is left after all jobs ended was already printed.
        if poller.watch.has_lost_all(jobs) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match poller.print(&seen, &mut out).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.context("cannot write to standard output")?,
        }
        drop(out);
        let rest = every.saturating_sub(begun.elapsed());
        if !sleep_unless(rest, || stop.load(Ordering::Relaxed)) {
            return Ok(());
        }
    }
}

struct DevicePoller {
    watch: DevicePoll,
    format: DevicesFormat,
    jobs: usize,
    again: bool,
    first: bool,
}

struct PolledDevices {
    /// As nvidia-smi writes it.
    timestamp: String,
    devices: Vec<DeviceStatus>,
    targets: Vec<DevicesTarget>,
    left_behind: Vec<LeftBehind>,
}

impl DevicePoller {
    fn poll(&mut self) -> Result<PolledDevices> {
        let timestamp = chrono::Local::now().format("%Y/%m/%d %H:%M:%S%.3f").to_string();
        let seen = self.watch.poll(&output::host()).context("cannot read the GPUs")?;
        for pid in &seen.ended {
            eprint_line(&format!("process {pid} has ended"));
        }
        let mut targets = Vec::new();
        for target in &seen.targets {
            let mut snapshot = ProcessSnapshot::new();
            for record in &target.records {
                snapshot.record(record)?;
            }
            let is_asleep = |device: &DeviceSnapshot| device.unmapped.is_some_and(|size| size > 0);
            // Sleeping memory is named by the program's objects.
            if snapshot.devices().iter().any(is_asleep) {
                snapshot.set_tags(self.watch.sleep_tags(target.pid));
            }
            targets.push(DevicesTarget {
                pid: target.pid,
                paused: target.paused,
                process: snapshot,
            });
        }
        let (devices, left_behind) = (seen.devices, seen.left_behind);
        Ok(PolledDevices { timestamp, devices, targets, left_behind })
    }

    fn print(&mut self, seen: &PolledDevices, out: &mut dyn Write) -> io::Result<()> {
        let first = std::mem::replace(&mut self.first, false);
        let view = DevicesView {
            timestamp: &seen.timestamp,
            devices: &seen.devices,
            targets: &seen.targets,
            left_behind: &seen.left_behind,
        };
        match self.format {
            DevicesFormat::Text => {
                if !first {
                    writeln!(out)?;
                }
                render::devices_text(out, &view).map_err(into_io)
            }
            DevicesFormat::Csv => {
                if first {
                    render::devices_csv_head(out, self.jobs > 0).map_err(into_io)?;
                }
                render::devices_csv(out, &view, self.jobs > 0).map_err(into_io)
            }
            DevicesFormat::Json => render::devices_json(out, &view, !self.again).map_err(into_io),
        }
    }
}
