//! The flamegraph: a self-contained SVG.

use std::collections::BTreeMap;
use std::io::Write;

use super::collapsed::{NameStyle, label_text, stacks, step, without_separator};
use super::frame_tree::{DrawnFrame, DrawnStack, drawn_modules, drawn_owners, drawn_stacks};
use super::svg::{SvgPage, svg};
use super::tree::{TreeStyle, tree_text};
use crate::analysis::modules::{ModuleBytes, nested_steps};
use crate::analysis::{
    AttributedSnapshot, FoldedProfile, MemoryGroup, Moment, OwnerPart, OwnerStacks, Profile,
};
use crate::model::{CudaIndex, SnapshotConsistency};
use crate::render::modules::evidence_note;
use crate::render::shared::memory_name;
use crate::render::shared::{
    EscapeGuard, FrameLabels, MUCH_BEFORE, OutputError, bytes, certainty_in_short, count, one_line,
    percent, phase_in_short,
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
    let stacks = drawn_stacks(profile, folded, style);
    let named = picture.moment.as_deref();
    let mut under = subtitle(folded, named);
    let is_peak = named.is_none() && folded.moment == Moment::Peak && folded.allocations.is_none();
    if is_peak && folded.true_peak.is_some() {
        let phase = phase_in_short(profile, folded.device);
        under.extend(phase.iter().map(|phase| format!("; {phase}")));
    }
    draw(out, &stacks, PictureHeads::new(title(folded, named), under, "Line:"), picture)
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
    let mut stacks = Vec::new();
    for rank in ranks {
        let mut of_rank = drawn_stacks(rank.profile, rank.folded, style);
        if how != RankMode::Merged {
            let label = DrawnFrame::mark(rank.label);
            of_rank.iter_mut().for_each(|stack| stack.path.insert(0, label.clone()));
        }
        stacks.append(&mut of_rank);
    }
    let heads = PictureHeads::new(title, sizes.collect::<Vec<_>>().join(", "), "Line:");
    draw(out, &stacks, heads, picture)
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
    let drawn = drawn_owners(profile, stacks, style);
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
    draw(out, &drawn, PictureHeads::new(title, subtitle, "Owner:"), picture)
}

/// Draws modules. `when` names the moment.
pub fn modules_flame(
    out: &mut dyn Write,
    memory: &ModuleBytes,
    (device, when): (CudaIndex, &str),
    depth: Option<usize>,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    let size = bytes(memory.total);
    let title = format!("GPU memory by module, {when}: {size} on GPU {}", device.0);
    let heads = PictureHeads::new(title, evidence_note(memory.evidence).to_owned(), "Module:");
    draw(out, &drawn_modules(memory, depth), heads, picture)
}

/// Writes the modules in the folded format.
pub fn modules_collapsed(
    out: &mut dyn Write,
    memory: &ModuleBytes,
    depth: Option<usize>,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (place, bytes) in &memory.rows {
        let path: Vec<String> = nested_steps(place, depth).iter().map(|text| step(text)).collect();
        *lines.entry(path.join(";")).or_default() += bytes;
    }
    for (path, bytes) in lines {
        writeln!(out, "{path} {bytes}")?;
    }
    Ok(())
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

/// What stands above a picture.
pub(super) struct PictureHeads {
    pub(super) title: String,
    pub(super) subtitle: String,
    /// Before the details of a frame: `Line:`.
    pub(super) name_type: &'static str,
    /// Colours show the difference from another recording.
    pub(super) is_difference: bool,
}

impl PictureHeads {
    pub(super) fn new(title: String, subtitle: String, name_type: &'static str) -> PictureHeads {
        PictureHeads { title, subtitle, name_type, is_difference: false }
    }
}

pub(super) fn draw(
    out: &mut dyn Write,
    stacks: &[DrawnStack],
    heads: PictureHeads,
    picture: &FlamePicture,
) -> Result<(), OutputError> {
    if stacks.is_empty() {
        return Err(OutputError::Empty);
    }
    if picture.text {
        let style = TreeStyle {
            inverted: picture.inverted,
            min_percent: picture.min_width,
            color: picture.color,
        };
        return tree_text(out, stacks, &[heads.title, heads.subtitle], style);
    }
    let page = SvgPage {
        title: picture.title.as_deref().map_or(heads.title, one_line),
        subtitle: fit_picture(heads.subtitle),
        name_type: heads.name_type,
        inverted: picture.inverted,
        min_width: picture.min_width,
        is_difference: heads.is_difference,
    };
    out.write_all(&svg(stacks, page)?)?;
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
}
