//! Stacks of allocation sites; joins small ones.

use rustc_hash::FxHashMap;

use super::builder::ReportSource;
use super::lifetimes::BlockSum;
use super::track::{BlockSpan, ChurnedBytes, MemoryTrack, SitePath};
use crate::analysis::exact::{OWNED, SITES};
use crate::analysis::flame::paths;
use crate::analysis::folded::{PseudoFrame, StackLabel};
use crate::analysis::profile::Profile;
use crate::model::SiteId;

/// Stacks below this part of the peak, and of all churned bytes, are narrower than a pixel.
const VISIBLE: f64 = 1.0 / 2000.0;
const MAX_STACKS: usize = 3000;
const MAX_SPANS: usize = 300_000;
/// A recording can have many deep stacks.
const MAX_LABELS: usize = 3_000_000;

/// The stack that joins the small ones.
const SMALL_STACK: u32 = 0;

pub(super) struct TrackStacks<'a> {
    profile: &'a Profile,
    sources: &'a [ReportSource],
    list: Vec<SitePath>,
    known: FxHashMap<(Vec<StackLabel>, bool), u32>,
    /// By allocation site: the stack with most of its bytes.
    of_source: FxHashMap<u32, u32>,
    /// One site per class of autograd node.
    nodes: FxHashMap<std::sync::Arc<str>, SiteId>,
    labels: usize,
}

