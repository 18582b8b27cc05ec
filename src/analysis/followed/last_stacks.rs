//! Where a thread was last, for changes before which its stack could not be read.
//!
//! A poll finds some stacks half changed. Where nobody else can have made a change, whoever was read a moment before stands in for that: as if the polls
//! had been further apart. What is found so is likely, never certain.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::CANDIDATES_WITHIN;
use crate::model::{FollowedChange, Nanos, StackReading, ThreadId};

/// The last stack of each thread, and when it was read.
#[derive(Debug, Default)]
pub(super) struct LastStacks(FxHashMap<ThreadId, (u64, StackReading)>);

impl LastStacks {
    /// The change with what is known in place of stacks that could not be read before it; `None` if there is nothing to put in.
    pub(super) fn complete(&self, change: &FollowedChange) -> Option<FollowedChange> {
        let unread = change.threads.iter().any(|thread| thread.before == StackReading::Torn);
        let mut completed = unread.then(|| change.clone())?;
        let mut since = change.before.0;
        for thread in &mut completed.threads {
            let last = self.0.get(&thread.thread).filter(|(time, _)| {
                thread.before == StackReading::Torn
                    && change.after.0.saturating_sub(*time) <= CANDIDATES_WITHIN
            });
            if let Some(&(time, reading)) = last {
                thread.before = reading;
                since = since.min(time);
            }
        }
        completed.before = Nanos(since);
        (completed.threads != change.threads).then_some(completed)
    }

    /// Takes the stacks of a change.
    pub(super) fn see(&mut self, change: &FollowedChange) {
        for thread in &change.threads {
            let readings = [(change.after.0, thread.after), (change.before.0, thread.before)];
            let read = |(_, reading): &(u64, StackReading)| {
                matches!(reading, StackReading::Whole(_) | StackReading::NoFrames)
            };
            if let Some(last) = readings.into_iter().find(read) {
                self.0.insert(thread.thread, last);
            }
        }
    }
}
