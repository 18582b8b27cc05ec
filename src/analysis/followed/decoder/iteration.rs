//! The folded iteration: what is allocated from place to place, with what the polls of all
//! iterations saw there.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::period::{Phases, PolledTotals, Totals, allocations, sub};
use super::places::Places;
use super::visits::{Around, Gap, Kind, Sequence, Weights};

/// Allocations of the iteration's other end that are context.
const WRAPPED: usize = 40;

/// Deltas from place to place.
pub(super) struct Stretch {
    pub(super) deltas: Range<usize>,
    /// The place at its begin.
    from: usize,
}

/// Numbers of kinds: a pool and requested bytes.
#[derive(Default)]
pub(super) struct Kinds(FxHashMap<(usize, i64), u32>);

impl Kinds {
    /// Of the allocations of a growth, small ones first: known where a pool has one.
    pub(super) fn of(&mut self, growth: &Totals) -> Vec<Kind> {
        let mut found = Vec::new();
        for pool in 0..2 {
            let (count, bytes) = (growth[2 * pool], growth[2 * pool + 1]);
            let number = self.0.len() as u32;
            let kind = (count == 1).then(|| *self.0.entry((pool, bytes)).or_insert(number));
            found.extend((0..count.max(0)).map(|_| kind));
        }
        found
    }
}

/// The iteration.
pub(super) struct FoldedIteration {
    /// With parts of itself before and behind it.
    pub(super) wrapped: Sequence,
    /// Its own part.
    pub(super) own: Range<usize>,
    pub(super) stretches: Vec<Stretch>,
    /// How often it was gone through.
    pub(super) times: f64,
    /// By place: the number of its first allocation.
    first: Vec<usize>,
    /// By allocation: whether it is a large one, and its requested bytes (a mean).
    pub(super) sizes: Vec<(bool, f64)>,
}

impl FoldedIteration {
    pub(super) fn of(
        phases: &Phases,
        polls: &[PolledTotals],
        seen: &[Vec<Weights>],
        kinds: &mut Kinds,
    ) -> FoldedIteration {
        let places = Places::of(phases);
        let stretches = stretches(phases, &places, polls.len());
        let (gaps, around) = visited(phases, &places, seen);
        let mut sequence = Sequence::default();
        let (mut first, mut sizes) = (Vec::new(), Vec::new());
        for (number, growth) in places.steps().iter().enumerate() {
            first.push(sequence.kinds.len());
            let of_step = kinds.of(growth);
            for nth in 0..of_step.len() {
                let is_alone = of_step.len() == 1;
                let gap = if nth == 0 { gaps[number].clone() } else { Gap::default() };
                sequence.gaps.push(gap);
                let around = if is_alone { around[number].clone() } else { Around::default() };
                sequence.around.push(around);
            }
            for pool in 0..2 {
                let (count, bytes) = (growth[2 * pool], growth[2 * pool + 1]);
                let size = (pool == 1, bytes as f64 / count.max(1) as f64);
                sizes.extend((0..count.max(0)).map(|_| size));
            }
            sequence.kinds.extend(of_step);
        }
        let all = polls.last().map_or(0, |last| allocations(&last.totals));
        let times = all as f64 / allocations(&phases.period).max(1) as f64;
        let turned = WRAPPED.min(sequence.kinds.len() / 2);
        let own = turned..turned + sequence.kinds.len();
        FoldedIteration { wrapped: wrap(&sequence, turned), own, stretches, times, first, sizes }
    }

    /// The number of a stretch's first allocation.
    pub(super) fn first(&self, of: &Stretch) -> usize {
        self.first[of.from]
    }
}

/// The sequence with parts of its neighbours before and behind it.
fn wrap(sequence: &Sequence, turned: usize) -> Sequence {
    let Sequence { kinds, gaps, around } = sequence;
    let count = kinds.len().max(1);
    let turn = |place: usize| (place + count - turned) % count;
    let all = 0..kinds.len() + 2 * turned;
    Sequence {
        kinds: all.clone().map(|place| kinds[turn(place)]).collect(),
        gaps: (0..all.end + 1).map(|place| gaps[turn(place)].clone()).collect(),
        around: all.map(|place| around[turn(place)].clone()).collect(),
    }
}

/// The deltas whose polls follow each other in the iteration.
fn stretches(phases: &Phases, places: &Places, polls: usize) -> Vec<Stretch> {
    let at = |poll: usize| places.numbers.get(&phases.phases[poll]).copied();
    let mut stretches = Vec::new();
    let mut last: Option<(usize, usize)> = None;
    for poll in 0..polls {
        let Some(here) = at(poll) else { continue };
        if let Some((before, from)) = last
            && phases.begins[before] == phases.begins[poll]
            && (before + 1..poll).all(|between| places.fits(&phases.phases[between]))
        {
            stretches.push(Stretch { deltas: before..poll, from });
        }
        last = Some((poll, here));
    }
    stretches
}

/// What polls saw at each place, and around what is allocated behind it.
fn visited(phases: &Phases, places: &Places, seen: &[Vec<Weights>]) -> (Vec<Gap>, Vec<Around>) {
    let count = places.places.len();
    let mut gaps = vec![Gap::default(); count];
    let mut around = vec![Around::default(); count];
    let mut was: Option<(usize, Weights)> = None;
    let mut polls = seen.iter().zip(&phases.phases).peekable();
    while let Some((first, phase)) = polls.next() {
        let mut visit = first.clone();
        while let Some((more, _)) = polls.next_if(|(_, next)| *next == phase) {
            visit.extend(more.iter().cloned());
        }
        let here = places.numbers.get(phase).copied();
        let ends = here.and_then(|here| gaps[here].visit(&visit));
        if let (Some(here), Some((before, last)), Some((first, _))) = (here, &was, &ends)
            && (before + 1) % count == here
        {
            around[*before].visit(last, first);
        }
        was = here.zip(ends).map(|(here, (_, last))| (here, last));
    }
    (gaps, around)
}

/// Whether the polls of a stretch differ: it allocates.
pub(super) fn grows(stretch: &Stretch, polls: &[PolledTotals]) -> bool {
    let growth = sub(&polls[stretch.deltas.end].totals, &polls[stretch.deltas.start].totals);
    allocations(&growth) > 0
}
