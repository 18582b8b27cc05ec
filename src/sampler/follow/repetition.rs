//! Whether the job does over and over what it did before: then fewer polls tell as much, and the job has its memory to itself.
//!
//! A training loop comes to the same numbers of blocks and bytes at the same place of each iteration. Once nearly all of these
//! *levels* have been seen a few times, each change of several blocks can be told from the earlier iterations that were
//! followed closely (`analysis/followed/repeated_steps.rs`). A level that is new means that the job does something else.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::counter_watch::CounterChange;
use crate::model::CudaIndex;

/// A level seen so many times is one of the iterations.
const KNOWN_AFTER: u8 = 4;
/// With fewer levels the bytes do not tell where in an iteration the job is.
const MIN_LEVELS: usize = 64;
/// Levels remembered; with more the job does not repeat itself, or not in a time that could be waited for.
const MAX_LEVELS: usize = 1 << 16;
/// Over about so many changes is counted how many levels were new.
const CHANGES: f64 = 1024.0;
/// At most this part of the levels is new in a job that repeats itself; with twice as much it does no longer.
const NEW: f64 = 0.02;
/// How long polls go on without rest after a new level: more of the same kind follows as a rule.
const AFTER_NEW: Duration = Duration::from_millis(20);
/// How long each job is followed closely before it can count as one that repeats itself.
const CLOSELY_FIRST: Duration = Duration::from_secs(2);

/// The bytes alive in the small and in the large pool of a device.
type Level = (CudaIndex, [i64; 2]);

/// What is known of a job's repetitions.
#[derive(Debug)]
pub(super) struct Repetition {
    levels: FxHashMap<Level, u8>,
    /// Levels that are known well.
    known: usize,
    /// The part of the last changes that came to a level that was not.
    new: f64,
    repeats: bool,
    /// Until when polls go on without rest.
    closely_until: Duration,
}

impl Repetition {
    /// Of a job that is followed from now on.
    pub(super) fn new(now: Duration) -> Repetition {
        Repetition {
            levels: FxHashMap::default(),
            known: 0,
            new: 1.0,
            repeats: false,
            closely_until: now + CLOSELY_FIRST,
        }
    }

    /// Takes a change.
    pub(super) fn saw(&mut self, change: &CounterChange, now: Duration) {
        if self.levels.len() == MAX_LEVELS {
            *self = Repetition::new(now);
        }
        let seen = self.levels.entry((change.device, change.live)).or_default();
        let is_new = *seen < KNOWN_AFTER;
        *seen = seen.saturating_add(1);
        self.known += usize::from(is_new && *seen == KNOWN_AFTER);
        self.new += (f64::from(u8::from(is_new)) - self.new) / CHANGES;
        if is_new {
            self.closely_until = self.closely_until.max(now + AFTER_NEW);
        }
        let most = if self.repeats { 2.0 * NEW } else { NEW };
        self.repeats = self.new <= most && self.known >= MIN_LEVELS;
    }

    /// Whether the job does what it did before, and polls may rest between two of them.
    pub(super) fn is_steady(&self, now: Duration) -> bool {
        self.repeats && now >= self.closely_until
    }
}
