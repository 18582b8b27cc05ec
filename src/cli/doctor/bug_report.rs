//! What a bug report needs, ready to paste: nothing of the user, of paths or of command lines.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};

use crate::model::without_paths;
use crate::render::json::FindingStatus;
use crate::render::{bytes, visible};
use crate::sampler::{DevicePoll, MachineFacts, TargetIdentity, attach, processors};

use super::{DoctorReport, about_readers, about_rights, finding_line};
use crate::cli::args::DoctorArgs;
use crate::cli::{hints, in_one_line, output};

/// Writes the report; a process that cannot be recorded is what it says, not a failure.
pub(super) fn write(args: &DoctorArgs, path: &Path) -> Result<()> {
    output::check_requested(Some(path), args.force)?;
    let mut text = of_machine(&MachineFacts::read());
    text += &of_gpus();
    if let Some(pid) = args.pid {
        text += &of_process(pid)?;
    }
    // A fence keeps columns where it is pasted.
    let report = format!("```text\n{text}```\n");
    output::report(path, args.force, |out| out.write_all(report.as_bytes()))
}

fn of_machine(facts: &MachineFacts) -> String {
    let known = |text: &Option<String>| {
        text.as_ref().map_or_else(|| "unknown".to_owned(), |text| visible(text).into_owned())
    };
    let memory = facts.memory.map_or_else(|| "unknown".to_owned(), bytes);
    let mut text = format!(
        "version: memspy {} on {}\nsystem: Linux {}, {}{}; {} processors, {memory} of memory\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        known(&facts.kernel),
        known(&facts.system),
        if facts.in_container { ", in a container" } else { "" },
        processors(),
    );
    let user = if facts.is_root { "root" } else { "a user" };
    let held = match &facts.capabilities {
        None => "of unknown capabilities".to_owned(),
        Some(held) if held.is_empty() => "without capabilities".to_owned(),
        Some(held) => format!("with {}", held.join(", ")),
    };
    let _ = writeln!(text, "rights: {user} {held}");
    let settings = facts.settings.iter().map(|(name, value)| match value {
        Some(value) => format!("{name} {}", visible(value)),
        None => format!("no {name}"),
    });
    let types = if facts.has_kernel_types { "BTF" } else { "no BTF" };
    let _ = writeln!(text, "kernel settings: {}, {types}", settings.collect::<Vec<_>>().join(", "));
    text
}

fn of_gpus() -> String {
    let read = DevicePoll::open(Vec::new()).and_then(|mut poll| poll.poll(""));
    let devices = match read {
        Ok(reading) => reading.devices,
        Err(error) => return format!("GPUs: {}\n", without_paths(&error.to_string())),
    };
    let mut text = String::new();
    let driver = devices.first().and_then(|status| status.driver_version.as_deref());
    let _ = writeln!(text, "driver: {}", visible(driver.unwrap_or("unknown")));
    for status in &devices {
        let number = status.device.nvml_index.map_or("?".to_owned(), |index| index.to_string());
        let name = status.device.name.as_deref().unwrap_or("unnamed");
        let total = status.device.total.map_or_else(|| "unknown".to_owned(), bytes);
        let mig = if status.mig.is_empty() { "" } else { ", with MIG" };
        let _ = writeln!(text, "GPU {number}: {}, {total}{mig}", visible(name));
    }
    text
}

fn of_process(pid: u32) -> Result<String> {
    let process = TargetIdentity::open(pid).map_err(|error| hints::attach(error, pid))?;
    let mut report = DoctorReport { out: io::sink(), findings: Vec::new(), json: true };
    let said = about_rights(&mut report, &process).and_then(|()| {
        match attach(pid, &AtomicBool::new(false)) {
            Ok(mut readers) => about_readers(&mut report, &mut readers),
            Err(error) => {
                let error = in_one_line(&hints::attach(error, pid));
                report.line("recording", FindingStatus::Fails, &error)
            }
        }
    });
    said.context("cannot write the report")?;
    let mut text = format!("\nof process {pid}:\n");
    for finding in &report.findings {
        text += &without_paths(&finding_line(finding));
        text.push('\n');
    }
    Ok(text)
}
