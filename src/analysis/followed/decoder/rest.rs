//! Allocations that do not fold, in their own order.

use std::ops::Range;

use super::delta_log::LoggedDelta;
use super::iteration::Kinds;
use super::places::allocated;
use super::visits::{Around, Gap, Sequence, Weights};

/// Allocations that are decoded although they do not fold.
const MAX_REST: usize = 1 << 20;

/// Deltas in a row, and their allocations.
pub(super) struct Rest {
    pub(super) sequence: Sequence,
    pub(super) deltas: Range<usize>,
}

pub(super) fn rests(
    deltas: &[LoggedDelta],
    seen: &[Vec<Weights>],
    is_folded: &[bool],
    kinds: &mut Kinds,
) -> Vec<Rest> {
    let mut rests = Vec::new();
    let (mut first, mut all) = (0, 0);
    for part in is_folded.chunk_by(|a, b| a == b) {
        let deltas_of_part = first..first + part.len();
        first += part.len();
        let allocations = || deltas[deltas_of_part.clone()].iter().map(LoggedDelta::allocations);
        if part.first() == Some(&false) && all + allocations().sum::<usize>() <= MAX_REST {
            all += allocations().sum::<usize>();
            let sequence = sequence(deltas, seen, deltas_of_part.clone(), kinds);
            if !sequence.kinds.is_empty() {
                rests.push(Rest { sequence, deltas: deltas_of_part });
            }
        }
    }
    rests
}

/// What polls saw since the last allocation.
struct OpenGap {
    polls: Vec<Weights>,
    /// What the last poll of the gap before saw.
    was: Option<Weights>,
}

impl OpenGap {
    fn close(&mut self, sequence: &mut Sequence) {
        let mut gap = Gap::default();
        let ends = gap.visit(&self.polls);
        self.polls.clear();
        sequence.gaps.push(gap);
        if sequence.gaps.len() > 1 {
            let mut around = Around::default();
            if let (Some(last), Some((first, _))) = (&self.was, &ends) {
                around.visit(last, first);
            }
            sequence.around.push(around);
        }
        self.was = ends.map(|ends| ends.1);
    }
}

fn sequence(
    deltas: &[LoggedDelta],
    seen: &[Vec<Weights>],
    of: Range<usize>,
    kinds: &mut Kinds,
) -> Sequence {
    let mut sequence = Sequence::default();
    let mut open = OpenGap { polls: seen[of.start].clone(), was: None };
    for number in of {
        for kind in kinds.of(&allocated(&deltas[number])) {
            open.close(&mut sequence);
            sequence.kinds.push(kind);
        }
        open.polls.extend(seen[number + 1].iter().cloned());
    }
    open.close(&mut sequence);
    sequence
}
