//! `memspy` alone on a terminal: which job of the GPUs?

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};

use crate::model::DeviceStatus;
use crate::render::{bytes, visible};
use crate::sampler::DevicePoll;

use super::output;

/// What a person wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobAnswer {
    Job(u32),
    None,
    Unclear,
}

/// A process on one or more GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GpuJob {
    pid: u32,
    /// Of all its GPUs, as far as the driver says.
    bytes: u64,
    gpus: Vec<u32>,
    command: String,
}

/// `words` with the job that the user chooses, if they have no command and a person can choose;
/// `None`: the user wants none of them.
pub(super) fn completed(mut words: Vec<OsString>) -> Option<Vec<OsString>> {
    let is_asked = words.len() == 1 && io::stdin().is_terminal() && io::stdout().is_terminal();
    let jobs = if is_asked { found().unwrap_or_default() } else { Vec::new() };
    if !jobs.is_empty() {
        let pid = choose(&jobs)?;
        words.extend(["-p".into(), pid.to_string().into()]);
    }
    Some(words)
}

fn found() -> Option<Vec<GpuJob>> {
    let devices = DevicePoll::open(Vec::new()).ok()?.poll(&output::host()).ok()?.devices;
    Some(jobs(&devices))
}

fn choose(jobs: &[GpuJob]) -> Option<u32> {
    let width = output::width().unwrap_or(usize::MAX);
    output::print(|out| write_list(out, jobs, width)).ok()?;
    loop {
        let ask = |out: &mut dyn Write| {
            write!(out, "Which one? Its number or pid [1; q: none] ").and_then(|()| out.flush())
        };
        output::print(ask).ok()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).ok()?;
        // Without a line break the input has ended.
        let Some(line) = answer.strip_suffix('\n') else {
            output::print(|out| writeln!(out)).ok()?;
            return None;
        };
        match chosen(jobs, line) {
            JobAnswer::Job(pid) => return Some(pid),
            JobAnswer::None => return None,
            JobAnswer::Unclear => {
                output::print(|out| writeln!(out, "there is no such process in the list")).ok()?;
            }
        }
    }
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
    writeln!(out, "On the GPUs:\n")?;
    for (at, job) in jobs.iter().enumerate() {
        let gpus: Vec<String> = job.gpus.iter().map(u32::to_string).collect();
        let size = if job.bytes == 0 { "?".to_owned() } else { bytes(job.bytes) };
        let place = format!("GPU {}", gpus.join(","));
        let line =
            format!("{:>3}  {:>8}  {size:>11}  {place:<7}  {}", at + 1, job.pid, job.command);
        let line = visible(&line);
        match line.chars().count() > width {
            true => writeln!(
                out,
                "{}…",
                line.chars().take(width.saturating_sub(1)).collect::<String>()
            )?,
            false => writeln!(out, "{line}")?,
        }
    }
    writeln!(out)
}

/// By its number in the list or its pid.
fn chosen(jobs: &[GpuJob], answer: &str) -> JobAnswer {
    let number = match answer.trim() {
        "" => Ok(1),
        "q" | "Q" => return JobAnswer::None,
        word => word.parse::<usize>(),
    };
    let job = number.ok().and_then(|number| {
        let by_place = jobs.get(number.checked_sub(1)?);
        by_place.or_else(|| jobs.iter().find(|job| job.pid as usize == number))
    });
    job.map_or(JobAnswer::Unclear, |job| JobAnswer::Job(job.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_chosen_by_its_place_or_its_pid() {
        let job = |pid| GpuJob { pid, bytes: 0, gpus: vec![0], command: "python".to_owned() };
        let jobs = [job(70), job(80)];
        for (answer, pid) in [("", 70), (" 2 ", 80), ("80", 80)] {
            assert_eq!(chosen(&jobs, answer), JobAnswer::Job(pid), "{answer}");
        }
        for answer in ["0", "3", "-1", "99999999999999999999", "yes"] {
            assert_eq!(chosen(&jobs, answer), JobAnswer::Unclear, "{answer}");
        }
        assert_eq!(chosen(&jobs, "q"), JobAnswer::None);
    }
}
