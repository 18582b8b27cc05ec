//! `memspy diff`: two moments compared.

use std::io::Write;

use crate::analysis::{
    ChangedPlace, ComparedMoment, MemoryChange, Moment, OwnerStacks, Profile, StackLabel,
    StackStep, function_changes, line_changes, ownership_changes, stack_changes,
};
use crate::render::shared::{
    EscapeGuard, FrameLabels, OutputError, bytes, certainty_in_short, count, one_line, short_bytes,
    short_file, short_signed_bytes, signed_bytes,
};

/// In characters.
const MAX_STACK: usize = 110;

/// The rows of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffRows {
    /// Lines of the program.
    Lines,
    /// Functions of the program.
    Functions,
    /// Whole stacks.
    Stacks {
        /// Stacks are matched by lines, too: only within one recording, because lines move
        /// between versions of a program.
        with_lines: bool,
    },
}

/// How a comparison is shown.
#[derive(Debug, Clone, Copy)]
pub struct DiffStyle<'a> {
    /// The moments: `at the peak`.
    pub moments: &'a str,
    /// Long stacks are whole.
    pub whole_stacks: bool,
    /// Most rows.
    pub limit: Option<usize>,
    /// Full paths are shown and matched.
    pub full_filenames: bool,
}

/// Writes the code locations whose memory differs most.
pub fn diff_text(
    out: &mut dyn Write,
    (label_before, before): (&str, ComparedMoment<'_>),
    (label_after, after): (&str, ComparedMoment<'_>),
    rows: DiffRows,
    style: DiffStyle<'_>,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let file = |profile: &Profile, file: &str| {
        let directory = profile.start().and_then(|start| start.directory.as_deref());
        if style.full_filenames { file.to_owned() } else { short_file(file, directory).to_owned() }
    };
    let text = |profile: &Profile, label: StackLabel| {
        let with_lines = rows == DiffRows::Stacks { with_lines: true };
        FrameLabels::new(profile, style.full_filenames).label(label, with_lines)
    };
    let (changes, noun) = match rows {
        DiffRows::Lines => (line_changes(before, after, &file), "line"),
        DiffRows::Functions => (function_changes(before, after, &file), "function"),
        DiffRows::Stacks { .. } => (stack_changes(before, after, &text), "stack"),
    };
    write_totals(out, style.moments, before.folded.total, after.folded.total)?;
    for (letter, label, of) in [("A", label_before, before), ("B", label_after, after)] {
        let how = match (of.profile.exact(), of.folded.estimated_from) {
            (Some(exact), _) if exact.stacks_are_guessed() => {
                format!("total exact, {noun}s a guess from sampled stacks")
            }
            (Some(_), None) => "exact".to_owned(),
            (Some(_), Some(_)) => format!("total exact, {noun}s estimated from sampled stacks"),
            (None, _) if of.folded.resolution.certain.is_some() => "followed".to_owned(),
            (None, _) => "sampled".to_owned(),
        };
        let certainty = certainty_in_short(of.folded.resolution);
        let how = certainty.map_or(how.clone(), |certainty| format!("{how}; {certainty}"));
        let (device, time) = (of.folded.device.0, of.folded.snapshot.time.seconds());
        writeln!(out, "{letter}: {}, GPU {device}, at {time:.3} s, {how}", one_line(label))?;
        if let Some(below) = of.folded.below_peak().filter(|below| *below > 0)
            && of.folded.moment == Moment::Peak
        {
            writeln!(
                out,
                "   {} below the allocator's own peak, which no snapshot shows",
                bytes(below)
            )?;
        }
    }
    write_changes(out, &changes, noun, style)
}

/// One of two snapshots of owners.
#[derive(Debug, Clone)]
pub struct ComparedOwners<'a> {
    /// A file and a device.
    pub label: &'a str,
    /// The snapshot.
    pub stacks: &'a OwnerStacks,
    /// Which snapshot: `the last`.
    pub which: String,
}

/// Writes the owners whose memory differs most.
pub fn owner_diff_text(
    out: &mut dyn Write,
    before: &ComparedOwners<'_>,
    after: &ComparedOwners<'_>,
    style: DiffStyle<'_>,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let changes = ownership_changes(before.stacks, after.stacks);
    let total = |of: fn(&MemoryChange) -> u64| changes.iter().map(of).sum();
    write_totals(out, "by owner", total(|row| row.before), total(|row| row.after))?;
    for (letter, ComparedOwners { label, stacks, which }) in [("A", before), ("B", after)] {
        let pause = stacks.pause.map_or_else(
            || "the process ran on".to_owned(),
            |pause| format!("the process was stopped for {:.1} ms", pause.0 as f64 / 1e6),
        );
        let time = stacks.time.seconds();
        writeln!(
            out,
            "{letter}: {}, snapshot of the owners at {time:.3} s ({which}), {pause}",
            one_line(label)
        )?;
    }
    write_changes(out, &changes, "owner", style)
}

fn write_totals(
    out: &mut dyn Write,
    moments: &str,
    before: u64,
    after: u64,
) -> Result<(), OutputError> {
    let change = after as i64 - before as i64;
    writeln!(
        out,
        "GPU memory {moments}: {} in A, {} in B, {} ({})",
        bytes(before),
        bytes(after),
        difference(change),
        share(change, before),
    )?;
    Ok(())
}

