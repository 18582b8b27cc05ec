//! The table of `memspy diff`: what two moments hold by line.

use std::io::Write;

use super::RenderError;
use super::escape::EscapeGuard;
use super::label::{one_line, short_file};
use super::size::{bytes, count, short_bytes, short_signed_bytes, signed_bytes};
use crate::analysis::{ChangedPlace, ComparedMoment, LineChange, Moment, Profile, line_changes};

/// Writes the lines whose memory differs most, `limit` of them at most.
pub fn line_diff_text(
    out: &mut dyn Write,
    (label_before, before): (&str, ComparedMoment<'_>),
    (label_after, after): (&str, ComparedMoment<'_>),
    limit: Option<usize>,
    full_filenames: bool,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    let name = |profile: &Profile, file: &str| {
        let directory = profile.start().and_then(|start| start.directory.as_deref());
        if full_filenames { file.to_owned() } else { short_file(file, directory).to_owned() }
    };
    let changes = line_changes(before, after, &name);
    let (of_before, of_after) = (before.folded.total, after.folded.total);
    let moment = match before.folded.moment {
        Moment::Peak => "at the peak",
        Moment::End => "at the end",
    };
    writeln!(
        out,
        "GPU memory {moment}: {} in A, {} in B, {} ({})",
        bytes(of_before),
        bytes(of_after),
        difference(of_after as i64 - of_before as i64),
        share(of_after as i64 - of_before as i64, of_before),
    )?;
    for (letter, label, of) in [("A", label_before, before), ("B", label_after, after)] {
        let how = match (of.profile.exact(), of.folded.estimated_from) {
            (Some(exact), _) if exact.stacks_are_guessed() => {
                "total exact, lines a guess from sampled stacks"
            }
            (Some(_), None) => "exact",
            (Some(_), Some(_)) => "total exact, lines estimated from sampled stacks",
            (None, _) => "sampled",
        };
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
    let changed: Vec<&LineChange> = changes.iter().filter(|c| c.difference() != 0).collect();
    let shown = limit.unwrap_or(changed.len()).min(changed.len());
    if changed.is_empty() {
        writeln!(out, "\nno line holds more or less in one than in the other")?;
        return Ok(());
    }
    let rows: Vec<(String, String)> = changed.iter().take(shown).map(|row| place(row)).collect();
    let width = rows.iter().map(|(place, _)| place.chars().count()).max().unwrap_or(0);
    writeln!(out, "\n{:>10} {:>10} {:>11}  {:<width$}  source", "A", "B", "difference", "line")?;
    for (row, (place, source)) in changed.iter().zip(rows) {
        let line = format!(
            "{:>10} {:>10} {:>11}  {place:<width$}  {source}",
            short_bytes(row.before),
            short_bytes(row.after),
            difference_short(row.difference()),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    let same = changes.len() - changed.len();
    let rest: i64 = changed[shown..].iter().map(|row| row.difference()).sum();
    if shown < changed.len() {
        let more = count((changed.len() - shown) as u64);
        writeln!(
            out,
            "{more} more lines differ, by {} together: --limit 0 lists them",
            difference(rest)
        )?;
    }
    if same > 0 {
        writeln!(out, "lines that hold the same in both: {}", count(same as u64))?;
    }
    Ok(())
}

fn place(row: &LineChange) -> (String, String) {
    match &row.place {
        ChangedPlace::Without(mark) => (mark.clone(), String::new()),
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