impl<'a> TrackStacks<'a> {
    pub(super) fn new(profile: &'a Profile, sources: &'a [ReportSource]) -> TrackStacks<'a> {
        let small = SitePath { path: Vec::new(), is_estimate: false, is_remainder: false };
        TrackStacks {
            profile,
            sources,
            list: vec![small],
            known: FxHashMap::default(),
            of_source: FxHashMap::default(),
            nodes: FxHashMap::default(),
            labels: 0,
        }
    }

    fn number(&mut self, mut path: Vec<StackLabel>, is_estimate: bool) -> u32 {
        if self.labels > MAX_LABELS {
            path = vec![StackLabel::Pseudo(PseudoFrame::LeftOut)];
        }
        for label in &mut path {
            if let StackLabel::Node(site) | StackLabel::NodeOfUnknownLine(site) = label
                && let Some(found) = self.profile.stacks().get_site(*site)
                && let Some(node) = &found.node
            {
                *site = *self.nodes.entry(node.clone()).or_insert(*site);
            }
        }
        let (list, labels) = (&mut self.list, &mut self.labels);
        *self.known.entry((path, is_estimate)).or_insert_with_key(|(path, _)| {
            *labels += path.len();
            list.push(SitePath { path: path.clone(), is_estimate, is_remainder: false });
            list.len() as u32 - 1
        })
    }

    /// The stack of counted bytes without a block.
    fn remainder(&mut self, is_exact: bool) -> u32 {
        let frame = if is_exact { PseudoFrame::NoEvent } else { PseudoFrame::Unmatched };
        let path = vec![StackLabel::Pseudo(frame)];
        self.list.push(SitePath { path, is_estimate: false, is_remainder: true });
        self.list.len() as u32 - 1
    }

    fn is_estimated(&self) -> bool {
        self.profile.exact().is_some_and(|exact| exact.is_estimated())
    }

    /// Whether the bytes of a site are estimated in proportion.
    fn shares(&self, source: u32) -> bool {
        let account = self.sources.get(source as usize);
        self.is_estimated()
            && matches!(account, Some(ReportSource::Account(a)) if (SITES..OWNED).contains(a))
    }

    fn split(&mut self, source: u32, sum: BlockSum, take: &mut dyn FnMut(u32, u64, u64)) {
        let is_estimate = self.shares(source);
        match self.sources.get(source as usize).cloned() {
            None => {}
            Some(ReportSource::Account(account)) => {
                let known = self.of_source.get(&source).copied();
                let stack = known.unwrap_or_else(|| {
                    let path = match self.profile.exact() {
                        Some(exact) => exact.account_path(account, self.profile.stacks()),
                        None => vec![StackLabel::Pseudo(PseudoFrame::UnknownStack)],
                    };
                    self.number(path, is_estimate)
                });
                self.of_source.insert(source, stack);
                match is_estimate {
                    true if sum.stands_for == 0 => {}
                    true => take(stack, sum.stands_for, sum.count),
                    false => take(stack, sum.bytes, sum.count),
                }
            }
            Some(ReportSource::Charge(charge)) => {
                let charge = self.profile.shown(&charge);
                let is_sole = charge.shares.len() == 1;
                let mut parts = Vec::new();
                charge.split(sum.bytes, |origin, bytes| parts.push((origin, bytes)));
                let count = if is_sole { sum.count } else { 0 };
                let greatest = parts.iter().map(|(_, bytes)| *bytes).max();
                for (origin, bytes) in parts {
                    let path = paths::of_origin(self.profile, origin);
                    let stack = self.number(path, false);
                    if Some(bytes) == greatest {
                        self.of_source.insert(source, stack);
                    }
                    take(stack, bytes, count);
                }
            }
        }
    }

    pub(super) fn stack_of(&self, source: u32) -> Option<u32> {
        self.of_source.get(&source).copied()
    }

    pub(super) fn into_list(self) -> Vec<SitePath> {
        self.list
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownBytes {
    pub(super) bytes: u64,
    /// The part estimated in proportion.
    pub(super) shared: u64,
}

#[derive(Debug)]
pub(super) struct TrackDraft {
    pub(super) spans: Vec<BlockSpan>,
    pub(super) churned: Vec<ChurnedBytes>,
    /// By moment: growth of (known, shared) bytes.
    changes: Vec<(i128, i128)>,
}

impl TrackDraft {
    pub(super) fn new(moments: usize) -> TrackDraft {
        let changes = vec![(0, 0); moments + 1];
        TrackDraft { spans: Vec::new(), churned: Vec::new(), changes }
    }

    pub(super) fn add_span(
        &mut self,
        stacks: &mut TrackStacks<'_>,
        source: u32,
        (from, to): (u32, u32),
        sum: BlockSum,
    ) {
        if from >= to {
            return;
        }
        let shared = if stacks.shares(source) { sum.bytes } else { 0 };
        for (moment, sign) in [(from, 1), (to, -1)] {
            let change = &mut self.changes[moment as usize];
            change.0 += sign * i128::from(sum.bytes);
            change.1 += sign * i128::from(shared);
        }
        let spans = &mut self.spans;
        stacks.split(source, sum, &mut |stack, bytes, count| {
            spans.push(BlockSpan { stack, from, to, bytes, count });
        });
    }

    pub(super) fn add_churned(
        &mut self,
        stacks: &mut TrackStacks<'_>,
        source: u32,
        before: u32,
        sum: BlockSum,
    ) {
        let churned = &mut self.churned;
        stacks.split(source, sum, &mut |stack, bytes, count| {
            churned.push(ChurnedBytes { stack, before, bytes, count });
        });
    }

    pub(super) fn known(&self) -> Vec<KnownBytes> {
        let mut now = (0i128, 0i128);
        let moments = self.changes.len() - 1;
        let known = self.changes[..moments].iter().map(|change| {
            now = (now.0 + change.0, now.1 + change.1);
            KnownBytes { bytes: now.0.max(0) as u64, shared: now.1.max(0) as u64 }
        });
        known.collect()
    }

    pub(super) fn add_remainder(
        &mut self,
        stacks: &mut TrackStacks<'_>,
        missing: &[u64],
        is_exact: bool,
    ) {
        if missing.iter().all(|bytes| *bytes == 0) {
            return;
        }
        let stack = stacks.remainder(is_exact);
        let mut from = 0;
        for run in missing.chunk_by(|a, b| a == b) {
            let to = from + run.len();
            let bytes = run.first().copied().unwrap_or(0);
            if bytes > 0 {
                let (from, to) = (from as u32, to as u32);
                self.spans.push(BlockSpan { stack, from, to, bytes, count: 0 });
            }
            from = to;
        }
    }
}

impl MemoryTrack {
    pub(super) fn pruned(mut self) -> MemoryTrack {
        let mut visible = VISIBLE;
        loop {
            self.fold_small(visible);
            let entries = self.spans.len() + self.churned.as_ref().map_or(0, Vec::len);
            if entries <= MAX_SPANS || visible > 0.5 {
                return self;
            }
            visible *= 2.0;
        }
    }

    /// By stack: its greatest part of the peak at any moment, or of all churned bytes.
    fn weights(&self) -> Vec<f64> {
        let top = self.moments.iter().map(|moment| moment.total).max().unwrap_or(0).max(1) as f64;
        let mut changes: Vec<(u32, u32, i128)> = Vec::with_capacity(2 * self.spans.len());
        for span in &self.spans {
            changes.push((span.stack, span.from, i128::from(span.bytes)));
            changes.push((span.stack, span.to, -i128::from(span.bytes)));
        }
        changes.sort_unstable();
        let mut weights = vec![0f64; self.stacks.len()];
        for of_stack in changes.chunk_by(|a, b| a.0 == b.0) {
            let mut now = 0i128;
            for at_once in of_stack.chunk_by(|a, b| a.1 == b.1) {
                now += at_once.iter().map(|change| change.2).sum::<i128>();
                let weight = &mut weights[of_stack[0].0 as usize];
                *weight = weight.max(now as f64 / top);
            }
        }
        let churned = self.churned.as_deref().unwrap_or_default();
        let all: f64 = churned.iter().map(|bytes| bytes.bytes as f64).sum();
        let mut of_churn = vec![0f64; self.stacks.len()];
        for bytes in churned {
            of_churn[bytes.stack as usize] += bytes.bytes as f64 / all.max(1.0);
        }
        weights.iter().zip(of_churn).map(|(weight, churn)| weight.max(churn)).collect()
    }

    fn fold_small(&mut self, visible: f64) {
        let weights = self.weights();
        let mut order: Vec<usize> = (1..self.stacks.len()).collect();
        order.sort_unstable_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
        let is_kept = |(rank, stack): (usize, &usize)| {
            let stack = &self.stacks[*stack];
            // Never joined with small stacks.
            stack.is_remainder || (rank < MAX_STACKS && weights[order[rank]] >= visible)
        };
        let mut kept: Vec<usize> =
            order.iter().enumerate().filter(|(r, s)| is_kept((*r, s))).map(|(_, s)| *s).collect();
        let has_estimates = self.stacks.iter().any(|stack| stack.is_estimate);
        kept.sort_unstable();
        let mut renumbered = vec![SMALL_STACK; self.stacks.len()];
        let mut stacks = vec![self.stacks[0].clone()];
        // Small estimates join in a stack of their own.
        let mut small_estimate = None;
        for (number, stack) in self.stacks.iter().enumerate().skip(1) {
            if kept.binary_search(&number).is_ok() {
                renumbered[number] = stacks.len() as u32;
                stacks.push(stack.clone());
            } else if stack.is_estimate && has_estimates {
                let index = *small_estimate.get_or_insert_with(|| {
                    let path = vec![StackLabel::Pseudo(PseudoFrame::LeftOut)];
                    stacks.push(SitePath { path, is_estimate: true, is_remainder: false });
                    stacks.len() as u32 - 1
                });
                renumbered[number] = index;
                self.small += 1;
            } else {
                self.small += 1;
            }
        }
        let renumber = |stack: &mut u32| *stack = renumbered[*stack as usize];
        self.stacks = stacks;
        self.spans.iter_mut().for_each(|span| renumber(&mut span.stack));
        merge(
            &mut self.spans,
            |span| (span.stack, span.from, span.to),
            |a, b| {
                a.bytes += b.bytes;
                a.count += b.count;
            },
        );
        if let Some(churned) = &mut self.churned {
            churned.iter_mut().for_each(|bytes| renumber(&mut bytes.stack));
            merge(
                churned,
                |bytes| (bytes.stack, bytes.before),
                |a, b| {
                    a.bytes += b.bytes;
                    a.count += b.count;
                },
            );
        }
        let blocks = self.maps.iter_mut().flat_map(|map| &mut map.segments);
        for block in blocks.flat_map(|segment| &mut segment.blocks) {
            block.stack.iter_mut().for_each(renumber);
        }
    }
}

fn merge<T: Ord, K: PartialEq>(all: &mut Vec<T>, key: impl Fn(&T) -> K, add: impl Fn(&mut T, &T)) {
    all.sort_unstable();
    all.dedup_by(|later, earlier| {
        let same = key(later) == key(earlier);
        if same {
            add(earlier, later);
        }
        same
    });
}