/// The rows and the sums below add up to the totals.
fn write_changes(
    out: &mut dyn Write,
    changes: &[MemoryChange],
    noun: &str,
    DiffStyle { limit, whole_stacks, .. }: DiffStyle<'_>,
) -> Result<(), OutputError> {
    let changed: Vec<&MemoryChange> = changes.iter().filter(|c| c.difference() != 0).collect();
    let shown = limit.unwrap_or(changed.len()).min(changed.len());
    if changed.is_empty() {
        writeln!(out, "\nno {noun} differs between the two")?;
        return Ok(());
    }
    let rows: Vec<(String, String)> =
        changed.iter().take(shown).map(|row| place(row, whole_stacks)).collect();
    let width = rows.iter().map(|(place, _)| place.chars().count()).max().unwrap_or(0);
    let source = if noun == "line" { "source" } else { "" };
    let head = format!("{:>10} {:>10} {:>11}  {noun:<width$}  {source}", "A", "B", "difference");
    writeln!(out, "\n{}", head.trim_end())?;
    for (row, (place, source)) in changed.iter().zip(rows) {
        let line = format!(
            "{:>10} {:>10} {:>11}  {place:<width$}  {source}",
            short_bytes(row.before),
            short_bytes(row.after),
            difference_short(row.difference()),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    let rest: i64 = changed[shown..].iter().map(|row| row.difference()).sum();
    if shown < changed.len() {
        let more = count((changed.len() - shown) as u64);
        writeln!(
            out,
            "{more} more {noun}s differ, by {} together: --limit 0 lists them",
            difference(rest)
        )?;
    }
    let same: Vec<u64> =
        changes.iter().filter(|row| row.difference() == 0).map(|row| row.after).collect();
    if !same.is_empty() {
        let (number, size) = (count(same.len() as u64), bytes(same.iter().sum()));
        writeln!(out, "{noun}s that are equal in both: {number} ({size})")?;
    }
    Ok(())
}

fn place(row: &MemoryChange, whole_stacks: bool) -> (String, String) {
    match &row.place {
        ChangedPlace::Without(mark) => (mark.clone(), String::new()),
        ChangedPlace::Function { file, function } => {
            (format!("{} ({})", one_line(function), one_line(file)), String::new())
        }
        ChangedPlace::Stack(steps) => (stack(steps, whole_stacks), String::new()),
        ChangedPlace::Owner(path) => {
            let path: Vec<String> = path.iter().map(|step| one_line(step)).collect();
            (path.join(" > "), String::new())
        }
        ChangedPlace::Line { file, function, before, after, source } => {
            let number = |line: u32| if line == 0 { "?".to_owned() } else { line.to_string() };
            let lines = match (*before, *after) {
                (Some(a), Some(b)) if a != b => format!("{} (A: {})", number(b), number(a)),
                (Some(a), None) => format!("{} (only A)", number(a)),
                (None, Some(b)) => format!("{} (only B)", number(b)),
                (_, line) => number(line.unwrap_or(0)),
            };
            let source = source.as_ref().map(|text| one_line(text));
            let source = source.unwrap_or_else(|| format!("(in {})", one_line(function)));
            (format!("{}:{lines}", one_line(file)), source)
        }
    }
}

/// Innermost first. A long stack loses library callers, then the outermost.
fn stack(steps: &[StackStep], is_whole: bool) -> String {
    let joined = |steps: &[&str]| steps.join(" < ");
    let whole: Vec<&str> = steps.iter().map(|step| &*step.text).collect();
    let text = joined(&whole);
    if is_whole || text.chars().count() <= MAX_STACK {
        return text;
    }
    let mut short: Vec<&str> = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        match step.library && at > 0 {
            true if short.last() == Some(&"…") => {}
            true => short.push("…"),
            false => short.push(&step.text),
        }
    }
    // Room for the ellipsis.
    let fits = |steps: &[&str]| joined(steps).chars().count() + 4 <= MAX_STACK;
    let is_cut = joined(&short).chars().count() > MAX_STACK;
    while is_cut && short.len() > 1 && !fits(&short) {
        short.pop();
    }
    if is_cut && short.last() != Some(&"…") {
        short.push("…");
    }
    joined(&short)
}

fn difference(value: i64) -> String {
    if value > 0 { format!("+{}", signed_bytes(value)) } else { signed_bytes(value) }
}

fn difference_short(value: i64) -> String {
    if value > 0 { format!("+{}", short_signed_bytes(value)) } else { short_signed_bytes(value) }
}

fn share(change: i64, of: u64) -> String {
    match of {
        0 => "A had none".to_owned(),
        of => format!("{:+.1} %", change as f64 * 100.0 / of as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(texts: &[(&str, bool)]) -> Vec<StackStep> {
        let step = |&(text, library): &(&str, bool)| StackStep { text: text.into(), library };
        texts.iter().map(step).collect()
    }

    #[test]
    fn a_long_stack_drops_library_callers_first() {
        let inner = ("linear (torch/nn/functional.py)", true);
        let short =
            steps(&[inner, ("_call_impl (torch/nn/module.py)", true), ("train (t.py)", false)]);
        assert!(stack(&short, false).contains("_call_impl"), "it fits");
        let library = ("_wrapped_call_impl (torch/nn/modules/module.py)", true);
        let long = steps(&[
            inner,
            library,
            library,
            ("forward (net.py)", false),
            library,
            ("main (t.py)", false),
        ]);
        let expected = "linear (torch/nn/functional.py) < … < forward (net.py) < … < main (t.py)";
        assert_eq!(stack(&long, false), expected);
        assert_eq!(stack(&long, true).matches(" < ").count(), long.len() - 1);
        let name = "x".repeat(40);
        let own: Vec<(&str, bool)> = [(&*name, false); 9].to_vec();
        let text = stack(&steps(&own), false);
        assert_eq!(text, format!("{name} < {name} < …"));
    }
}
