//! Measures idle processors.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::thread::sched_getaffinity;

use crate::target::proc_files;

/// With fewer processors the job needs all of them.
pub const MANY_PROCESSORS: usize = 4;
/// The kernel counts in hundredths of a second.
const MIN_WINDOW: Duration = Duration::from_millis(300);
const TICKS: f64 = 100.0;
const CGROUPS: &str = "/sys/fs/cgroup";

/// Processors that memspy's affinity and cgroup allow.
pub fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Measures idle processor time.
#[derive(Debug, Clone)]
pub struct IdleMeter {
    began: Instant,
    before: Option<ProcessorUse>,
}

#[derive(Debug, Clone)]
struct ProcessorUse {
    idle: f64,
    /// Seconds used by a cgroup with a limit.
    limited: Option<f64>,
}

impl IdleMeter {
    /// Starts to measure.
    pub fn start() -> IdleMeter {
        IdleMeter { began: Instant::now(), before: ProcessorUse::now() }
    }

    /// Idle processors on average since the start (0.5: half of one). Waits for a minimum time.
    /// `None` if the kernel does not say.
    pub fn idle(&self) -> Option<f64> {
        std::thread::sleep(MIN_WINDOW.saturating_sub(self.began.elapsed()));
        let seconds = self.began.elapsed().as_secs_f64();
        let (before, now) = (self.before.as_ref()?, ProcessorUse::now()?);
        let idle = (now.idle - before.idle) / seconds;
        match (before.limited, now.limited) {
            (Some(before), Some(now)) => {
                Some(idle.min(processors() as f64 - (now - before) / seconds).max(0.0))
            }
            _ => Some(idle),
        }
    }
}

impl ProcessorUse {
    fn now() -> Option<ProcessorUse> {
        let allowed = sched_getaffinity(None).ok()?;
        let idle = idle(&proc_files::of_kernel("stat").ok()?, |n| allowed.is_set(n))?;
        // Only the rest of a cgroup's limit is free.
        let limited = match processors() < allowed.count() as usize {
            true => Some(used_by_group()?),
            false => None,
        };
        Some(ProcessorUse { idle, limited })
    }
}

fn idle(stat: &str, allowed: impl Fn(usize) -> bool) -> Option<f64> {
    let of_line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let number: usize = fields.next()?.parse().ok()?;
        let ticks: Vec<f64> = fields.map_while(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait: waiting for a disk is free.
        allowed(number).then(|| ticks.iter().skip(3).take(2).sum::<f64>() / TICKS)
    };
    let each: Vec<f64> = stat.lines().filter_map(of_line).collect();
    (!each.is_empty()).then(|| each.iter().sum())
}

fn used_by_group() -> Option<f64> {
    let groups = proc_files::fields("self", "cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // A container's own cgroup is the visible root.
    let files: [PathBuf; 2] = [Path::new(CGROUPS).join(own), CGROUPS.into()];
    files.iter().find_map(|group| used(&std::fs::read_to_string(group.join("cpu.stat")).ok()?))
}

/// In seconds, from the text of `cpu.stat`.
fn used(stat: &str) -> Option<f64> {
    let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(micros.parse::<f64>().ok()? * 1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  30 0 0 900 100 0 0 0 0 0\ncpu0 10 0 0 400 50 0 0 0 0 0\ncpu1 20 0 0 500 50 0 0 0 0 0\nintr 1\n";

    #[test]
    fn only_processors_that_may_be_used_count_as_idle() {
        assert_eq!(idle(STAT, |_| true), Some(10.0));
        assert_eq!(idle(STAT, |n| n == 0), Some(4.5));
        assert_eq!(idle(STAT, |n| n > 1), None, "unknown is not idle");
        assert_eq!(used("usage_usec 2500000\nuser_usec 1\n"), Some(2.5));
    }

    #[test]
    fn this_machine_has_from_zero_to_all_processors_idle() {
        let idle = IdleMeter::start().idle().unwrap();
        let all = sched_getaffinity(None).unwrap().count();
        assert!((0.0..=f64::from(all) + 0.2).contains(&idle), "{idle}");
    }
}
