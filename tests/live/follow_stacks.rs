//! A poller accepts no chain of frames that the thread never had.

use crate::support::pythons;
use crate::support::stack_oracle::{KnownStacks, poll};
use crate::support::target::Target;

/// Enough that threads preempted in the middle of a call, for some polls, are few.
fn polls() -> usize {
    std::env::var("MEMSPY_BUSY_POLLS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// Panics unless all accepted stacks are possible.
fn check(label: &str, (target, known): (Target, KnownStacks)) {
    let polled = poll(&target, polls());
    eprintln!(
        "{label}: {:.1} us a poll, {} believed ({} different), {} not",
        polled.took.as_secs_f64() * 1e6 / polls() as f64,
        polled.believed,
        polled.stacks.len(),
        polled.doubted,
    );
    assert!(polled.believed > 0, "no stack was believed");
    // A chain read while the interpreter wrote it may name no code object; it is rejected then.
    assert!(
        polled.unnamed * 4_000 <= polled.believed,
        "{} of {} code objects could not be named",
        polled.unnamed,
        polled.believed,
    );
    let wrong: Vec<_> = polled.stacks.iter().filter(|(stack, _)| !known.can_be(stack)).collect();
    for (stack, count) in wrong.iter().take(3) {
        eprintln!("{label}: {count} times, never was: {stack:?}");
    }
    let count: u64 = wrong.iter().map(|(_, count)| **count).sum();
    let all: u64 = polled.stacks.values().sum();
    // A thread in the same state at two polls, and elsewhere in between, looks like one that did
    // not move. A busy machine makes that more frequent.
    assert!(count * 4_000 <= all, "{label}: {count} of {all} stacks believed never were");
}

#[test]
#[ignore = "takes long, and levels_believed_follow_each_other_without_a_gap sees stacks change: scripts/test.sh --all runs it"]
fn a_callee_is_accepted_only_under_its_calling_line() {
    for python in pythons::one_per_version() {
        check(&python.label, KnownStacks::pairs(&python, None));
    }
}

#[test]
#[ignore = "takes long, and python_busy sees levels: scripts/test.sh --all runs it"]
fn levels_believed_follow_each_other_without_a_gap() {
    for python in pythons::one_per_version() {
        check(&python.label, KnownStacks::levels(&python));
    }
}

/// Each of these calls changes what is on the C stack between two frames, and what leads to the
/// innermost one.
#[test]
#[ignore = "takes long, and levels_believed_follow_each_other_without_a_gap sees stacks change: scripts/test.sh --all runs it"]
fn functions_called_through_c_are_accepted_only_under_their_callers() {
    for python in pythons::one_per_version() {
        check(&python.label, KnownStacks::calls(&python));
    }
}
