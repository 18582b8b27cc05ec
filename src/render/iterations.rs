//! Training iterations as a table, CSV and JSON.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io::Write;

use super::RenderError;
use super::escape::EscapeGuard;
use super::header::header;
use super::interchange::CsvSheet;
use super::json::{IterationJson, IterationsJson, JsonDocument, ParameterJson};
use super::label::one_line;
use super::size::{count, signed_bytes};
use super::warnings::warnings;
use crate::analysis::{
    Iteration, IterationClock, IterationEnd, IterationLevels, OwnedInIteration, Profile,
};
use crate::model::{CudaIndex, StepSource, TensorCategory};

/// Writes the last `limit` iterations (0: all), and the one with the highest peak.
pub fn iterations_text(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
    limit: usize,
    with_parameters: bool,
) -> Result<(), RenderError> {
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
    writeln!(out)?;
    writeln!(
        out,
        "~ at a peak: at least that; without: the step's own peak, to the byte (the allocator's mark rose to it, or every event was seen)."
    )?;
    writeln!(
        out,
        "~ at its end, cached: as last seen before the end, something was allocated, freed or reserved between that and the first sample after it."
    )?;
    let ends = |end| all.iter().any(|iteration| iteration.end == end);
    if ends(IterationEnd::NotSeen) {
        writeln!(
            out,
            "+: still under way when the recording ended, or the loop was over: its end is unknown, its figures are those until then."
        )?;
    }
    if ends(IterationEnd::VariableGone) {
        writeln!(
            out,
            "*: ended when the variable was there no more (its function returned), some hundredths of a second after the time given, or less."
        )?;
    }
    writeln!(
        out,
        "intermediate: intermediate gradients, the most that blocks held at once which were allocated while an autograd node was \
         evaluated and freed by the backward pass within the step; -: not known (only exact recordings tell), or no node was seen."
    )?;
    writeln!(
        out,
        "feature maps: saved for backward, and results of autograd nodes that only Python keeps (among the other tensors): the most in any snapshot of the step."
    )?;
    let clock = match (profile.iteration_clock(), profile.step_clock()) {
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
            "{} allocations are made: after as many the counters have the same values again ({} of {} samples that far apart agree)",
            period.allocations, period.equal, period.compared
        ),
    };
    let seen = match profile.steps_at_events() {
        true => "exactly between two allocations or frees",
        false => "within the time between two samples",
    };
    writeln!(out, "An iteration ends when {clock}; seen {seen}.")?;
    if with_parameters {
        parameters(out, &all, device)?;
    }
    Ok(())
}

/// All iterations, and the one under way if that is known.
fn listed(profile: &Profile) -> Vec<Cow<'_, Iteration>> {
    let whole = profile.iterations().0.iter().map(Cow::Borrowed);
    whole.chain(profile.iteration_under_way().map(Cow::Owned)).collect()
}

/// What counts the steps, in the words of exports.
fn counted_by(profile: &Profile) -> String {
    match (profile.iteration_clock(), profile.step_clock()) {
        (IterationClock::Steps, Some(StepSource::Variable)) => "variable".to_owned(),
        (IterationClock::Steps, Some(StepSource::Trainer)) => "trainer".to_owned(),
        (IterationClock::Steps, Some(StepSource::Scheduler)) => "scheduler".to_owned(),
        (IterationClock::Steps, _) => "optimizer".to_owned(),
        (IterationClock::Marker(marker), _) => format!("marker {}:{}", marker.file, marker.line),
        (IterationClock::Period(_), _) => "period".to_owned(),
    }
}

/// How many steps there are, by what they are counted, and how long one takes.
fn summary(
    out: &mut dyn Write,
    profile: &Profile,
    all: &[Cow<'_, Iteration>],
) -> Result<(), RenderError> {
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
    // The first may include a wait, and the end of the last is unknown.
    let is_timed = |iteration: &&Cow<'_, Iteration>| {
        iteration.begin_is_known && iteration.end != IterationEnd::NotSeen
    };
    let timed = steps(&mut all.iter().filter(is_timed));
    let seconds: f64 = all.iter().filter(is_timed).map(|iteration| duration(iteration)).sum();
    let whole = match timed == steps(&mut all.iter()) {
        true => "",
        false => " that were seen from their begin to their end",
    };
    if timed > 0 {
        let each = seconds / timed as f64;
        writeln!(out, "{} {what}{whole} in {seconds:.1} s: {each:.4} s each", count(timed))?;
    } else if is_period {
        writeln!(out, "none was seen from its begin to its end")?;
    }
    Ok(())
}

