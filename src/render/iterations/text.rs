//! The iterations as a table.

use std::borrow::Cow;
use std::io::Write;

use super::{below_peak, levels, listed};
use crate::analysis::{
    Iteration, IterationClock, IterationEnd, IterationLevels, IterationOwners, Profile,
};
use crate::model::{CudaIndex, StepSource};
use crate::render::shared::{EscapeGuard, OutputError, count, header, one_line, signed_bytes};

/// Writes the last `limit` iterations (0: all) and the one with the highest peak.
pub fn iterations_text(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
    limit: usize,
    with_parameters: bool,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    for line in header(profile, device) {
        writeln!(out, "{line}")?;
    }
    let all = listed(profile);
    summary(out, profile, &all)?;
    if let Some(highest) = all.iter().max_by_key(|i| levels(i, device).peak_allocated) {
        let peak = size(levels(highest, device).peak_allocated, levels(highest, device).exact);
        writeln!(out, "highest peak: {peak} in step {}", named(highest))?;
    }
    writeln!(out)?;
    table(out, &all, device, limit)?;
    writeln!(out)?;
    for note in notes(profile, &all) {
        writeln!(out, "{note}")?;
    }
    if with_parameters {
        parameters(out, &all, device)?;
    }
    Ok(())
}

fn table(
    out: &mut dyn Write,
    all: &[Cow<'_, Iteration>],
    device: CudaIndex,
    limit: usize,
) -> Result<(), OutputError> {
    let has_epochs = all.iter().any(|iteration| iteration.epoch.is_some());
    writeln!(
        out,
        "{:>8} {:>9} {:>8} {:>12} {:>11} {:>11} {:>11} {:>12}  owned by (at the snapshot in it with most allocated)",
        if has_epochs { "epoch:step" } else { "step" },
        "at (s)",
        "seconds",
        "peak",
        "at its end",
        "peak cached",
        "cached",
        "intermediate"
    )?;
    let from = match limit {
        0 => 0,
        limit => all.len().saturating_sub(limit),
    };
    for iteration in &all[from..] {
        let reached = levels(iteration, device);
        let held = iteration.owned.get(&device).map(|held| held_by(held, reached));
        let row = format!(
            "{:>8} {:>9.3} {:>8.4} {:>12} {:>11} {:>11} {:>11} {:>12}  {}",
            named(iteration),
            iteration.to.seconds(),
            duration(iteration),
            size(reached.peak_allocated, reached.exact),
            size(reached.allocated, reached.allocated_is_exact),
            size(reached.peak_reserved, reached.peak_reserved_is_exact),
            size(reached.reserved, reached.reserved_is_exact),
            reached.intermediate.map_or_else(|| "-".to_owned(), |it| signed_bytes(it as i64)),
            held.unwrap_or_default()
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}

fn notes(profile: &Profile, all: &[Cow<'_, Iteration>]) -> Vec<String> {
    let mut notes = vec![
        "~ at a peak: at least this; without ~: the exact peak of the step (the allocator's own peak rose to it, or \
         every event was seen).",
        "~ at its end, cached: the last value before the end; the allocator was active between that and the first sample after the end.",
    ];
    let ends = |end| all.iter().any(|iteration| iteration.end == end);
    if ends(IterationEnd::NotSeen) {
        notes.push(
            "+: not finished when the recording or the loop ended: its end is unknown, its figures are those until then.",
        );
    }
    if ends(IterationEnd::VariableGone) {
        notes.push(
            "*: ended when the variable disappeared (its function returned), at most some hundredths of a second after the time given.",
        );
    }
    notes.extend([
        "intermediate: the peak of intermediate gradients: blocks allocated while an autograd node ran, and freed by the \
         backward pass within the step; -: unknown (needs an exact recording), or no node \
         was seen.",
        "feature maps: saved for backward, and results of autograd nodes that only Python keeps (among the other tensors): the most in any snapshot of the step.",
    ]);
    let seen = match profile.steps_at_events() {
        true => "exactly between two allocations or frees",
        false => "within the time between two samples",
    };
    let end = format!("An iteration ends when {}; seen {seen}.", end_event(profile));
    notes.into_iter().map(str::to_owned).chain([end]).collect()
}

fn end_event(profile: &Profile) -> String {
    match (profile.iteration_clock(), profile.step_clock()) {
        (IterationClock::Steps, Some(StepSource::Variable)) => {
            "the loop's variable changes".to_owned()
        }
        (IterationClock::Steps, Some(StepSource::Trainer)) => {
            "global_step of the Trainer rises".to_owned()
        }
        (IterationClock::Steps, Some(StepSource::Scheduler)) => {
            "last_epoch of the learning-rate scheduler rises".to_owned()
        }
        (IterationClock::Steps, _) => "the optimizer's step counter rises".to_owned(),
        (IterationClock::Marker(marker), _) => {
            format!("a thread reaches {}:{}", marker.file, marker.line)
        }
        (IterationClock::Period(period), _) => format!(
            "{} allocations are made: then the counters have the same values again ({} of {} samples that far apart agree)",
            period.allocations, period.equal, period.compared
        ),
    }
}

fn summary(
    out: &mut dyn Write,
    profile: &Profile,
    all: &[Cow<'_, Iteration>],
) -> Result<(), OutputError> {
    let is_period = matches!(profile.iteration_clock(), IterationClock::Period(_));
    let (what, by) = match (profile.iteration_clock(), profile.step_clock()) {
        (IterationClock::Steps, Some(StepSource::Variable)) => {
            ("steps", "the loop's variable (--iter-var)".to_owned())
        }
        (IterationClock::Steps, Some(StepSource::Trainer)) => {
            ("steps", "global_step of transformers' TrainerState".to_owned())
        }
        (IterationClock::Steps, Some(StepSource::Scheduler)) => (
            "steps",
            "last_epoch of a learning-rate scheduler: each may be several real steps, or an epoch (--period counts by the allocator's counters)"
                .to_owned(),
        ),
        (IterationClock::Steps, _) => ("steps", "the optimizer's step counter".to_owned()),
        (IterationClock::Marker(marker), _) => {
            ("steps", format!("how often a thread reached {}:{}", marker.file, marker.line))
        }
        (IterationClock::Period(period), _) => (
            "periods",
            format!(
                "the period of the allocator's counters, {} allocations: each may be several real steps, or a part of one",
                count(period.allocations.unsigned_abs())
            ),
        ),
    };
    let steps = |rows: &mut dyn Iterator<Item = &Cow<'_, Iteration>>| -> u64 {
        rows.map(|iteration| iteration.steps).sum()
    };
    let left_out = match profile.iterations().1 {
        0 => String::new(),
        more => format!("; {} later ones are left out", count(more)),
    };
    writeln!(out, "{} {what}, counted by {by}{left_out}", count(steps(&mut all.iter())))?;
    // The first may include a wait; the end of the last is unknown.
    let is_timed = |iteration: &&Cow<'_, Iteration>| {
        iteration.begin_is_known && iteration.end != IterationEnd::NotSeen
    };
    let timed = steps(&mut all.iter().filter(is_timed));
    let seconds: f64 = all.iter().filter(is_timed).map(|iteration| duration(iteration)).sum();
    let whole = match timed == steps(&mut all.iter()) {
        true => "",
        false => " that were seen from start to end",
    };
    if timed > 0 {
        let each = seconds / timed as f64;
        writeln!(out, "{} {what}{whole} in {seconds:.1} s: {each:.4} s each", count(timed))?;
    } else if is_period {
        writeln!(out, "none was seen from start to end")?;
    }
    Ok(())
}

fn held_by(held: &IterationOwners, reached: IterationLevels) -> String {
    let below = below_peak(held, reached);
    let place = match below {
        1.. => format!("{} below the peak", signed_bytes(below)),
        _ => "at the peak".to_owned(),
    };
    let categories = held.categories.iter().map(|(category, bytes)| (category.name(), *bytes));
    let feature_maps = held.feature_maps.map(|bytes| ("feature maps", bytes));
    let all = categories.chain([("in no tensor", held.in_no_tensor)]).chain(feature_maps);
    let all: Vec<String> =
        all.map(|(name, bytes)| format!("{name} {}", signed_bytes(bytes as i64))).collect();
    format!("{place}: {}", all.join(", "))
}

fn parameters(
    out: &mut dyn Write,
    all: &[Cow<'_, Iteration>],
    device: CudaIndex,
) -> Result<(), OutputError> {
    let seen =
        |i: &'_ &Cow<'_, Iteration>| i.owned.get(&device).is_some_and(|h| !h.parameters.is_empty());
    writeln!(out)?;
    let Some(last) = all.iter().rev().find(seen) else {
        writeln!(
            out,
            "No parameter was seen in any step: record with --owners, and for longer than a snapshot of the owners takes."
        )?;
        return Ok(());
    };
    writeln!(
        out,
        "{:>11} {:>11}  parameter (as seen in step {})",
        "weight",
        "gradient",
        named(last)
    )?;
    let (mut weights, mut gradients) = (0, 0);
    for (name, bytes) in last.owned.get(&device).iter().flat_map(|held| &held.parameters) {
        let (weight, gradient) =
            (signed_bytes(bytes.weight as i64), signed_bytes(bytes.gradient as i64));
        writeln!(out, "{weight:>11} {gradient:>11}  {}", one_line(name))?;
        weights += bytes.weight;
        gradients += bytes.gradient;
    }
    let (weights, gradients) = (signed_bytes(weights as i64), signed_bytes(gradients as i64));
    writeln!(out, "{weights:>11} {gradients:>11}  all parameters")?;
    Ok(())
}

fn named(iteration: &Iteration) -> String {
    let mark = match iteration.end {
        IterationEnd::Counted => "",
        IterationEnd::VariableGone => "*",
        IterationEnd::NotSeen => "+",
    };
    match iteration.epoch {
        Some(epoch) => format!("{epoch}:{}{mark}", iteration.step),
        None => format!("{}{mark}", iteration.step),
    }
}

fn size(value: i64, exact: bool) -> String {
    let mark = if exact { "" } else { "~" };
    format!("{mark}{}", signed_bytes(value))
}

fn duration(iteration: &Iteration) -> f64 {
    iteration.to.seconds() - iteration.from.seconds()
}
