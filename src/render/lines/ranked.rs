//! The ranked table of lines as text, for one process and for the ranks of a job.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;

use super::ranks::{RankLines, balance};
use super::text::LinesOptions;
use crate::analysis::{LineOrder, LineRanking, LineTable, Profile, PseudoFrame, RankedLine};
use crate::model::Function;
use crate::render::shared::{
    EscapeGuard, FrameLabels, MUCH_BEFORE, RenderError, allocated_line, bytes, certainty_at_peak,
    count, number, one_line, percent, sampling_line, short_bytes, short_signed_bytes, warnings,
    wrapped,
};

/// The advice.
pub(super) const OLDER_OWNERS_ADVICE: &str = "Whose [before recording] is: record with --owners.";
/// Rows shown when no number is asked for.
pub const RANKED_ROWS: usize = 25;
/// Least columns for source text beside a location; with fewer it has its own line.
const MIN_SOURCE: usize = 18;

/// Writes the ranking of one process's lines.
pub fn ranked_lines_text(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    ranking: &LineRanking,
    order: LineOrder,
    options: &LinesOptions,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    let certainty = certainty_at_peak(profile, table.device);
    for line in [headline(profile, table, ranking)].into_iter().chain(certainty) {
        for line in wrapped(&line, options.width) {
            writeln!(out, "{line}")?;
        }
    }
    for warning in warnings(profile) {
        writeln!(out, "warning: {}", one_line(&warning))?;
    }
    let total = ranking.moment.map(|(_, total)| total);
    let about = if table.estimated { "~" } else { "" };
    let times = match profile.exact() {
        Some(_) if table.estimated => "/stacks",
        Some(_) => "/allocs",
        None => "/samples",
    };
    let rows: Vec<&RankedLine> = ranking
        .rows
        .iter()
        .filter(|row| is_wanted(profile, row, &options.functions))
        .filter(|row| row.live > 0 || row.allocated > 0 || order != LineOrder::Live)
        .collect();
    let shown = options.limit.unwrap_or(rows.len()).min(rows.len());
    let mut text = TextTable::new(["live at/peak", "/share", "/allocated", "peak in/line", times]);
    for row in rows.iter().take(shown) {
        let peak = row.peak.map_or_else(
            || "?".to_owned(),
            |peak| {
                format!("{}{}", if peak.exact { "" } else { "~" }, short_signed_bytes(peak.value))
            },
        );
        let live = match total {
            Some(_) => format!("{about}{}", short_bytes(row.live)),
            None => "?".to_owned(),
        };
        let share = total.map_or_else(|| "?".to_owned(), |total| share(row.live, total));
        let allocated = format!("{about}{}", short_signed_bytes(row.allocated));
        let (place, source) = place(profile, row, options.full_filenames);
        text.push([live, share, allocated, peak, count(row.samples)], place, source);
    }
    text.write(out, options.width)?;
    let whose = if ranking.by_library_line { "line" } else { "line of the program" };
    if rows.is_empty() {
        writeln!(out, "no {whose} was seen allocating{}", filter_text(&options.functions))?;
    }
    for note in notes(profile, table, ranking, rows.len() - shown, profile.exact().is_some()) {
        for line in wrapped(&note, options.width) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// The peak, its time, how much of it has lines, and how certain that is.
fn headline(profile: &Profile, table: &LineTable, ranking: &LineRanking) -> String {
    let how = match profile.exact() {
        Some(exact) if table.doubt.is_none() => {
            format!("exact, {}", number(exact.events(), "event"))
        }
        Some(exact) => format!("{}, not all exact", number(exact.events(), "event")),
        None if profile.followed_changes() > 0 => {
            format!("followed, {}", number(profile.followed_changes(), "change"))
        }
        None => format!("sampled, {}", number(profile.samples(), "sample")),
    };
    let mut text = allocated_line(profile, table.device);
    match ranking.moment {
        None => text += "; no snapshot: what is live is unknown",
        Some((time, total)) => {
            let peak = table.allocated.within.max(0) as u64;
            if total < peak {
                let below = percent(peak - total, peak);
                text += &format!(
                    "; the lines show {} at {:.3} s, the recorded moment nearest to it ({below:.1} % below)",
                    bytes(total),
                    time.seconds()
                );
            }
            let known = ranking.on_lines();
            text += &format!("; {} of it on lines", share(known, total));
            for (pseudo, amount) in &ranking.without_line {
                text += &format!(", {} {}", share(*amount, total), pseudo.text());
            }
        }
    }
    text + "; " + &how
}

fn notes(
    profile: &Profile,
    table: &LineTable,
    ranking: &LineRanking,
    hidden: usize,
    exact: bool,
) -> Vec<String> {
    let mut notes: Vec<String> = before_recording(profile, ranking).into_iter().collect();
    let mut more = Vec::new();
    if hidden > 0 {
        more.push(format!("{} more lines: --limit 0", count(hidden as u64)));
    }
    more.push("with source: --source".to_owned());
    if !ranking.by_library_line {
        more.push("lines of libraries: --all".to_owned());
    }
    notes.push(more.join("; ") + ".");
    notes.push(
        match ranking.by_library_line {
            true => "Live: what the line itself allocated and is live at the peak; L: a library's line.",
            false => "Live: what the line, or library code that it called, allocated and is live at the peak.",
        }
        .to_owned()
            + " Peak in line: the most that was allocated in all while the line ran.",
    );
    if let Some(doubt) = &table.doubt {
        notes.push(format!("Nothing is marked exact: {doubt}."));
    } else if !exact {
        notes.push(
            "~: an estimate; with 'record --exact' (as root) the lines are proven.".to_owned(),
        );
    } else if table.estimated {
        notes.push("~: an estimate from a sample of the allocations.".to_owned());
    }
    notes
}

/// The owners of memory older than the recording, or the option that finds them.
fn before_recording(profile: &Profile, ranking: &LineRanking) -> Option<String> {
    let (_, total) = ranking.moment?;
    let is_before = |(pseudo, _): &&(PseudoFrame, u64)| *pseudo == PseudoFrame::BeforeRecording;
    let (_, before) = ranking.without_line.iter().find(is_before)?;
    if ranking.before_by_owner.is_empty() {
        let is_much = percent(*before, total) >= MUCH_BEFORE;
        return is_much.then(|| OLDER_OWNERS_ADVICE.to_owned());
    }
    let known: u64 = ranking.before_by_owner.iter().map(|(_, bytes)| bytes).sum();
    let owners = ranking.before_by_owner.iter().map(|(owner, amount)| {
        let owner = profile.stacks().owners.text(*owner).unwrap_or("[unknown owner]");
        format!("{} {}", bytes(*amount), one_line(owner))
    });
    let rest = before.saturating_sub(known);
    let rest = (rest > 0).then(|| format!("{} no known owner", bytes(rest)));
    let parts: Vec<String> = owners.chain(rest).collect();
    Some(format!(
        "[before recording], {}: {}. By name: the flamegraph.",
        bytes(*before),
        parts.join(", ")
    ))
}

/// The key of a line in all ranks: file, the function's first line and name, line number.
type LineKey<'a> = (&'a str, u32, &'a str, u32);

/// Writes the lines of all ranks as one ranking, by the sum of live bytes at each rank's peak.
pub fn ranked_rank_lines_text(
    out: &mut dyn Write,
    ranks: &[(RankLines<'_>, &LineRanking)],
    order: LineOrder,
    options: &LinesOptions,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    let all: Vec<RankLines<'_>> = ranks.iter().map(|(rank, _)| *rank).collect();
    for (rank, ranking) in ranks {
        let text = headline(rank.profile, rank.table, ranking);
        for line in wrapped(&format!("{}: {text}", one_line(rank.label)), options.width) {
            writeln!(out, "{line}")?;
        }
        if rank.profile.exact().is_none() {
            writeln!(out, "  {}", sampling_line(rank.profile))?;
        }
        for warning in warnings(rank.profile) {
            writeln!(out, "  warning: {}", one_line(&warning))?;
        }
    }
    for line in wrapped(&balance(&all), options.width) {
        writeln!(out, "{line}")?;
    }
    let mut lines: BTreeMap<LineKey<'_>, Vec<(usize, &RankedLine)>> = BTreeMap::new();
    for (index, (rank, ranking)) in ranks.iter().enumerate() {
        for row in &ranking.rows {
            let function = rank.profile.stacks().get_function(row.frame.function);
            let Some(function) = function.filter(|f| name_matches(f, &options.functions)) else {
                continue;
            };
            let key = (&*function.file, function.first_line, &*function.name, row.frame.line);
            lines.entry(key).or_default().push((index, row));
        }
    }
    let mut rows: Vec<Vec<(usize, &RankedLine)>> = lines.into_values().collect();
    let value = |row: &RankedLine| match order {
        LineOrder::Live => i128::from(row.live),
        LineOrder::Peak => row.peak.map_or(0, |peak| i128::from(peak.value)),
        LineOrder::Allocated => i128::from(row.allocated),
        LineOrder::Samples => i128::from(row.samples),
    };
    let sum = |rows: &Vec<(usize, &RankedLine)>| -> i128 { rows.iter().map(|r| value(r.1)).sum() };
    rows.retain(|rows| rows.iter().any(|(_, row)| row.live > 0 || row.allocated > 0));
    rows.sort_by_key(|rows| std::cmp::Reverse(sum(rows)));
    let shown = options.limit.unwrap_or(rows.len()).min(rows.len());
    let mut text = TextTable::new([
        "live,/sum",
        "live,/greatest",
        "live,/least",
        "/allocated",
        "peak in/line",
    ]);
    for found in rows.iter().take(shown) {
        let about = |rank: usize| if all[rank].table.estimated { "~" } else { "" };
        let live = |rank: usize| found.iter().find(|r| r.0 == rank).map_or(0, |r| r.1.live);
        let by_rank = || (0..all.len()).map(|rank| (live(rank), rank));
        let (greatest, least) = (by_rank().rev().max(), by_rank().min());
        let greatest = by_rank().find(|r| Some(r.0) == greatest.map(|g| g.0));
        let is_equal = greatest.map(|g| g.0) == least.map(|l| l.0);
        let one = |value: Option<(u64, usize)>| match value {
            Some((value, _)) if is_equal => format!("{}{} (all)", about(0), short_bytes(value)),
            Some((value, rank)) => {
                let label = all[rank].label;
                let short = label.strip_prefix("rank ").unwrap_or(label);
                format!("{}{} ({})", about(rank), short_bytes(value), one_line(short))
            }
            None => "?".to_owned(),
        };
        let is_estimated = all.iter().any(|rank| rank.table.estimated);
        let about = if is_estimated { "~" } else { "" };
        let live: u64 = found.iter().map(|r| r.1.live).sum();
        let allocated: i64 = found.iter().map(|r| r.1.allocated).sum();
        let peak = found.iter().filter_map(|r| r.1.peak).max_by_key(|peak| peak.value);
        let peak = peak.map_or_else(
            || "?".to_owned(),
            |peak| {
                format!("{}{}", if peak.exact { "" } else { "~" }, short_signed_bytes(peak.value))
            },
        );
        let Some((rank, row)) = found.first() else { continue };
        let (place, source) = place(all[*rank].profile, row, options.full_filenames);
        let sum = format!("{about}{}", short_bytes(live));
        let allocated = format!("{about}{}", short_signed_bytes(allocated));
        text.push([sum, one(greatest), one(least), allocated, peak], place, source);
    }
    text.write(out, options.width)?;
    if rows.is_empty() {
        writeln!(
            out,
            "no line was seen allocating in any rank{}",
            filter_text(&options.functions)
        )?;
    }
    let hidden = match rows.len() - shown {
        0 => String::new(),
        hidden => format!("{} more lines: --limit 0; ", count(hidden as u64)),
    };
    let notes = [
        format!("{hidden}with source: --source; lines of libraries: --all."),
        "Live at each rank's peak, made by the line or library code that it called: the sum, the greatest and the least (of which rank, in brackets). Peak in line: the greatest of a rank. ~: an estimate.".to_owned(),
    ];
    for line in notes.iter().flat_map(|note| wrapped(note, options.width)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn name_matches(function: &Function, names: &[String]) -> bool {
    let has = |n: &String| function.name.contains(n.as_str()) || function.file.contains(n.as_str());
    names.is_empty() || names.iter().any(has)
}

fn is_wanted(profile: &Profile, row: &RankedLine, names: &[String]) -> bool {
    profile.stacks().get_function(row.frame.function).is_none_or(|f| name_matches(f, names))
}

fn filter_text(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" whose function or file contains {}", names.join(" or ")),
    }
}

/// `part` of `whole` in at most three digits.
fn share(part: u64, whole: u64) -> String {
    let value = percent(part, whole);
    match value {
        _ if part == whole => "100 %".to_owned(),
        value if value >= 99.95 => "99.9 %".to_owned(),
        value => format!("{value:.1} %"),
    }
}

/// `train.py:123`, and the source of the line, or its function where the recording has no source.
fn place(profile: &Profile, row: &RankedLine, full: bool) -> (String, String) {
    let Some(function) = profile.stacks().get_function(row.frame.function) else {
        return (format!("[unknown function {}]", row.frame.function.0), String::new());
    };
    let labels = FrameLabels::new(profile, full);
    let line = match row.frame.line {
        0 => "?".to_owned(),
        line => line.to_string(),
    };
    let mark = if row.library { "L " } else { "" };
    let text = profile.source_line(row.frame).map(one_line);
    let source = text.unwrap_or_else(|| format!("(in {})", one_line(&function.name)));
    (format!("{mark}{}:{line}", one_line(labels.file(function))), source)
}

/// A table of figures, locations and source text that fits a width.
struct TextTable<'a, const N: usize> {
    heads: [&'a str; N],
    rows: Vec<([String; N], String, String)>,
}

impl<'a, const N: usize> TextTable<'a, N> {
    fn new(heads: [&'a str; N]) -> TextTable<'a, N> {
        TextTable { heads, rows: Vec::new() }
    }

    fn push(&mut self, cells: [String; N], place: String, source: String) {
        self.rows.push((cells, place, source));
    }

    fn write(&self, out: &mut dyn Write, width: Option<usize>) -> std::io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let length = |text: &str| text.chars().count();
        let mut widths: Vec<usize> = Vec::new();
        for (i, head) in self.heads.iter().enumerate() {
            let cells = self.rows.iter().map(|row| length(&row.0[i]));
            widths.push(cells.chain(head.split('/').map(length)).max().unwrap_or(0));
        }
        let place = self.rows.iter().map(|row| length(&row.1)).max().unwrap_or(0);
        // Drops the last columns to make room; a location is never cut, as it says where to look.
        let taken = |widths: &[usize]| widths.iter().map(|w| w + 2).sum::<usize>();
        if let Some(width) = width {
            while widths.len() > 2 && taken(&widths) + place > width {
                widths.pop();
            }
        }
        let begin = taken(&widths);
        let beside = width.map(|width| width.saturating_sub(begin + place + 2));
        let below = width.filter(|_| beside.is_some_and(|beside| beside < MIN_SOURCE));
        for half in 0..2 {
            let mut head = String::new();
            for (width, name) in widths.iter().zip(self.heads) {
                head += &format!("{:>width$}  ", name.split('/').nth(half).unwrap_or_default());
            }
            match below {
                _ if half == 0 => {}
                None => head += &format!("{:place$}  source", "line"),
                Some(_) => head += "line and source",
            }
            writeln!(out, "{}", head.trim_end())?;
        }
        for (cells, at, source) in &self.rows {
            let mut text = String::new();
            for (width, cell) in widths.iter().zip(cells) {
                text += &format!("{cell:>width$}  ");
            }
            match below {
                None => {
                    text += &format!("{at:place$}  {}", beginning(source, beside));
                    writeln!(out, "{}", text.trim_end())?;
                }
                Some(width) => {
                    writeln!(out, "{text}{at}")?;
                    let indent = (begin + 2).min(width / 2);
                    let room = width.saturating_sub(indent);
                    writeln!(out, "{:indent$}{}", "", beginning(source, Some(room)))?;
                }
            }
        }
        Ok(())
    }
}

/// The beginning of a source line, as far as there is room.
fn beginning(source: &str, room: Option<usize>) -> Cow<'_, str> {
    match room.filter(|room| source.chars().count() > *room) {
        Some(room) => {
            let kept = source.chars().take(room.saturating_sub(1));
            Cow::Owned(kept.chain(['…']).collect())
        }
        None => Cow::Borrowed(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_table_keeps_the_location_and_some_source() {
        let mut table = TextTable::new(["live at/peak", "/share", "/allocated"]);
        let cells = ["~1023 MiB", "100.0 %", "~1023 GiB"].map(str::to_owned);
        table.push(cells, "some/deep/folder/of/models/net.py:1234".into(), "x = f(y) ".repeat(9));
        for width in [66, 80, 100] {
            let mut out = Vec::new();
            table.write(&mut out, Some(width)).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            let place = "some/deep/folder/of/models/net.py:1234";
            assert!(text.contains(place) && text.contains("x = f"), "{width}: {text}");
        }
        let mut out = Vec::new();
        table.write(&mut out, None).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("x = f(y) x = f(y) x = f(y) x = f(y) x"));
    }
}
