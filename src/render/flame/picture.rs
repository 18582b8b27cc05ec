//! The flamegraph: a self-contained SVG.

use std::collections::BTreeMap;
use std::io::Write;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Options, TextTruncateDirection, from_lines};

use super::collapsed::{NameStyle, label_text, stacks, step, without_separator};
use super::tree::{TreeStyle, tree_text};
use crate::analysis::{
    AttributedSnapshot, FoldedProfile, MemoryGroup, Moment, OwnerPart, OwnerStacks, Profile,
};
use crate::model::{CudaIndex, SnapshotConsistency};
use crate::render::shared::memory_name;
use crate::render::shared::{
    EscapeGuard, FrameLabels, MUCH_BEFORE, OutputError, bytes, certainty_in_short, count, one_line,
    percent,
};

/// Characters of a subtitle that fit 1,200 pixels.
const MAX_SUBTITLE: usize = 165;

/// How a flamegraph is drawn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FlamePicture {
    /// Text tree instead of SVG.
    pub text: bool,
    /// Colours for a terminal.
    pub color: bool,
    /// Allocating lines first, then their callers.
    pub inverted: bool,
    /// The smallest frame, in percent of the whole.
    pub min_width: Option<f64>,
    /// `None` for the default.
    pub title: Option<String>,
    /// Its name; `None` for the folded moment's own.
    pub moment: Option<String>,
}

/// Draws the bytes of a moment.
pub fn flame(
    out: &mut dyn Write,
    profile: &Profile,
    folded: &FoldedProfile,
    style: NameStyle,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    let lines: Vec<String> = stacks(profile, folded, style)
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(stack, bytes)| format!("{stack} {bytes}"))
        .collect();
    let named = picture.moment.as_deref();
    draw(out, &lines, title(folded, named), subtitle(folded, named), "Line:", picture)
}

/// One of several ranks, at its own moment.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct RankMemory<'a> {
    pub label: &'a str,
    pub profile: &'a Profile,
    pub folded: &'a FoldedProfile,
}

/// How several ranks are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankMode {
    /// Side by side.
    Separate,
    /// As one: equal stacks are summed.
    Merged,
    /// Devices side by side.
    Devices,
    /// The streams of one moment side by side.
    Streams,
}

