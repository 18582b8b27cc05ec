//! Stacks at both ends of a tick.

use rustc_hash::FxHashMap;

use super::Profile;
use crate::analysis::profile::bounds::{BoundsTable, IntervalBounds};
use crate::model::{StackId, ThreadId, ThreadSample};

pub(super) struct ThreadStay {
    pub(super) left: Option<StackId>,
    pub(super) came: Option<StackId>,
    /// The common stack, if they differ.
    pub(super) common: Option<StackId>,
}

impl ThreadStay {
    /// Gives the lines the levels in `step`. `near`: the thread probably stayed in between.
    pub(super) fn charge(
        &self,
        bounds: &mut BoundsTable,
        step: &IntervalBounds,
        near: bool,
        version: u64,
    ) {
        match *self {
            ThreadStay { left: Some(a), came: Some(b), .. } if near && a == b => {
                bounds.stayed(a.0, step, version);
            }
            ThreadStay { left, came, common } => {
                if let Some(common) = common.filter(|_| near) {
                    bounds.stayed(common.0, step, version);
                }
                if let Some(left) = left {
                    bounds.left(left.0, step);
                }
                if let Some(came) = came {
                    bounds.came(came.0, step, version);
                }
            }
        }
    }
}

impl Profile {
    /// Stacks at both ends, of threads at work at either.
    pub(super) fn thread_stays(&mut self) -> Vec<ThreadStay> {
        let (previous, open) = (by_thread(&self.previous.threads), by_thread(&self.open.threads));
        let at_work = by_thread(&self.at_work);
        // A thread idle at one end keeps its lines up to that end.
        let came = self.at_work.iter().map(|now| (previous.get(&now.thread), Some(&now.stack)));
        let left =
            self.previously_at_work.iter().filter(|then| !at_work.contains_key(&then.thread));
        let left = left.map(|then| (Some(&then.stack), open.get(&then.thread)));
        let stay = |(left, came): (Option<&StackId>, Option<&StackId>)| {
            let (left, came) = (left.copied(), came.copied());
            let ends = left.zip(came).filter(|(left, came)| left != came);
            let common = ends.and_then(|(a, b)| self.stack_facts().common(a, b));
            ThreadStay { left, came, common }
        };
        let stays: Vec<ThreadStay> = came.chain(left).map(stay).collect();
        let depth = |stack: Option<StackId>| {
            stack.and_then(|stack| self.depths.get(stack.0 as usize)).map_or(0, |d| *d as usize)
        };
        let walked = |stay: &ThreadStay| match stay {
            ThreadStay { left, came, .. } if left == came => 8,
            ThreadStay { left: Some(_), came: Some(_), common } => {
                8 + depth(stay.left) + depth(stay.came) - 2 * depth(*common)
            }
            _ => 8,
        };
        let walked = stays.iter().map(walked).sum();
        self.memory.add_work(walked);
        stays
    }
}

fn by_thread(threads: &[ThreadSample]) -> FxHashMap<ThreadId, StackId> {
    let mut stacks = FxHashMap::default();
    for thread in threads {
        stacks.entry(thread.thread).or_insert(thread.stack);
    }
    stacks
}
