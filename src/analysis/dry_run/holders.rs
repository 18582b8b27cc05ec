//! Who holds the bytes of a moment: owners where they are known, else lines.

use std::collections::BTreeMap;

use super::RunFacts;
use super::phases::PhaseClock;
use super::replay::HistoryBlock;
use crate::analysis::phases::RunPhase;
use crate::model::{HistoryFrame, TensorCategory};

/// What holds bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunOwner {
    /// Tensors of one category.
    Category(TensorCategory),
    /// Allocated by this line, in this phase.
    Line(HistoryFrame, RunPhase),
    /// Without a known line.
    Unknown(RunPhase),
}

/// Bytes of one owner.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RunHolder {
    pub owner: RunOwner,
    pub bytes: u64,
    pub blocks: u64,
}

/// By file, line and name, so that equal ones meet.
type HolderLine = (std::sync::Arc<str>, u32, std::sync::Arc<str>, RunPhase);

pub(super) struct HolderSums<'a> {
    clock: &'a PhaseClock<'a>,
    /// By address of the bytes.
    categories: BTreeMap<u64, TensorCategory>,
    by_category: BTreeMap<TensorCategory, (u64, u64)>,
    by_line: BTreeMap<HolderLine, (u64, u64)>,
    unknown: BTreeMap<RunPhase, (u64, u64)>,
}

impl<'a> HolderSums<'a> {
    pub(super) fn new(facts: RunFacts<'a>, clock: &'a PhaseClock<'a>) -> HolderSums<'a> {
        let mut categories: BTreeMap<u64, TensorCategory> = BTreeMap::new();
        let rows = facts.owners.iter().flat_map(|owners| &owners.tensors);
        for row in rows {
            let Some(storage) = row.tensor.storage.filter(|storage| storage.data > 0) else {
                continue;
            };
            let category = categories.entry(storage.data).or_insert(row.category);
            *category = (*category).min(row.category);
        }
        HolderSums {
            clock,
            categories,
            by_category: BTreeMap::new(),
            by_line: BTreeMap::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// `is_kept`: the block lives when owners are known.
    pub(super) fn add(&mut self, address: u64, block: &HistoryBlock, is_kept: bool) {
        let category = self.categories.get(&address).filter(|_| is_kept).copied();
        // Lines say more about activations than a category does.
        let category =
            category.filter(|it| !matches!(it, TensorCategory::Saved | TensorCategory::Other));
        let sum = match category {
            Some(category) => self.by_category.entry(category).or_default(),
            None => {
                let phase = self.clock.phase_at(block.stack, block.ordinal);
                match self.clock.line_of(block.stack, block.ordinal) {
                    Some(line) => {
                        self.by_line.entry((line.file, line.line, line.name, phase)).or_default()
                    }
                    None => self.unknown.entry(phase).or_default(),
                }
            }
        };
        sum.0 += block.size;
        sum.1 += 1;
    }

    pub(super) fn sorted(self) -> Vec<RunHolder> {
        let holder = |owner, (bytes, blocks)| RunHolder { owner, bytes, blocks };
        let of_category = self.by_category.into_iter();
        let of_category = of_category.map(|(it, sum)| holder(RunOwner::Category(it), sum));
        let of_line = self.by_line.into_iter().map(|((file, line, name, phase), sum)| {
            holder(RunOwner::Line(HistoryFrame { name, file, line }, phase), sum)
        });
        let unknown = self.unknown.into_iter();
        let unknown = unknown.map(|(phase, sum)| holder(RunOwner::Unknown(phase), sum));
        let mut all: Vec<RunHolder> = of_category.chain(of_line).chain(unknown).collect();
        all.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        all
    }
}