/// Draws several ranks, each at its own moment.
pub fn flame_of_ranks(
    out: &mut dyn Write,
    ranks: &[RankMemory<'_>],
    how: RankMode,
    style: NameStyle,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    let Some(first) = ranks.first() else { return Err(OutputError::Empty) };
    let total: u64 = ranks.iter().map(|rank| rank.folded.total).sum();
    let moment = match (first.folded.allocations, first.folded.moment) {
        _ if picture.moment.is_some() => picture.moment.as_deref().unwrap_or_default(),
        (Some(_), _) => "all that each allocated",
        (None, Moment::Peak) if how == RankMode::Streams => "at the peak",
        (None, Moment::Peak) => "each at its own peak",
        (None, Moment::End) if how == RankMode::Streams => "at the end of the recording",
        (None, Moment::End) => "each at the end of its recording",
    };
    let count = ranks.len();
    let what = match how {
        RankMode::Separate => format!("of {}", counted(count, "rank")),
        RankMode::Merged => format!("of {} added up", counted(count, "rank")),
        RankMode::Devices => format!("of {}", counted(count, "device")),
        RankMode::Streams => format!("by stream ({count})"),
    };
    let title = format!("GPU memory {what}, {moment}: {} in all", bytes(total));
    let sizes =
        ranks.iter().map(|rank| format!("{} {}", one_line(rank.label), bytes(rank.folded.total)));
    let lines = rank_lines(ranks, how, style);
    draw(out, &lines, title, sizes.collect::<Vec<_>>().join(", "), "Line:", picture)
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// As [`flame_of_ranks`], in the folded format.
pub fn collapsed_of_ranks(
    out: &mut dyn Write,
    ranks: &[RankMemory<'_>],
    how: RankMode,
    style: NameStyle,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for line in rank_lines(ranks, how, style) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn rank_lines(ranks: &[RankMemory<'_>], how: RankMode, style: NameStyle) -> Vec<String> {
    let mut lines: Vec<(String, u64)> = Vec::new();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for rank in ranks {
        let label = without_separator(rank.label);
        let stacks = stacks(rank.profile, rank.folded, style).into_iter();
        for (stack, bytes) in stacks.filter(|(_, bytes)| *bytes > 0) {
            match how {
                RankMode::Merged => *sums.entry(stack).or_default() += bytes,
                RankMode::Separate | RankMode::Devices | RankMode::Streams => {
                    lines.push((format!("{label};{stack}"), bytes));
                }
            }
        }
    }
    lines.into_iter().chain(sums).map(|(stack, bytes)| format!("{stack} {bytes}")).collect()
}

/// Draws the owners of a moment.
pub fn owners_flame(
    out: &mut dyn Write,
    profile: &Profile,
    stacks: &OwnerStacks,
    (device, moment): (CudaIndex, Moment),
    style: NameStyle,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    let lines = owner_lines(profile, stacks, style);
    let which = match moment {
        Moment::Peak => "at the largest recorded snapshot",
        Moment::End => "at the last recorded snapshot",
    };
    let size = bytes(stacks.allocated);
    let title = format!("GPU memory by owner, {which}: {size} on GPU {}", device.0);
    let pause = stacks.pause.map_or_else(
        || "the process ran on".to_owned(),
        |pause| format!("the process was stopped for {:.1} ms", pause.0 as f64 / 1e6),
    );
    let snapshots = count(stacks.snapshots);
    let subtitle =
        format!("at {:.3} s, {pause}; snapshots recorded: {snapshots}", stacks.time.seconds());
    draw(out, &lines, title, subtitle, "Owner:", picture)
}

/// Writes the owners in the folded format.
pub fn owners_collapsed(
    out: &mut dyn Write,
    profile: &Profile,
    stacks: &OwnerStacks,
    style: NameStyle,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for line in owner_lines(profile, stacks, style) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn owner_lines(profile: &Profile, stacks: &OwnerStacks, style: NameStyle) -> Vec<String> {
    let labels = FrameLabels::new(profile, style.full_filenames);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (path, bytes) in &stacks.paths {
        let part = |part: &OwnerPart| match part {
            OwnerPart::Text(text) => step(text),
            OwnerPart::AllocatedAt(label) => label_text(&labels, label, style),
        };
        let path: Vec<String> = path.iter().map(part).collect();
        *lines.entry(path.join(";")).or_default() += bytes;
    }
    lines.into_iter().map(|(path, bytes)| format!("{path} {bytes}")).collect()
}

pub(super) fn draw(
    out: &mut dyn Write,
    lines: &[String],
    title: String,
    subtitle: String,
    name_type: &str,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    if lines.is_empty() {
        return Err(OutputError::Empty);
    }
    if picture.text {
        let style = TreeStyle {
            inverted: picture.inverted,
            min_percent: picture.min_width,
            color: picture.color,
        };
        return tree_text(out, lines, &[title, subtitle], style);
    }
    let mut options = Options::default();
    options.title = picture.title.as_deref().map_or(title, one_line);
    options.reverse_stack_order = picture.inverted;
    if let Some(percent) = picture.min_width {
        options.min_width = percent;
    }
    options.subtitle = Some(fit_picture(subtitle));
    options.count_name = "bytes".to_owned();
    options.name_type = name_type.to_owned();
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.deterministic = true;
    options.text_truncate_direction = TextTruncateDirection::Right;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    write_with_sizes(out, &svg)?;
    Ok(())
}

fn title(folded: &FoldedProfile, named: Option<&str>) -> String {
    let (what, place) = match folded.memory {
        None | Some(MemoryGroup::Torch) => ("GPU memory", format!(" on GPU {}", folded.device.0)),
        Some(other) => (memory_name(other), String::new()),
    };
    if let Some(moment) = named {
        return format!("{what} {moment}: {}{place}", bytes(folded.total));
    }
    if let Some(allocations) = folded.allocations {
        let total = bytes(folded.total);
        return format!(
            "{what} allocated in all: {total} in {} allocations{place}",
            count(allocations)
        );
    }
    if let (Moment::Peak, Some(peak)) = (folded.moment, folded.true_peak)
        && folded.total < peak
    {
        // The moment seen, which is not the peak.
        return format!("{what} near its peak of {}: {}{place}", bytes(peak), bytes(folded.total));
    }
    let moment = match (folded.moment, folded.memory) {
        (Moment::Peak, _) => "at its peak",
        (Moment::End, None) => "at the end of the recording",
        (Moment::End, Some(_)) => "allocated while recording and live at its end",
    };
    format!("{what} {moment}: {}{place}", bytes(folded.total))
}

/// The allocator's mark can be older than the recording.
fn peak_name(folded: &FoldedProfile) -> &'static str {
    if folded.peak_was_read { "the highest level read" } else { "the allocator's own peak" }
}

/// As many parts as fit, the first ones first.
fn fit_picture(subtitle: String) -> String {
    let mut text = String::new();
    for part in subtitle.split("; ") {
        let separator = if text.is_empty() { "" } else { "; " };
        if text.chars().count() + separator.len() + part.chars().count() > MAX_SUBTITLE {
            break;
        }
        text += separator;
        text += part;
    }
    text
}

/// Moment, distance from the peak, certainty: the most important first.
fn subtitle(folded: &FoldedProfile, named: Option<&str>) -> String {
    let snapshot = &folded.snapshot;
    if let Some(memory) = folded.memory {
        return exact_subtitle(folded, memory, named);
    }
    if folded.allocations.is_some() {
        let evidence = certainty_in_short(folded.resolution).unwrap_or_default();
        return format!("{evidence}; until {:.3} s", snapshot.time.seconds());
    }
    let below = match (folded.below_peak(), folded.true_peak) {
        // Not the recording's peak.
        _ if named.is_some() => "the last snapshot before this time".to_owned(),
        (Some(0), _) => peak_name(folded).to_owned(),
        (Some(below), Some(peak)) => format!(
            "{} ({:.2} %) below {} of {}",
            bytes(below),
            percent(below, peak),
            peak_name(folded),
            bytes(peak)
        ),
        _ => "true peak unknown".to_owned(),
    };
    let mut text = format!("at {:.3} s, {below}", snapshot.time.seconds());
    if let Some(evidence) = certainty_in_short(folded.resolution) {
        text += &format!("; {evidence}");
    }
    text += &more_cached(snapshot);
    text += older_owners_advice(folded);
    if let SnapshotConsistency::Degraded { .. } = snapshot.consistency {
        text += "; read while the job changed it";
    }
    text
}

fn more_cached(snapshot: &AttributedSnapshot) -> String {
    let cached = snapshot.cached().map(|cached| format!("; {} more cached", bytes(cached)));
    cached.unwrap_or_default()
}

fn exact_subtitle(folded: &FoldedProfile, memory: MemoryGroup, named: Option<&str>) -> String {
    let snapshot = &folded.snapshot;
    let sure = match folded.estimated_from {
        _ if folded.stacks_guessed => "sizes exact, stacks a guess from samples".to_owned(),
        None => "exact".to_owned(),
        Some(stacks) => format!("total exact, stacks estimated from {} samples", count(stacks)),
    };
    let certainty = certainty_in_short(folded.resolution);
    let certainty = certainty.map_or_else(String::new, |certainty| format!("; {certainty}"));
    if folded.allocations.is_some() {
        return format!("{sure}, {:.3} s{certainty}", snapshot.time.seconds());
    }
    let mut text = format!("{sure}, at {:.3} s", snapshot.time.seconds());
    match (folded.moment, folded.below_peak(), folded.true_peak) {
        (Moment::Peak, Some(0), _) => text += &format!(", {}", peak_name(folded)),
        (Moment::Peak, Some(below), Some(peak)) => {
            text += &format!(", {} below {} of {}", bytes(below), peak_name(folded), bytes(peak));
        }
        _ => {}
    }
    text += &certainty;
    if named.is_some() {
        // Its name says what it leaves out.
    } else if folded.moment == Moment::End {
        text += &format!("; {} older than the recording left out", bytes(folded.left_out));
    } else if memory == MemoryGroup::Torch {
        text += &more_cached(snapshot);
        text += older_owners_advice(folded);
    }
    text
}

fn older_owners_advice(folded: &FoldedProfile) -> &'static str {
    let is_known = !folded.before_by_owner().is_empty();
    match !is_known && percent(folded.before_without_owner(), folded.total) >= MUCH_BEFORE {
        true => "; record --owners names the owners of [before recording]",
        false => "",
    }
}

/// Adds a binary size before each `N bytes` of a tooltip, which inferno's script shows as details.
fn write_with_sizes(out: &mut dyn Write, svg: &[u8]) -> std::io::Result<()> {
    const OPEN: &[u8] = b"<title>";
    const CLOSE: &[u8] = b"</title>";
    let mut rest = svg;
    while let Some(start) = find(rest, OPEN) {
        let (before, title) = rest.split_at(start + OPEN.len());
        out.write_all(before)?;
        let Some(end) = find(title, CLOSE) else {
            rest = title;
            break;
        };
        let (title, after) = title.split_at(end);
        match size_in(title) {
            Some((at, size)) => {
                out.write_all(&title[..at])?;
                write!(out, "{}, ", bytes(size))?;
                out.write_all(&title[at..])?;
            }
            None => out.write_all(title)?,
        }
        rest = after;
    }
    out.write_all(rest)
}

/// The size in `NAME (1,234 bytes, 5.00%)`, and its position.
fn size_in(title: &[u8]) -> Option<(usize, u64)> {
    let at = title.iter().rposition(|&b| b == b'(')? + 1;
    let text = std::str::from_utf8(&title[at..]).ok()?;
    let (number, _) = text.split_once(" bytes")?;
    Some((at, number.replace(',', "").parse().ok()?))
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|w| w == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subtitle_loses_its_last_parts_where_the_picture_has_no_room() {
        let whole = "at 1.000 s, the allocator's own peak; proven 1 %".to_owned();
        assert_eq!(fit_picture(whole.clone()), whole);
        let long = format!("{whole}; {}; more", "x".repeat(MAX_SUBTITLE - whole.len()));
        assert_eq!(fit_picture(long), whole);
    }

    #[test]
    fn tooltips_get_sizes_and_everything_else_stays() {
        let svg = b"<a/><title>f (x) (a.py:1) (1,048,576 bytes, 50.00%)</title><title>odd</title>z";
        let mut out = Vec::new();
        write_with_sizes(&mut out, svg).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "<a/><title>f (x) (a.py:1) (1.00 MiB, 1,048,576 bytes, 50.00%)</title><title>odd</title>z"
        );
    }
}