/// What a snapshot shows, and how far below the peak it was.
fn held_by(held: &OwnedInIteration, reached: IterationLevels) -> String {
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

/// Writes the last parameters and gradients seen, or why there are none.
fn parameters(
    out: &mut dyn Write,
    all: &[Cow<'_, Iteration>],
    device: CudaIndex,
) -> Result<(), RenderError> {
    let seen =
        |i: &'_ &Cow<'_, Iteration>| i.owned.get(&device).is_some_and(|h| !h.parameters.is_empty());
    writeln!(out)?;
    let Some(last) = all.iter().rev().find(seen) else {
        writeln!(
            out,
            "No parameter was seen in any step: record with --owners, which reads who holds the memory, and for longer than a \
             snapshot of the owners takes."
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

/// How many bytes below the peak the snapshot was; negative where the peak is not known to be so
/// high.
fn below_peak(held: &OwnedInIteration, reached: IterationLevels) -> i64 {
    reached.peak_allocated - held.allocated as i64
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

fn levels(iteration: &Iteration, device: CudaIndex) -> IterationLevels {
    iteration.levels.get(&device).copied().unwrap_or_default()
}

/// Writes all iterations as CSV, in bytes; snapshot figures are empty for an iteration without one.
pub fn iterations_csv(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
) -> Result<(), RenderError> {
    let mut csv = CsvSheet::new(out);
    let fixed = [
        "epoch",
        "step",
        "steps",
        "from_seconds",
        "to_seconds",
        "peak_allocated",
        "peak_is_exact",
        "allocated",
        "allocated_is_exact",
        "peak_reserved",
        "peak_reserved_is_exact",
        "reserved",
        "reserved_is_exact",
        "intermediate_gradients",
        "counted_by",
        "begin_is_known",
        "end",
    ];
    let categories = TensorCategory::ALL.map(TensorCategory::name);
    let (all, by) = (listed(profile), counted_by(profile));
    let parameters: BTreeSet<&str> = all
        .iter()
        .filter_map(|iteration| iteration.owned.get(&device))
        .flat_map(|held| held.parameters.keys().map(|name| &**name))
        .collect();
    let gradients: Vec<String> = parameters.iter().map(|name| format!("{name}.grad")).collect();
    let look = ["in no tensor", "feature maps", "snapshot_allocated", "snapshot_below_peak"];
    let head = fixed.iter().chain(&categories).chain(&look).copied();
    csv.write_record(
        head.chain(parameters.iter().copied()).chain(gradients.iter().map(|name| &**name)),
    )?;
    for iteration in &all {
        let reached = levels(iteration, device);
        let mut row = vec![
            iteration.epoch.map_or_else(String::new, |epoch| epoch.to_string()),
            iteration.step.to_string(),
            iteration.steps.to_string(),
            iteration.from.seconds().to_string(),
            iteration.to.seconds().to_string(),
            reached.peak_allocated.to_string(),
            reached.exact.to_string(),
            reached.allocated.to_string(),
            reached.allocated_is_exact.to_string(),
            reached.peak_reserved.to_string(),
            reached.peak_reserved_is_exact.to_string(),
            reached.reserved.to_string(),
            reached.reserved_is_exact.to_string(),
            reached.intermediate.map_or_else(String::new, |bytes| bytes.to_string()),
            by.clone(),
            iteration.begin_is_known.to_string(),
            iteration.end.name().to_owned(),
        ];
        let held = iteration.owned.get(&device);
        let bytes = |of: &dyn Fn(&OwnedInIteration) -> u64| {
            held.map_or_else(String::new, |held| of(held).to_string())
        };
        row.extend(TensorCategory::ALL.map(|category| {
            bytes(&|held| held.categories.get(&category).copied().unwrap_or_default())
        }));
        row.push(bytes(&|held| held.in_no_tensor));
        let maps = held.and_then(|held| held.feature_maps);
        row.push(maps.map_or_else(String::new, |bytes| bytes.to_string()));
        row.push(bytes(&|held| held.allocated));
        row.push(held.map_or_else(String::new, |held| below_peak(held, reached).to_string()));
        let of = |name: &str, held: &OwnedInIteration| {
            held.parameters.get(name).copied().unwrap_or_default()
        };
        row.extend(parameters.iter().map(|name| bytes(&|held| of(name, held).weight)));
        row.extend(parameters.iter().map(|name| bytes(&|held| of(name, held).gradient)));
        csv.write_record(&row)?;
    }
    csv.flush()?;
    Ok(())
}

/// Writes all iterations as JSON, in bytes; without a snapshot its figures are `null`.
pub fn iterations_json(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
) -> Result<(), RenderError> {
    let iterations = listed(profile);
    let content = IterationsJson {
        device: device.0,
        counted_by: counted_by(profile),
        iterations: iterations.iter().map(|iteration| iteration_json(iteration, device)).collect(),
        left_out: profile.iterations().1,
        warnings: warnings(profile),
    };
    JsonDocument::new(content).write(out, true)
}

fn iteration_json(iteration: &Iteration, device: CudaIndex) -> IterationJson {
    let reached = levels(iteration, device);
    let look = iteration.owned.get(&device);
    let held = look.map(|held| {
        let bytes =
            |category: TensorCategory| held.categories.get(&category).copied().unwrap_or_default();
        let categories = TensorCategory::ALL.map(|c| (c.name().to_owned(), bytes(c)));
        let rest = ("in no tensor".to_owned(), held.in_no_tensor);
        categories.into_iter().chain([rest]).collect()
    });
    let parameters = look.map(|held| {
        let all = held.parameters.iter();
        all.map(|(name, bytes)| {
            (name.to_string(), ParameterJson { weight: bytes.weight, gradient: bytes.gradient })
        })
        .collect()
    });
    IterationJson {
        epoch: iteration.epoch,
        step: iteration.step,
        steps: iteration.steps,
        from_seconds: iteration.from.seconds(),
        to_seconds: iteration.to.seconds(),
        peak_allocated: reached.peak_allocated,
        peak_is_exact: reached.exact,
        allocated: reached.allocated,
        allocated_is_exact: reached.allocated_is_exact,
        peak_reserved: reached.peak_reserved,
        peak_reserved_is_exact: reached.peak_reserved_is_exact,
        reserved: reached.reserved,
        reserved_is_exact: reached.reserved_is_exact,
        begin_is_known: iteration.begin_is_known,
        end: iteration.end.name().to_owned(),
        intermediate_gradients: reached.intermediate,
        held,
        feature_maps: look.and_then(|held| held.feature_maps),
        snapshot_allocated: look.map(|held| held.allocated),
        snapshot_below_peak: look.map(|held| below_peak(held, reached)),
        parameters,
    }
}
