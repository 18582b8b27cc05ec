//! A recording under several settings of PyTorch's allocator.

mod json;
mod page;

use std::io::{self, Write};

pub use json::{ReplayedSettingJson, WhatIfJson, what_if_json};
pub use page::what_if_page;

use crate::analysis::what_if::{RecordedAllocations, ReplayedSetting, SettingComparison};
use crate::render::shared::{EscapeGuard, bytes, count, number};

/// What the replays of a recording say.
#[derive(Debug, Clone)]
pub struct WhatIfAnswer {
    /// The recording.
    pub recorded: RecordedAllocations,
    /// Its replays.
    pub comparison: SettingComparison,
    /// Memory of the card they ran on; `None`: unknown, so they had enough.
    pub memory: Option<u64>,
    /// It is not the recorded card.
    pub is_other_card: bool,
}

/// A larger part of the peak makes the answer a bound.
const UNKNOWN: f64 = 0.01;

/// As a user calls it.
pub fn setting_name(settings: &str, empties_at_steps: bool) -> String {
    let settings = if settings.is_empty() { "default settings" } else { settings };
    match empties_at_steps {
        true => format!("{settings} + empty_cache() each step"),
        false => settings.to_owned(),
    }
}

fn name(setting: &ReplayedSetting) -> String {
    setting_name(&setting.settings, setting.empties_at_steps)
}

