//! Decides whether a thread is active.

use crate::model::ThreadActivity;
use crate::target::{AddressRange, KernelWait};

#[derive(Debug, Clone, Copy)]
pub(in crate::python) struct ThreadEvidence {
    pub(in crate::python) gil: bool,
    pub(in crate::python) in_known_wait: bool,
    pub(in crate::python) in_engine: bool,
    pub(in crate::python) moved: bool,
    /// At most 50 ms old.
    pub(in crate::python) os_state: Option<char>,
    /// Before and after its stack was read.
    pub(in crate::python) waits: [Option<WaitKind>; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum WaitKind {
    /// Sleeps, or waits for a lock, file, socket or child.
    Idle,
    /// Waits for the GIL or the allocator's lock.
    Contended,
    MayWork,
    /// Runs, or is in a call that works for it.
    Working,
}

impl WaitKind {
    pub(in crate::python) fn of(wait: KernelWait, working: &[AddressRange]) -> WaitKind {
        match wait {
            KernelWait::Working => WaitKind::Working,
            wait if wait.is_idle(working) => WaitKind::Idle,
            KernelWait::Lock(_) => WaitKind::Contended,
            _ => WaitKind::MayWork,
        }
    }
}

/// The first applicable rule:
///
/// 1. active with the GIL;
/// 2. idle in a known wait, or idle in both kernel states outside the autograd engine;
/// 3. unknown if it waited both times;
/// 4. active if it moved, worked, or is in state `R` or `D`;
/// 5. unknown.
pub(in crate::python) fn classify(signs: ThreadEvidence) -> ThreadActivity {
    if signs.gil {
        return ThreadActivity::Active;
    }
    if signs.in_known_wait {
        return ThreadActivity::Idle;
    }
    match signs.waits {
        [Some(WaitKind::Idle), Some(WaitKind::Idle)] if !signs.in_engine => {
            return ThreadActivity::Idle;
        }
        // It may have allocated before it began to wait.
        [
            Some(WaitKind::Idle | WaitKind::Contended),
            Some(WaitKind::Idle | WaitKind::Contended),
        ] => {
            return ThreadActivity::Unknown;
        }
        _ => {}
    }
    if signs.moved || signs.waits.contains(&Some(WaitKind::Working)) {
        return ThreadActivity::Active;
    }
    match signs.os_state {
        Some('R' | 'D') => ThreadActivity::Active,
        _ => ThreadActivity::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_gil_outranks_known_waits_and_kernel_state() {
        let signs = ThreadEvidence {
            gil: false,
            in_known_wait: true,
            in_engine: false,
            moved: true,
            os_state: Some('R'),
            waits: [None; 2],
        };
        assert_eq!(classify(signs), ThreadActivity::Idle);
        assert_eq!(classify(ThreadEvidence { gil: true, ..signs }), ThreadActivity::Active);
        let elsewhere = ThreadEvidence { in_known_wait: false, ..signs };
        assert_eq!(classify(elsewhere), ThreadActivity::Active);
        let waiting = ThreadEvidence { waits: [Some(WaitKind::Idle); 2], ..elsewhere };
        assert_eq!(classify(waiting), ThreadActivity::Idle, "it came here and waits");
        let for_engine = ThreadEvidence { in_engine: true, ..waiting };
        assert_eq!(classify(for_engine), ThreadActivity::Unknown, "others allocate for it");
        let for_gil = ThreadEvidence { waits: [Some(WaitKind::Contended); 2], ..elsewhere };
        assert_eq!(classify(for_gil), ThreadActivity::Unknown, "it may have allocated here");
        let still = ThreadEvidence { moved: false, ..elsewhere };
        assert_eq!(classify(still), ThreadActivity::Active);
        assert_eq!(
            classify(ThreadEvidence { os_state: Some('S'), ..still }),
            ThreadActivity::Unknown
        );
    }

    /// A state was reused for 50 ms, so allocations became `[not seen]`.
    #[test]
    fn running_threads_are_not_idle_because_of_old_state() {
        let running = Some(WaitKind::Working);
        let asleep = Some(WaitKind::MayWork);
        let signs = |waits| ThreadEvidence {
            gil: false,
            in_known_wait: false,
            in_engine: false,
            moved: false,
            os_state: Some('S'),
            waits,
        };
        for waits in [[running, running], [running, asleep], [asleep, running]] {
            assert_eq!(classify(signs(waits)), ThreadActivity::Active, "{waits:?}");
        }
        assert_eq!(classify(signs([asleep, asleep])), ThreadActivity::Unknown);
        let began_to_sleep = [running, Some(WaitKind::Idle)];
        assert_eq!(classify(signs(began_to_sleep)), ThreadActivity::Active);
    }
}
