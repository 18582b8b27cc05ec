//! How sure a site must be in this recording to be *probable*: the decoder is asked about
//! allocations of which polls saw the site, without what they saw there.

use super::iteration::FoldedIteration;
use super::rest::Rest;
use super::sites::Posteriors;
use super::visits::{Label, Sequence};

/// One in so many allocations whose site was seen is held out.
const ONE_IN: u64 = 4;
/// Part of the polls around an allocation that saw its site.
const SEEN: f64 = 0.95;
/// Probabilities from which on a site may be probable.
const LEVELS: [f64; 6] = [0.8, 0.85, 0.9, 0.95, 0.98, 0.99];
/// Part of right answers wanted.
const WANTED: f64 = 0.95;
/// Answers before they say something.
const FEWEST: u32 = 32;
/// Without enough answers.
const UNCHECKED: f64 = 0.95;

/// The sites of the allocations held out of a sequence; `None` for all others.
pub(super) type HeldOut = Vec<Option<Label>>;

/// Those of a sequence; `number` is the same for copies of one allocation.
fn held_out(of: &Sequence, number: impl Fn(usize) -> u64) -> HeldOut {
    let label = |place: usize| {
        let around = &of.around[place];
        let (label, by) = around.seen.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let hash = number(place).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (hash % ONE_IN == 0 && by >= SEEN * around.visits).then_some(label)
    };
    (0..of.kinds.len()).map(label).collect()
}

pub(super) fn of_iteration(of: &FoldedIteration) -> HeldOut {
    let (turned, count) = (of.own.start, of.own.len().max(1));
    held_out(&of.wrapped, |place| ((place + count - turned) % count) as u64)
}

pub(super) fn of_rest(of: &Rest) -> HeldOut {
    let first = of.deltas.start as u64;
    held_out(&of.sequence, |place| first + place as u64)
}

/// Answers from each of [`LEVELS`] on: right ones, and all.
#[derive(Debug, Default)]
pub(super) struct Answers([(u32, u32); LEVELS.len()]);

impl Answers {
    pub(super) fn add(&mut self, held_out: &[Option<Label>], found: &Posteriors) {
        for (label, sites) in held_out.iter().zip(found) {
            let (Some(label), Some(best)) =
                (label, sites.iter().max_by(|a, b| a.1.total_cmp(&b.1)))
            else {
                continue;
            };
            let reached = LEVELS.iter().zip(&mut self.0).filter(|(level, _)| best.1 >= **level);
            for (_, (right, all)) in reached {
                *right += u32::from(best.0 == *label);
                *all += 1;
            }
        }
    }

    /// The least probability of which enough answers were right.
    pub(super) fn probable_from(&self) -> f64 {
        if std::env::var_os("DBG").is_some() {
            eprintln!("answers {:?}", self.0);
        }
        let is_right = |&(right, all): &(u32, u32)| f64::from(right) >= WANTED * f64::from(all);
        let mut levels = LEVELS.iter().zip(&self.0).filter(|(_, of)| of.1 >= FEWEST).peekable();
        match levels.peek() {
            None => UNCHECKED,
            Some(_) => levels.find(|(_, of)| is_right(of)).map_or(1.0, |(level, _)| *level),
        }
    }
}
