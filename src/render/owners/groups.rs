//! Groups of owners as rows of a table and as JSON.

use std::cmp::Reverse;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::frees::{COLLECT_NOTE, FreesJson, frees_text};
use crate::analysis::{
    GroupSize, NO_TENSOR, OwnerChange, OwnerGroup, OwnerKind, OwnerPattern, cpp_label,
    raw_group_label, users_label,
};
use crate::model::{DeviceOwners, DeviceOwnership, PoolUser};
use crate::ownership::with_attributes;
use crate::render::shared::{bytes, count, one_line, percent, signed_bytes};

/// Storages whose owners belong together: one model, one optimizer, one variable, one autograd
/// graph. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerGroupJson {
    /// The device: `cuda:0`.
    pub device: String,
    /// What they are for: `parameters`, `buffers`, `gradients`, `optimizer state`, `saved for
    /// backward` or `other tensors`.
    pub category: String,
    /// What the owner is: `variable`, `model`, `optimizer`, `graph`, `unknown graph` (no variable
    /// leads to it) or `garbage`.
    pub kind: String,
    /// The owner's name.
    pub owner: String,
    /// The group as the text shows it.
    pub label: String,
    /// Bytes of all its storages.
    pub bytes: u64,
    /// How many storages.
    pub storages: u64,
    /// The smallest storage; `null` in recordings, which do not have it.
    pub smallest: Option<u64>,
    /// The largest storage; `null` in recordings, which do not have it.
    pub largest: Option<u64>,
    /// The name of the largest storage.
    pub largest_name: String,
    /// How many graphs, models or optimizers with like names this is; else 0 or 1.
    pub members: u64,
    /// Its storages by name pattern, the largest first.
    pub patterns: Vec<OwnerPatternJson>,
    /// What would come back on this device if the owner's one reference went; `null` where it is
    /// not known.
    pub frees: Option<FreesJson>,
}

/// Storages whose names differ only in an index, a key or a number. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerPatternJson {
    /// The name, with `*` for what differs: `cache[*].keys`; for what only the graph keeps the
    /// class of the node.
    pub pattern: String,
    /// Bytes of all of them.
    pub bytes: u64,
    /// How many.
    pub storages: u64,
    /// The smallest; `null` in recordings, which do not have it.
    pub smallest: Option<u64>,
    /// The largest; `null` in recordings, which do not have it.
    pub largest: Option<u64>,
}

/// Default number of rows.
pub const DEFAULT_ROWS: usize = 25;
const MAX_PATTERNS: usize = 4;
/// A pattern's row needs this part of the total: 1/50.
const MIN_PART: u64 = 50;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRow {
    pub(crate) bytes: u64,
    /// `None` for memory in no storage.
    pub(crate) size: Option<GroupSize>,
    pub(crate) text: String,
    /// A part of the row above.
    pub(crate) is_part: bool,
    /// What its reference would free; empty where that is no question.
    pub(crate) frees: String,
}

/// `parameters of main: model`, `server: sessions[*].keys`.
pub fn group_label(group: &OwnerGroup) -> String {
    one_line(&raw_group_label(group))
}

/// The label of a pattern whose group has no row.
pub fn pattern_name(group: &OwnerGroup, pattern: &OwnerPattern) -> String {
    let text = match group.kind {
        OwnerKind::Graph => format!("[saved by {}] alive by {}", pattern.pattern, group.owner),
        OwnerKind::UnknownGraph => format!("[saved by {}]", pattern.pattern),
        OwnerKind::Garbage => format!("[garbage] {}", pattern.pattern),
        _ => pattern.pattern.clone(),
    };
    one_line(&with_attributes(&text))
}

fn pattern_label(group: &OwnerGroup, index: usize) -> String {
    let pattern = &group.patterns[index];
    one_line(&with_attributes(match group.kind {
        OwnerKind::Variable if pattern.tail.is_empty() => "itself",
        OwnerKind::Variable => &pattern.tail,
        _ => &pattern.pattern,
    }))
}

