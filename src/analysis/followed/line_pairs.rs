//! Which changes of the counters go with which lines of generated code: both are in order, and what a line asks for is known.

use super::generated_buffers::{BufferLine, BufferSize};
use super::pool_change::MAX_SMALL_BLOCK;
use crate::model::CounterDelta;

/// Results of operators, whose types are not known, that one change is tried with: each has five types.
const MAX_OPEN: usize = 3;

/// A change that waits for the end of the call in which it happened.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnplacedChange {
    pub(super) number: u64,
    pub(super) small: CounterDelta,
    pub(super) large: CounterDelta,
    /// Whether the thread was in something that a line called.
    pub(super) is_below: bool,
    /// The first line that can have made it, and the one behind the last, once that is known.
    pub(super) from: usize,
    pub(super) to: Option<usize>,
}

impl UnplacedChange {
    /// How many blocks it allocated.
    fn blocks(&self) -> usize {
        self.small.allocations.saturating_add(self.large.allocations).max(0) as usize
    }

    /// Whether these lines, one after the other, allocate what it did; `sizes` are the bytes of each, then.
    pub(super) fn fits(&self, lines: &[BufferLine], sizes: &mut Vec<u64>) -> bool {
        sizes.clear();
        let pools = [self.small, self.large];
        if let [BufferLine { size: BufferSize::Unknown, .. }] = lines {
            let requested = pools[0].requested_bytes.saturating_add(pools[1].requested_bytes);
            sizes.push(requested.max(0) as u64);
            return true;
        }
        let open = lines.iter().filter(|line| line.is_operator()).count();
        let left = pools.map(|pool| (pool.allocations, pool.requested_bytes));
        open <= MAX_OPEN && adds_up(left, lines, sizes)
    }
}

/// Whether lines allocate what is `left` of each pool, in blocks and bytes: adds their bytes to `sizes`.
fn adds_up(left: [(i64, i64); 2], lines: &[BufferLine], sizes: &mut Vec<u64>) -> bool {
    let Some((line, rest)) = lines.split_first() else { return left == [(0, 0); 2] };
    let known = sizes.len();
    line.possible_bytes().any(|bytes| {
        let mut left = left;
        let (count, requested) = &mut left[usize::from(bytes > MAX_SMALL_BLOCK)];
        *count -= 1;
        *requested = requested.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        if *count < 0 || *requested < 0 {
            return false;
        }
        sizes.truncate(known);
        sizes.push(bytes);
        adds_up(left, rest, sizes)
    })
}

/// Pairs changes with lines, both in order, so that as many blocks as possible have a line: each pair with its first line and the one behind its last,
/// counted from the first of `lines`, which is number `first` of all.
///
/// Where that can be done in several ways, a change that began in something that a line called is rather left without a line, and the earlier
/// lines are taken: none of them is passed over.
pub(super) fn pairs<'w>(
    waiting: &'w [UnplacedChange],
    lines: &[BufferLine],
    first: usize,
) -> Vec<(&'w UnplacedChange, usize, usize)> {
    let width = lines.len() + 1;
    // How many blocks have a line, from this change and this line on.
    let mut best = vec![0usize; (waiting.len() + 1) * width];
    let mut sizes = Vec::new();
    let mut taken = |best: &[usize], i: usize, j: usize| {
        let (change, count) = (&waiting[i], waiting[i].blocks());
        let end = j.checked_add(count)?;
        let is_between = change.from <= first + j && change.to.is_none_or(|to| first + end <= to);
        let run = lines.get(j..end).filter(|_| is_between)?;
        change.fits(run, &mut sizes).then(|| count + best[(i + 1) * width + end])
    };
    for i in (0..waiting.len()).rev() {
        for j in (0..width).rev() {
            let skips_line = if j + 1 < width { best[i * width + j + 1] } else { 0 };
            let skips = best[(i + 1) * width + j].max(skips_line);
            best[i * width + j] = skips.max(taken(&best, i, j).unwrap_or(0));
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut found = Vec::new();
    while i < waiting.len() {
        let here = best[i * width + j];
        let without = best[(i + 1) * width + j] == here;
        if without && waiting[i].is_below {
            i += 1;
        } else if taken(&best, i, j) == Some(here) {
            let end = j + waiting[i].blocks();
            found.push((&waiting[i], j, end));
            (i, j) = (i + 1, end);
        } else if without {
            i += 1;
        } else {
            j += 1;
        }
    }
    found
}
