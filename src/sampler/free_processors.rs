//! Whether processors are free: those that memspy may use, and what of their time nobody used
//! lately.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::thread::sched_getaffinity;

use crate::target::proc_files;

/// The kernel counts in hundredths of a second: less time says little.
const MIN_WINDOW: Duration = Duration::from_millis(300);
/// Counts of /proc/stat in a second.
const TICKS: f64 = 100.0;
const CGROUPS: &str = "/sys/fs/cgroup";

/// How many processors memspy may use, by its affinity and the limits of its group.
pub fn processors() -> usize {
    available_parallelism().map_or(1, NonZero::get)
}

/// Measures how much time of the processors nobody uses, from its creation on.
#[derive(Debug, Clone)]
pub struct IdleMeter {
    began: Instant,
    before: Option<ProcessorUse>,
}

/// What has been used by some moment.
#[derive(Debug, Clone)]
struct ProcessorUse {
    /// Idle seconds of all processors that memspy may run on.
    idle: f64,
    /// Seconds that its group used, where that is limited to fewer processors.
    limited: Option<f64>,
}

impl IdleMeter {
    /// Begins.
    pub fn start() -> IdleMeter {
        IdleMeter { began: Instant::now(), before: ProcessorUse::now() }
    }

    /// How many processors were idle on average since the beginning: 0.5 is half of one. Waits
    /// until enough time has passed to tell. `None` where the kernel does not say.
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
        // A group that may use fewer processors than there are: what counts is what it leaves of
        // these.
        let limited = match processors() < allowed.count() as usize {
            true => Some(used_by_group()?),
            false => None,
        };
        Some(ProcessorUse { idle, limited })
    }
}

/// Idle seconds of the processors that are `allowed`, as /proc/stat has them; `None` where it has
/// none of these.
fn idle(stat: &str, allowed: impl Fn(usize) -> bool) -> Option<f64> {
    let of_line = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split(' ');
        let number: usize = fields.next()?.parse().ok()?;
        let ticks: Vec<f64> = fields.map_while(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait: a processor on which all wait for a disk is free.
        allowed(number).then(|| ticks.iter().skip(3).take(2).sum::<f64>() / TICKS)
    };
    let each: Vec<f64> = stat.lines().filter_map(of_line).collect();
    (!each.is_empty()).then(|| each.iter().sum())
}

/// Seconds of processors that memspy's group has used.
fn used_by_group() -> Option<f64> {
    let groups = proc_files::fields("self", "cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // Within a container, the own group is the root of what is seen.
    let files: [PathBuf; 2] = [Path::new(CGROUPS).join(own), CGROUPS.into()];
    files.iter().find_map(|group| used(&std::fs::read_to_string(group.join("cpu.stat")).ok()?))
}

/// Seconds used, as `cpu.stat` has them.
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
    fn this_machine_has_between_none_and_all_of_its_processors_idle() {
        let idle = IdleMeter::start().idle().unwrap();
        let all = sched_getaffinity(None).unwrap().count();
        assert!((0.0..=f64::from(all) + 0.2).contains(&idle), "{idle}");
    }
}
