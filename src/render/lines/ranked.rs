//! The ranked lines of one process, as text.

use std::io::Write;

use super::text::LinesOptions;
use super::text_table::TextTable;
use crate::analysis::{
    BoundedValue, LineOrder, LineRanking, LineTable, Profile, PseudoFrame, RankedLine,
};
use crate::model::Function;
use crate::render::shared::{
    EscapeGuard, FrameLabels, MUCH_BEFORE, OutputError, allocated_line, bytes, certainty_at_peak,
    count, number, one_line, percent, short_bytes, short_signed_bytes, warnings, wrapped,
};

pub(super) const OLDER_OWNERS_ADVICE: &str = "Owners of [before recording]: record with --owners.";

/// Default number of rows.
pub const RANKED_ROWS: usize = 25;

/// Writes the ranking of one process's lines.
pub fn ranked_lines_text(
    out: &mut dyn Write,
    profile: &Profile,
    table: &LineTable,
    ranking: &LineRanking,
    order: LineOrder,
    options: &LinesOptions,
) -> Result<(), OutputError> {
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
        let live = match total {
            Some(_) => format!("{about}{}", short_bytes(row.live)),
            None => "?".to_owned(),
        };
        let share = total.map_or_else(|| "?".to_owned(), |total| share(row.live, total));
        let allocated = format!("{about}{}", short_signed_bytes(row.allocated));
        let (place, source) = place(profile, row, options.full_filenames);
        let cells = [live, share, allocated, peak_text(row.peak), count(row.samples)];
        text.push(cells, place, source);
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

/// `~` marks a lower limit.
pub(super) fn peak_text(peak: Option<BoundedValue>) -> String {
    peak.map_or_else(
        || "?".to_owned(),
        |peak| format!("{}{}", if peak.exact { "" } else { "~" }, short_signed_bytes(peak.value)),
    )
}

/// Peak, time, part with known lines, certainty.
pub(super) fn headline(profile: &Profile, table: &LineTable, ranking: &LineRanking) -> String {
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

/// The owners of older memory, or the option that finds them.
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

pub(super) fn name_matches(function: &Function, names: &[String]) -> bool {
    let has = |n: &String| function.name.contains(n.as_str()) || function.file.contains(n.as_str());
    names.is_empty() || names.iter().any(has)
}

fn is_wanted(profile: &Profile, row: &RankedLine, names: &[String]) -> bool {
    profile.stacks().get_function(row.frame.function).is_none_or(|f| name_matches(f, names))
}

pub(super) fn filter_text(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" whose function or file contains {}", names.join(" or ")),
    }
}

/// At most three digits.
fn share(part: u64, whole: u64) -> String {
    let value = percent(part, whole);
    match value {
        _ if part == whole => "100 %".to_owned(),
        value if value >= 99.95 => "99.9 %".to_owned(),
        value => format!("{value:.1} %"),
    }
}

/// `train.py:123` and its source, or its function if the source is unknown.
pub(super) fn place(profile: &Profile, row: &RankedLine, full: bool) -> (String, String) {
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
