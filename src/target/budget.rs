//! Limits the time and memory of a read.

use std::path::Path;
use std::time::{Duration, Instant};

use super::memory::MemoryError;
use super::proc_files;

const PAGE: u64 = 4096;
const CGROUPS: &str = "/sys/fs/cgroup";

/// A limit of time and memory ([`super::PageCache::within`]).
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    until: Option<Instant>,
    /// memspy's resident bytes at the start.
    resident: u64,
    /// Allowed growth in bytes.
    bytes: u64,
}

impl Budget {
    /// Starts now.
    pub fn new(time: Duration, bytes: u64) -> Budget {
        Budget { until: Instant::now().checked_add(time), resident: resident(), bytes }
    }

    /// Shortens the time to `time` from now.
    pub fn with_time_limit(self, time: Duration) -> Budget {
        let until = Instant::now().checked_add(time);
        let first = [self.until, until].into_iter().flatten().min();
        Budget { until: first, ..self }
    }

    /// The remaining time.
    pub fn left(&self) -> Duration {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        self.until.map_or(Duration::MAX, left)
    }

    /// The exceeded limit, with `more` bytes allowed on top. Takes microseconds.
    pub(super) fn exceeded(&self, more: u64) -> Option<MemoryError> {
        if self.left() == Duration::ZERO {
            return Some(MemoryError::TimeUp);
        }
        let grown = resident().saturating_sub(self.resident);
        (grown > self.bytes.saturating_add(more)).then_some(MemoryError::OutOfRoom)
    }
}

/// Bytes that may be allocated without taking memory from anyone: of the machine, or of memspy's
/// cgroups, whichever is least.
pub fn free_memory() -> Option<u64> {
    let machine = proc_files::of_kernel("meminfo").ok()?;
    let line = machine.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? << 10;
    let groups = proc_files::fields("self", "cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    // A container's own cgroup is the visible root.
    let of_groups = Path::new(own).ancestors().filter_map(free_in_group);
    Some(of_groups.fold(machine, u64::min))
}

/// `None` without a limit.
fn free_in_group(group: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let path = Path::new(CGROUPS).join(group).join(name);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

/// 0 if unreadable.
fn resident() -> u64 {
    let statm = proc_files::fields("self", "statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_known() {
        assert!(free_memory().is_some_and(|free| (1 << 20..1 << 50).contains(&free)));
    }

    #[test]
    fn a_budget_bounds_time_and_memory_and_can_be_extended() {
        let none = Budget::new(Duration::ZERO, u64::MAX);
        assert_eq!(none.exceeded(0), Some(MemoryError::TimeUp));
        assert_eq!(none.left(), Duration::ZERO);
        let hour = Duration::from_secs(3600);
        assert!(Budget::new(hour, 0).with_time_limit(hour / 2).left() <= hour / 2);
        let budget = Budget::new(hour, 16 << 20);
        assert_eq!(budget.exceeded(0), None);
        // Written, so resident; more than parallel tests free meanwhile.
        let taken = vec![1u8; 256 << 20];
        assert_eq!(budget.exceeded(0), Some(MemoryError::OutOfRoom));
        assert_eq!(budget.exceeded(1 << 40), None);
        drop(taken);
    }
}
