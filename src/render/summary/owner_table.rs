//! The owners of a job's memory, in a table.

use std::borrow::Cow;

use super::text::JobSummary;
use crate::analysis::{OwnerGroup, owner_groups};
use crate::model::{TensorCategory, TensorDevice};
use crate::ownership::breakdown;
use crate::render::owners::{COLLECT_NOTE, GroupRow, group_rows, outside_tensors};
use crate::render::shared::{bytes, count, cut, one_line, percent, suggestion_on};

/// A narrower screen leaves out the number of storages: names say more.
const WIDE: usize = 100;

/// Who holds memory, over all devices, in the last complete snapshot.
pub(super) struct SummaryOwners<'a> {
    groups: Cow<'a, [OwnerGroup]>,
    outside: Vec<(String, u64)>,
    /// Of PyTorch, in tensors or not.
    pub(super) all: u64,
    has_gpu: bool,
    /// Only saved for the backward pass.
    saved: u64,
}

impl<'a> SummaryOwners<'a> {
    /// `None`: there is no snapshot.
    pub(super) fn of(summary: &JobSummary<'a>) -> Option<SummaryOwners<'a>> {
        let snapshot = summary.snapshot.ok()?;
        let sums = breakdown(snapshot);
        // A job without GPUs has its tensors on the CPU.
        let has_gpu = sums.keys().any(|device| device.is_cuda());
        let mut owners = SummaryOwners {
            groups: Cow::Borrowed(&[]),
            outside: Vec::new(),
            all: 0,
            has_gpu,
            saved: 0,
        };
        for (device, sums) in &sums {
            let saved = sums.by_category.get(&TensorCategory::Saved);
            owners.saved += saved.map_or(0, |held| held.bytes);
            if !owners.lists(device) {
                continue;
            }
            owners.all += sums.allocated.unwrap_or_else(|| sums.in_tensors());
            for (name, size) in outside_tensors(sums) {
                match owners.outside.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, sum)) => *sum += size,
                    None => owners.outside.push((name, size)),
                }
            }
        }
        // The last complete snapshot already lists them.
        let known = snapshot.has_all_tensors().then(|| summary.growth.last());
        owners.groups = match known.filter(|groups| !groups.is_empty()) {
            Some(groups) => Cow::Borrowed(groups),
            None => Cow::Owned(owner_groups(snapshot)),
        };
        Some(owners)
    }

    fn lists(&self, device: &TensorDevice) -> bool {
        device.is_cuda() || !self.has_gpu
    }

    /// At most so many, the largest first, each followed by its parts.
    pub(super) fn rows(&self, most: usize) -> Vec<GroupRow> {
        let groups = self.groups.iter().filter(|group| self.lists(&group.device));
        group_rows(&groups.collect::<Vec<_>>(), &self.outside, most)
    }
}

/// At most so many owners; on a screen of `width` columns each in one line.
pub(super) fn owner_lines(
    summary: &JobSummary<'_>,
    owners: Option<&SummaryOwners<'_>>,
    most: usize,
    width: Option<usize>,
) -> Vec<String> {
    let Some(owners) = owners else { return without_owners(summary) };
    let rows = owners.rows(most);
    let columns = OwnerColumns {
        frees: rows.iter().any(|row| !row.frees.is_empty()),
        storages: width.is_none_or(|width| width >= WIDE),
    };
    let mut lines = vec![
        String::new(),
        columns.line(["bytes", "share", "storages", "frees"])
            + &format!("held by ({})", suggestion_on(summary.pid, "tensors", &[])),
    ];
    for row in &rows {
        let share = format!("{:.1} %", percent(row.bytes, owners.all));
        let storages = row.size.map_or_else(String::new, |size| count(size.storages));
        let indent = if row.is_part { "    " } else { "" };
        let line = columns.line([&bytes(row.bytes), &share, &storages, &row.frees]);
        let line = format!("{line}{indent}{}", row.text);
        lines.push(width.map_or_else(|| line.clone(), |width| cut(&line, width)));
    }
    if rows.iter().any(|row| row.frees.ends_with('*')) {
        lines.push(COLLECT_NOTE.to_owned());
    }
    if !owners.has_gpu && owners.saved > 0 {
        lines.push(format!(
            "{:>11}  of it only saved for the backward pass ({})",
            bytes(owners.saved),
            suggestion_on(summary.pid, "graph", &[])
        ));
    }
    lines
}

fn without_owners(summary: &JobSummary<'_>) -> Vec<String> {
    let why = match summary.snapshot {
        Err(why) if !summary.is_partial => why,
        _ => return Vec::new(),
    };
    let mut lines = vec![String::new(), format!("its owners are unknown: {}", one_line(why))];
    if summary.needs_time {
        let command = suggestion_on(summary.pid, "tensors", &["--max-time", "60s"]);
        lines.push(format!("    {command}"));
    }
    lines
}

/// Which columns the table has, besides bytes, share and name.
struct OwnerColumns {
    frees: bool,
    storages: bool,
}

impl OwnerColumns {
    fn line(&self, [bytes, share, storages, frees]: [&str; 4]) -> String {
        let mut line = format!("{bytes:>11}  {share:>7}  ");
        if self.storages {
            line += &format!("{storages:>8}  ");
        }
        if self.frees {
            line += &format!("{frees:>12}  ");
        }
        line
    }
}
