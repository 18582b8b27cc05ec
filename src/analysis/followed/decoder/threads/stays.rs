//! Where each thread stayed, and which stays a delta can belong to.

use rustc_hash::FxHashMap;

use super::SiteNumber;

/// Stays of one thread that a delta can belong to: in more, polls were too far apart.
const MOST_STAYS: usize = 4;
/// How likely a thread allocates where both polls saw it, beside where one did.
const SEEN_TWICE: f64 = 2.0;
/// The same for a thread that a poll saw hold the allocator's lock.
const HELD_LOCK: f64 = 5.0;
/// The same for one that waited at none of the polls, at one, and at both.
const WAITED: [f64; 3] = [1.0, 0.4, 0.1];
/// Stays of a thread from which passages are learned.
const LEARNED_STAYS: usize = 1 << 16;
/// A passage ends at most so many stays later.
const LONGEST_PASSAGE: usize = 5;
/// A site is in between from so many passages, and this share of them, on.
const PASSED: (f64, f64) = (2.0, 0.05);
/// Sites between two others.
const MOST_BETWEEN: usize = 4;

/// Polls in a row that saw a thread at one site.
#[derive(Debug, Clone, Copy)]
struct SiteStay {
    site: SiteNumber,
    /// Times of the first and the last of them.
    first: u64,
    last: u64,
}

/// A thread's stays, one after the other.
#[derive(Debug, Default)]
pub(super) struct ThreadStays(Vec<SiteStay>);

impl ThreadStays {
    /// Takes what a poll saw. Deltas share polls: one delta ends when a poll ends, and the next
    /// begins when the same poll began.
    pub(super) fn see(&mut self, time: u64, site: SiteNumber) {
        match self.0.last_mut() {
            Some(stay) if stay.site == site => {
                (stay.first, stay.last) = (stay.first.min(time), stay.last.max(time));
            }
            Some(stay) if time <= stay.last => {}
            _ => self.0.push(SiteStay { site, first: time, last: time }),
        }
    }

    pub(super) fn site(&self, stay: usize) -> SiteNumber {
        self.0[stay].site
    }

    pub(super) fn sites(&self) -> impl Iterator<Item = SiteNumber> {
        self.0.iter().map(|stay| stay.site)
    }

    /// The stays from the poll at one time to the poll at another.
    pub(super) fn between(&self, before: u64, after: u64) -> Option<(usize, usize)> {
        let latest = self.0.len().checked_sub(1)?;
        let first = self.0.partition_point(|stay| stay.first <= before).saturating_sub(1);
        let last = self.0.partition_point(|stay| stay.last < after).min(latest);
        Some((first, last.clamp(first, first + MOST_STAYS - 1)))
    }
}

/// The stays of a thread that a delta can belong to.
#[derive(Debug)]
pub(super) struct StaySpan {
    pub(super) thread: usize,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) held_lock: bool,
    /// At how many of the two polls it waited.
    pub(super) waited: usize,
}

impl StaySpan {
    /// How likely an allocation was made there, as far as polls tell.
    pub(super) fn weight(&self) -> f64 {
        let both = if self.first == self.last { SEEN_TWICE } else { 1.0 };
        both * WAITED[self.waited] * if self.held_lock { HELD_LOCK } else { 1.0 }
    }
}

/// A delta that allocated, and who can have done it.
#[derive(Debug)]
pub(super) struct ContestedDelta {
    /// Its number in the log.
    pub(super) number: usize,
    /// Allocations in the small and in the large pool, and their requested bytes.
    pub(super) counts: [u32; 2],
    pub(super) sums: [u64; 2],
    pub(super) spans: Vec<StaySpan>,
    /// A thread that is not listed may have made it, or one elsewhere.
    pub(super) others_possible: bool,
}

impl ContestedDelta {
    pub(super) fn count(&self) -> usize {
        self.counts.iter().map(|count| *count as usize).sum()
    }
}

/// Sites that lie between two others: polls can miss them.
#[derive(Debug, Default)]
pub(super) struct Passages(FxHashMap<(SiteNumber, SiteNumber), Vec<(SiteNumber, f64)>>);

impl Passages {
    pub(super) fn of(threads: &[ThreadStays]) -> Passages {
        let mut passages: FxHashMap<(SiteNumber, SiteNumber), (f64, FxHashMap<SiteNumber, f64>)> =
            FxHashMap::default();
        for stays in threads {
            let stays = &stays.0[..stays.0.len().min(LEARNED_STAYS)];
            for (at, start) in stays.iter().enumerate() {
                let mut passed = Vec::new();
                let ends = stays[at + 1..].iter().take(LONGEST_PASSAGE);
                for end in ends.take_while(|end| end.site != start.site) {
                    if passed.contains(&end.site) {
                        continue;
                    }
                    let (times, seen) = passages.entry((start.site, end.site)).or_default();
                    *times += 1.0;
                    passed.iter().for_each(|site| *seen.entry(*site).or_default() += 1.0);
                    passed.push(end.site);
                }
            }
        }
        let shares = |(ends, (times, seen)): (_, (f64, FxHashMap<SiteNumber, f64>))| {
            let often = seen.into_iter().filter(|it| it.1 >= PASSED.0 && it.1 > PASSED.1 * times);
            let mut sites: Vec<(SiteNumber, f64)> =
                often.map(|(site, n)| (site, n / times)).collect();
            sites.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sites.truncate(MOST_BETWEEN);
            (ends, sites)
        };
        Passages(passages.into_iter().map(shares).filter(|it| !it.1.is_empty()).collect())
    }

    /// Sites between two, and in which share of passages.
    pub(super) fn between(&self, from: SiteNumber, to: SiteNumber) -> &[(SiteNumber, f64)] {
        self.0.get(&(from, to)).map_or(&[], Vec::as_slice)
    }
}
