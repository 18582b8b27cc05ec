//! Chains of frames as a poller believes them: none may be one that the thread never had.

use crate::support::pythons;
use crate::support::stack_oracle::{KnownStacks, poll};
use crate::support::target::Target;

/// So many that a thread which the kernel takes off its processor in the midst of a call, and which stands so for some polls, is a small part.
fn polls() -> usize {
    std::env::var("MEMSPY_BUSY_POLLS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// Fails unless all stacks believed can be.
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
    // A chain read while the interpreter wrote it may name what is no code object: it is not believed then, either.
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
    // A thread that comes through the same state twice between two polls, and was elsewhere at the instants of copying,
    // cannot be told from one that stood still: that is so more often where others are at work, too.
    assert!(count * 4_000 <= all, "{label}: {count} of {all} stacks believed never were");
}

#[test]
#[ignore = "takes long, and levels_believed_follow_each_other_without_a_gap sees stacks change: scripts/test.sh --all runs it"]
fn a_callee_is_believed_only_under_the_line_that_calls_it() {
    for python in pythons::one_per_version() {
        check(&python.label, KnownStacks::pairs(&python, None));
    }
}

#[test]
fn levels_believed_follow_each_other_without_a_gap() {
    for python in pythons::one_per_version() {
        check(&python.label, KnownStacks::levels(&python));
    }
}

/// What lies on the C stack between two frames, and what leads to the innermost one, changes at each of these calls.
#[test]
#[ignore = "takes long, and levels_believed_follow_each_other_without_a_gap sees stacks change: scripts/test.sh --all runs it"]
fn functions_called_through_c_are_believed_only_under_those_that_call_them() {
    for python in pythons::one_per_version() {
        check(&python.label, KnownStacks::calls(&python));
    }
}
