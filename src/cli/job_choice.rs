//! `memspy` alone on a terminal: which job of the GPUs?

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};

use crate::model::DeviceStatus;
use crate::render::{bytes, number, visible};
use crate::sampler::DevicePoll;

use super::output;

/// A process on one or more GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GpuJob {
    pid: u32,
    /// Of all its GPUs, as far as the driver says.
    bytes: u64,
    gpus: Vec<u32>,
    command: String,
}

/// `words` with the job that the user chooses, if they have no command and a person can choose.
pub(super) fn completed(mut words: Vec<OsString>) -> Vec<OsString> {
    let is_asked = words.len() == 1 && io::stdin().is_terminal() && io::stdout().is_terminal();
    if is_asked && let Some(pid) = choose() {
        words.extend(["-p".into(), pid.to_string().into()]);
    }
    words
}

/// `None`: there is no job, or none was chosen.
fn choose() -> Option<u32> {
    let devices = DevicePoll::open(Vec::new()).ok()?.poll(&output::host()).ok()?.devices;
    let jobs = jobs(&devices);
    if jobs.is_empty() {
        return None;
    }
    let width = output::width().unwrap_or(usize::MAX);
    output::print(|out| write_list(out, &jobs, width)).ok()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).ok()?;
    // Without a line break the input has ended.
    chosen(&jobs, answer.strip_suffix('\n')?)
}

/// Those that memspy can name, most memory first.
fn jobs(devices: &[DeviceStatus]) -> Vec<GpuJob> {
    let mut by_pid: BTreeMap<u32, GpuJob> = BTreeMap::new();
    for status in devices {
        for process in status.processes.iter().flatten().filter(|process| process.compute) {
            let Some(pid) = process.pid else { continue };
            let command = || process.command.clone().unwrap_or_else(|| "[not readable]".to_owned());
            let job = by_pid.entry(pid).or_insert_with(|| GpuJob {
                pid,
                bytes: 0,
                gpus: Vec::new(),
                command: command(),
            });
            job.bytes += process.bytes.unwrap_or(0);
            job.gpus.extend(status.device.nvml_index);
        }
    }
    let mut jobs: Vec<GpuJob> = by_pid.into_values().collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.bytes));
    jobs
}

fn write_list(out: &mut dyn Write, jobs: &[GpuJob], width: usize) -> io::Result<()> {
    writeln!(out, "{} on the GPUs:\n", number(jobs.len() as u64, "process"))?;
    for (at, job) in jobs.iter().enumerate() {
        let gpus: Vec<String> = job.gpus.iter().map(u32::to_string).collect();
        let size = if job.bytes == 0 { "?".to_owned() } else { bytes(job.bytes) };
        let place = format!("GPU {}", gpus.join(","));
        let line =
            format!("{:>3}  {:>8}  {size:>11}  {place:<7}  {}", at + 1, job.pid, job.command);
        let line: String = visible(&line).chars().take(width).collect();
        writeln!(out, "{line}")?;
    }
    write!(out, "\nWhich one? [1; q: none] ")?;
    out.flush()
}

/// By its number in the list or its pid.
fn chosen(jobs: &[GpuJob], answer: &str) -> Option<u32> {
    let number: u32 = match answer.trim() {
        "" => 1,
        word => word.parse().ok()?,
    };
    let by_place = jobs.get((number as usize).checked_sub(1)?);
    by_place.or_else(|| jobs.iter().find(|job| job.pid == number)).map(|job| job.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_chosen_by_its_place_or_its_pid() {
        let job = |pid| GpuJob { pid, bytes: 0, gpus: vec![0], command: "python".to_owned() };
        let jobs = [job(70), job(80)];
        for (answer, pid) in [("", Some(70)), (" 2 ", Some(80)), ("80", Some(80))] {
            assert_eq!(chosen(&jobs, answer), pid, "{answer}");
        }
        for answer in ["q", "0", "3", "-1"] {
            assert_eq!(chosen(&jobs, answer), None, "{answer}");
        }
    }
}