enum GroupHead<'a> {
    Group(&'a OwnerGroup),
    Other(&'a str),
}

pub(crate) fn group_rows(
    groups: &[&OwnerGroup],
    others: &[(String, u64)],
    most: usize,
) -> Vec<GroupRow> {
    let mut heads: Vec<(u64, GroupHead<'_>)> =
        groups.iter().map(|group| (group.size.bytes, GroupHead::Group(group))).collect();
    let others = others.iter().filter(|(_, size)| *size > 0);
    heads.extend(others.map(|(text, size)| (*size, GroupHead::Other(text))));
    heads.sort_by_key(|(size, _)| Reverse(*size));
    let all = heads.iter().fold(0u64, |all, (size, _)| all.saturating_add(*size));
    // Parts of large groups matter more than small groups.
    let max_heads = if most == usize::MAX { most } else { (most * 3 / 5).max(1) };
    let left_out = heads.split_off(heads.len().min(max_heads));
    let room = most.saturating_sub(heads.len() + usize::from(!left_out.is_empty()));
    let parts = listed_parts(&heads, most, room, all);
    // In recordings and uncertain snapshots nothing is known.
    let has_frees =
        groups.iter().any(|group| group.frees.is_some() && group.kind != OwnerKind::Garbage);
    let mut rows = Vec::new();
    for (number, (size, head)) in heads.iter().enumerate() {
        let (group, text) = match head {
            GroupHead::Group(group) => (Some(*group), group_label(group)),
            GroupHead::Other(text) => (None, (*text).to_owned()),
        };
        let sums = group.map(|group| group.size);
        let shown = parts.iter().filter(|(_, row, _)| *row == number).count();
        let hidden = group.map_or(0, |group| group.patterns.len()).saturating_sub(shown);
        let more = match (shown, hidden) {
            (1.., 1..) => format!("  (and {} more)", count(hidden as u64)),
            _ => String::new(),
        };
        let frees = group
            .filter(|_| has_frees)
            .map_or_else(String::new, |group| frees_text(group.frees.as_ref()));
        rows.push(GroupRow { bytes: *size, size: sums, text: text + &more, is_part: false, frees });
        for (size, _, index) in parts.iter().filter(|(_, row, _)| *row == number) {
            let Some(group) = group else { continue };
            let (sums, text) = (group.patterns[*index].size, pattern_label(group, *index));
            let frees = String::new();
            rows.push(GroupRow { bytes: *size, size: Some(sums), text, is_part: true, frees });
        }
    }
    if !left_out.is_empty() {
        let size = left_out.iter().map(|(size, _)| size).sum();
        let number = count(left_out.len() as u64);
        let plural = if left_out.len() == 1 { "" } else { "s" };
        let text = format!("[{number} smaller group{plural}]");
        let frees = String::new();
        rows.push(GroupRow { bytes: size, size: None, text, is_part: false, frees });
    }
    rows
}

/// The largest: size, index of the head, index in its group.
fn listed_parts(
    heads: &[(u64, GroupHead<'_>)],
    most: usize,
    room: usize,
    all: u64,
) -> Vec<(u64, usize, usize)> {
    let mut parts: Vec<(u64, usize, usize)> = Vec::new();
    for (row, (_, head)) in heads.iter().enumerate() {
        if let GroupHead::Group(group) = head
            && group.patterns.len() > 1
        {
            let most = if most == usize::MAX { most } else { MAX_PATTERNS };
            let worth = |size: u64| most == usize::MAX || size.saturating_mul(MIN_PART) >= all;
            let sizes = group.patterns.iter().map(|pattern| pattern.size.bytes).enumerate();
            let listed = sizes.take(most).filter(|(_, size)| worth(*size));
            parts.extend(listed.map(|(index, size)| (size, row, index)));
        }
    }
    parts.sort_by_key(|(size, row, index)| (Reverse(*size), *row, *index));
    parts.truncate(room);
    parts.sort_by_key(|(_, row, index)| (*row, *index));
    parts
}

pub(crate) fn outside_tensors(sums: &DeviceOwnership) -> Vec<(String, u64)> {
    let without = match &sums.not_read {
        Some(not_read) => format!("[{not_read}]"),
        None => NO_TENSOR.to_owned(),
    };
    let mut all = vec![
        (without, sums.without_tensor.bytes),
        ("[rounding of the allocator]".to_owned(), sums.rounding),
        ("[freed, used by other streams]".to_owned(), sums.pending_free.bytes),
    ];
    all.extend(sums.in_cpp.iter().map(|(keeper, held)| (cpp_label(*keeper), held.bytes)));
    all
}

pub(crate) fn outside_recorded(device: &DeviceOwners) -> Vec<(String, u64)> {
    vec![
        (NO_TENSOR.to_owned(), device.without_tensor),
        ("[rounding of the allocator]".to_owned(), device.rounding),
    ]
}

/// Shares are of `all`.
pub(crate) fn write_rows(out: &mut dyn Write, rows: &[GroupRow], all: u64) -> std::io::Result<()> {
    let has_frees = rows.iter().any(|row| !row.frees.is_empty());
    let frees = |text: &str| if has_frees { format!("{text:>12}  ") } else { String::new() };
    let head = frees("frees");
    writeln!(
        out,
        "{:>11}  {:>7}  {:>8}  {:>19}  {head}owner",
        "bytes", "share", "storages", "each"
    )?;
    for row in rows {
        let (storages, each) =
            row.size.map_or_else(Default::default, |size| (count(size.storages), each(size)));
        let indent = if row.is_part { "    " } else { "" };
        let share = format!("{:.1} %", percent(row.bytes, all));
        let line = format!(
            "{:>11}  {share:>7}  {storages:>8}  {each:>19}  {}{indent}{}",
            bytes(row.bytes),
            frees(&row.frees),
            row.text
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    if rows.iter().any(|row| row.frees.ends_with('*')) {
        writeln!(out, "{COLLECT_NOTE}")?;
    }
    Ok(())
}

fn each(size: GroupSize) -> String {
    match size.range {
        Some((least, most)) if least == most => bytes(least),
        Some((least, most)) => {
            let (least, most) = (bytes(least), bytes(most));
            // One unit if both have the same.
            match (least.split_once(' '), most.split_once(' ')) {
                (Some((least, unit)), Some((_, same))) if unit == same => format!("{least}–{most}"),
                _ => format!("{least}–{most}"),
            }
        }
        None => String::new(),
    }
}

pub(super) fn write_changes(
    out: &mut dyn Write,
    changes: &[OwnerChange],
    most: usize,
) -> std::io::Result<()> {
    for change in changes.iter().take(most) {
        let sign = |number: i64| if number < 0 { "-" } else { "+" };
        writeln!(
            out,
            "{:>12}  {:>10}  {:<6}  {}",
            format!("{}{}", sign(change.bytes), bytes(change.bytes.unsigned_abs())),
            format!("{}{}", sign(change.storages), count(change.storages.unsigned_abs())),
            change.group.device.to_string(),
            change_label(change)
        )?;
    }
    if changes.len() > most {
        let rest: i64 = changes[most..].iter().map(|change| change.bytes).sum();
        let number = count((changes.len() - most) as u64);
        writeln!(out, "{:>12}  {:>10}  {:<6}  [{number} smaller]", signed_bytes(rest), "", "")?;
    }
    Ok(())
}

fn change_label(change: &OwnerChange) -> String {
    let group = &change.group;
    match (&group.kind, group.patterns.first()) {
        (OwnerKind::Variable, _) | (_, None) => group_label(group),
        (_, Some(pattern)) => one_line(&format!("{}: {}", group_label(group), pattern.pattern)),
    }
}

impl OwnerGroupJson {
    pub(crate) fn new(group: &OwnerGroup) -> OwnerGroupJson {
        let patterns = group.patterns.iter().map(|pattern| OwnerPatternJson {
            pattern: pattern.pattern.clone(),
            bytes: pattern.size.bytes,
            storages: pattern.size.storages,
            smallest: pattern.size.range.map(|range| range.0),
            largest: pattern.size.range.map(|range| range.1),
        });
        OwnerGroupJson {
            device: group.device.to_string(),
            category: group.category.name().to_owned(),
            kind: kind(&group.kind).to_owned(),
            owner: group.owner.clone(),
            label: group_label(group),
            bytes: group.size.bytes,
            storages: group.size.storages,
            smallest: group.size.range.map(|range| range.0),
            largest: group.size.range.map(|range| range.1),
            largest_name: group.largest.clone(),
            members: group.members,
            patterns: patterns.collect(),
            frees: group.frees.as_ref().map(FreesJson::new),
        }
    }
}

fn kind(kind: &OwnerKind) -> &'static str {
    match kind {
        OwnerKind::Variable => "variable",
        OwnerKind::Model => "model",
        OwnerKind::Optimizer => "optimizer",
        OwnerKind::Graph => "graph",
        OwnerKind::UnknownGraph => "unknown graph",
        OwnerKind::Garbage => "garbage",
        OwnerKind::NoTensor => "no tensor",
    }
}

/// See [`users_label`].
pub(crate) fn pool_users(users: &[PoolUser]) -> String {
    users_label(users)
}