/// Writes the answer.
pub fn what_if_text(out: &mut dyn Write, answer: &WhatIfAnswer) -> io::Result<()> {
    let out = &mut EscapeGuard::text(out);
    let (recorded, comparison) = (&answer.recorded, &answer.comparison);
    writeln!(out, "{}", verdict(answer))?;
    writeln!(out, "{}", agreement(comparison))?;
    let card = match answer.memory {
        Some(memory) => format!("{} of memory", bytes(memory)),
        None => "a card of unknown size (--limit says one)".to_owned(),
    };
    writeln!(
        out,
        "GPU {}, {card}; {} replayed by PyTorch {}",
        recorded.device.0,
        number(recorded.allocations, "allocation"),
        comparison.own.outcome.torch
    )?;
    writeln!(out)?;
    table(out, comparison)?;
    let notes = notes(answer);
    if !notes.is_empty() {
        writeln!(out)?;
    }
    for note in notes {
        writeln!(out, "note: {note}")?;
    }
    let next = next(answer);
    if !next.is_empty() {
        writeln!(out, "\nNext")?;
    }
    for line in next {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// The first sentence.
fn verdict(answer: &WhatIfAnswer) -> String {
    let comparison = &answer.comparison;
    let own = &comparison.own.outcome;
    if comparison.always_fails() {
        return match comparison.others.is_empty() {
            true => "The job runs out of memory under its own settings.".to_owned(),
            false => "The job runs out of memory under every setting tried.".to_owned(),
        };
    }
    let Some(best) = comparison.best() else {
        let tried = number(comparison.others.len() as u64, "other setting");
        return match comparison.others.is_empty() {
            true => {
                format!("The job's own settings reserve {} at the peak.", bytes(own.reserved_peak))
            }
            false => format!(
                "No setting helps: of {tried} none reserves clearly less than the {} of the job's own.",
                bytes(own.reserved_peak)
            ),
        };
    };
    // Other settings are taken to begin without what was cached before the recording.
    let begins_empty = answer.recorded.older.cached as f64 > UNKNOWN * own.reserved_peak as f64;
    let (least, most) = match (comparison.agrees(), begins_empty) {
        (false, _) => ("about ", "about "),
        (true, true) => ("at least ", "at most "),
        (true, false) => ("", ""),
    };
    let mut text = format!(
        "{} reserves {least}{} at the peak",
        capitalized(&name(best)),
        bytes(best.outcome.reserved_peak)
    );
    let saved = comparison.saved(best);
    if saved > 0 && own.counts.out_of_memory == 0 {
        let share = 100.0 * saved as f64 / own.reserved_peak.max(1) as f64;
        text +=
            &format!(": {most}{} ({share:.0} %) less than the job's own settings", bytes(saved));
    }
    if own.counts.out_of_memory > 0 {
        text += "; under the job's own settings it runs out of memory";
    } else if own.counts.retries > best.outcome.counts.retries {
        let (after, before) = (best.outcome.counts.retries, own.counts.retries);
        text += &format!(", with {} instead of {} retries", count(after), count(before));
    }
    if !comparison.agrees() {
        text += ", if the replay is right, which it does not show";
    }
    format!("{text}.")
}

fn capitalized(text: &str) -> String {
    match text.strip_prefix("default") {
        Some(rest) => format!("Default{rest}"),
        None => text.to_owned(),
    }
}

/// Whether the replay may be believed.
fn agreement(comparison: &SettingComparison) -> String {
    let error = 100.0 * comparison.error();
    let (replayed, recorded) = (comparison.replayed_peak, comparison.recorded_peak);
    let figures = format!("{} replayed, {} recorded", bytes(replayed), bytes(recorded));
    match comparison.agrees() {
        true => format!(
            "The replay of the job's own settings agrees with the recording: {figures} ({error:+.1} %)."
        ),
        false => format!(
            "THE REPLAY OF THE JOB'S OWN SETTINGS DOES NOT AGREE with the recording: {figures} ({error:+.1} %)."
        ),
    }
}

/// Heading, right-aligned cell.
type Column = (&'static str, &'static str, fn(&ReplayedSetting) -> String);

const COLUMNS: [Column; 6] = [
    ("peak", "reserved", |it| bytes(it.outcome.reserved_peak)),
    ("cached", "then", |it| bytes(it.outcome.at_peak.cached())),
    ("largest free", "block then", |it| bytes(it.outcome.at_peak.largest_free())),
    ("driver", "allocations", |it| driver_allocations(it).map_or("?".to_owned(), count)),
    ("out of", "memory", |it| count(it.outcome.counts.out_of_memory)),
    ("", "retries", |it| count(it.outcome.counts.retries)),
];

/// Before PyTorch 2.3 only segments are counted, which an expandable one has not.
fn driver_allocations(setting: &ReplayedSetting) -> Option<u64> {
    let counts = setting.outcome.counts;
    let segments = Some(counts.segments).filter(|_| !setting.settings.contains("expandable"));
    counts.driver_allocations.or(segments)
}

fn table(out: &mut dyn Write, comparison: &SettingComparison) -> io::Result<()> {
    let rows: Vec<(String, &ReplayedSetting)> = std::iter::once(&comparison.own)
        .map(|own| (format!("{} (the job's own)", name(own)), own))
        .chain(comparison.others.iter().map(|it| (name(it), it)))
        .collect();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for line in 0..2 {
        write!(out, "  {:width$}", ["", "settings"][line])?;
        for (above, below, _) in COLUMNS {
            write!(out, "  {:>12}", [above, below][line])?;
        }
        writeln!(out)?;
    }
    for (name, setting) in rows {
        write!(out, "  {name:width$}")?;
        for (.., cell) in COLUMNS {
            write!(out, "  {:>12}", cell(setting))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "'Then' is when the recording reserved most.")
}

fn notes(answer: &WhatIfAnswer) -> Vec<String> {
    let (recorded, comparison) = (&answer.recorded, &answer.comparison);
    let (older, gaps) = (recorded.older, recorded.gaps);
    let mut notes = Vec::new();
    if !comparison.agrees() {
        notes.push(
            "settings that the trace does not show (roundup_power2_divisions, garbage_collection_threshold) may be \
             why: a row of --alloc-conf with the job's own PYTORCH_ALLOC_CONF shows it"
                .to_owned(),
        );
    }
    if older.live > 0 {
        notes.push(format!(
            "{} were live before the recording, {} of them at the peak; {} more were cached, which other settings \
             are taken to begin without",
            bytes(older.live),
            bytes(older.live_at_peak),
            bytes(older.cached)
        ));
    }
    let replayed = &comparison.own.outcome.torch;
    if let Some(torch) = recorded.torch.as_ref().filter(|torch| *torch != replayed) {
        notes.push(format!("recorded with PyTorch {torch}: its allocator may differ"));
    }
    if gaps.lost > 0 {
        notes.push(format!("{} are lost in the recording", number(gaps.lost, "event")));
    }
    if gaps.unplaced > 0 {
        notes.push(format!(
            "the stream of {} is unknown: it is taken to be one of its own",
            number(gaps.unplaced, "allocation")
        ));
    }
    if gaps.private > 0 {
        notes.push(format!(
            "{} in private pools (CUDA graphs, MemPool): the pools are kept to the end",
            number(gaps.private, "allocation")
        ));
    }
    if gaps.undeferred > 0 {
        notes.push(format!(
            "up to {} waited for another stream, unknown of which blocks: replayed as freed at once",
            bytes(gaps.undeferred)
        ));
    }
    let all = || std::iter::once(&comparison.own).chain(&comparison.others);
    if all().any(|it| it.outcome.counts.out_of_memory > 0) {
        notes.push(
            "after an out-of-memory error the replay goes on without that block; a program mostly ends".to_owned(),
        );
    }
    if all().any(|it| it.settings.contains("garbage_collection_threshold")) {
        notes.push(
            "garbage_collection_threshold acts only after torch.cuda.set_per_process_memory_fraction(), which its \
             replay calls with 1.0"
                .to_owned(),
        );
    }
    notes
}

fn next(answer: &WhatIfAnswer) -> Vec<String> {
    let Some(best) = answer.comparison.best().filter(|_| answer.comparison.agrees()) else {
        return Vec::new();
    };
    let mut next = Vec::new();
    if best.settings != answer.comparison.own.settings {
        let settings = if best.settings.is_empty() { "''" } else { &best.settings };
        next.push(format!(
            "PYTORCH_CUDA_ALLOC_CONF={settings} in the job's environment (PYTORCH_ALLOC_CONF from PyTorch 2.9 on)"
        ));
    }
    if best.empties_at_steps {
        next.push("torch.cuda.empty_cache() after optimizer.step()".to_owned());
    }
    next.extend(cost(&answer.comparison.own, best));
    next
}

/// What the change costs.
fn cost(own: &ReplayedSetting, best: &ReplayedSetting) -> Option<String> {
    let (before, after) = (driver_allocations(own)?, driver_allocations(best)?);
    (after > before).then(|| {
        format!(
            "its cost: the driver allocates {} times instead of {}, and may wait for the device each time",
            count(after),
            count(before)
        )
    })
}
