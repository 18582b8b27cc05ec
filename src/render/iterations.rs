//! Training iterations as a table, CSV and JSON.

use std::collections::BTreeSet;
use std::io::Write;

use serde_json::{Value, json};

use super::RenderError;
use super::header::header;
use super::size::{count, signed_bytes};
use crate::analysis::{HeldInIteration, Iteration, IterationClock, IterationLevels, Profile};
use crate::model::{Category, CudaIndex};

/// Writes the last `limit` iterations (0: all), and the one with the highest peak.
pub fn iterations_text(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
    limit: usize,
) -> Result<(), RenderError> {
    for line in header(profile, device) {
        writeln!(out, "{line}")?;
    }
    let (all, left_out) = profile.iterations();
    let seconds: f64 = all.iter().map(duration).sum();
    let steps: u64 = all.iter().map(|iteration| iteration.steps).sum();
    writeln!(
        out,
        "{} steps in {seconds:.1} s: {:.4} s each{}",
        count(steps),
        seconds / steps.max(1) as f64,
        match left_out {
            0 => String::new(),
            more => format!("; {} later iterations are left out", count(more)),
        }
    )?;
    if let Some(highest) = all.iter().max_by_key(|i| levels(i, device).peak_allocated) {
        let peak = size(levels(highest, device).peak_allocated, levels(highest, device).exact);
        writeln!(out, "highest peak: {peak} in step {}", named(highest))?;
    }
    writeln!(out)?;
    let has_epochs = all.iter().any(|iteration| iteration.epoch.is_some());
    writeln!(
        out,
        "{:>8} {:>9} {:>8} {:>12} {:>11} {:>11} {:>11}  held by (last look in it)",
        if has_epochs { "epoch:step" } else { "step" },
        "at (s)",
        "seconds",
        "peak",
        "at its end",
        "peak cached",
        "cached"
    )?;
    let from = match limit {
        0 => 0,
        limit => all.len().saturating_sub(limit),
    };
    for iteration in &all[from..] {
        let reached = levels(iteration, device);
        let loose = iteration.held.get(&device).map(|held| ("in no tensor", held.in_no_tensor));
        let held: Vec<String> = iteration
            .held
            .get(&device)
            .into_iter()
            .flat_map(|held| &held.categories)
            .map(|(category, bytes)| (category.name(), *bytes))
            .chain(loose)
            .map(|(name, bytes)| format!("{name} {}", signed_bytes(bytes as i64)))
            .collect();
        let row = format!(
            "{:>8} {:>9.3} {:>8.4} {:>12} {:>11} {:>11} {:>11}  {}",
            named(iteration),
            iteration.to.seconds(),
            duration(iteration),
            size(reached.peak_allocated, reached.exact),
            signed_bytes(reached.allocated),
            signed_bytes(reached.peak_reserved),
            signed_bytes(reached.reserved),
            held.join(", ")
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    writeln!(out)?;
    writeln!(out, "~: at least that; without: the allocator's own peak rose to it in this step.")?;
    let clock = match (profile.iteration_clock(), has_epochs || profile.steps_by_variable()) {
        (IterationClock::Steps, false) => "the optimizer's step counter rises".to_owned(),
        (IterationClock::Steps, true) => "the loop's variable changes".to_owned(),
        (IterationClock::Marker(marker), _) => {
            format!("a thread comes to {}:{}", marker.file, marker.line)
        }
        (IterationClock::Period(period), _) => format!(
            "{} allocations are made: after so many the same levels come again ({} of {} looks that far apart agree)",
            period.allocations, period.equal, period.compared
        ),
    };
    writeln!(out, "An iteration ends when {clock}; seen within the time between two samples.")?;
    parameters(out, all, device)
}

/// Writes the last parameters and gradients seen, if they were asked for.
fn parameters(
    out: &mut dyn Write,
    all: &[Iteration],
    device: CudaIndex,
) -> Result<(), RenderError> {
    let seen = |i: &'_ &Iteration| i.held.get(&device).is_some_and(|h| !h.parameters.is_empty());
    let Some(last) = all.iter().rev().find(seen) else { return Ok(()) };
    writeln!(out)?;
    writeln!(
        out,
        "{:>11} {:>11}  parameter (as seen in step {})",
        "weight",
        "gradient",
        named(last)
    )?;
    for (name, bytes) in last.held.get(&device).iter().flat_map(|held| &held.parameters) {
        let (weight, gradient) =
            (signed_bytes(bytes.weight as i64), signed_bytes(bytes.gradient as i64));
        writeln!(out, "{weight:>11} {gradient:>11}  {name}")?;
    }
    Ok(())
}

fn named(iteration: &Iteration) -> String {
    match iteration.epoch {
        Some(epoch) => format!("{epoch}:{}", iteration.step),
        None => iteration.step.to_string(),
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

/// Writes all iterations as CSV, in bytes; categories are empty where no look fell into an iteration.
pub fn iterations_csv(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
) -> Result<(), RenderError> {
    let mut csv = csv::Writer::from_writer(out);
    let fixed = [
        "epoch",
        "step",
        "steps",
        "from_seconds",
        "to_seconds",
        "peak_allocated",
        "peak_is_exact",
        "allocated",
        "peak_reserved",
        "reserved",
    ];
    let categories = Category::ALL.map(Category::name);
    let parameters: BTreeSet<&str> = profile
        .iterations()
        .0
        .iter()
        .filter_map(|iteration| iteration.held.get(&device))
        .flat_map(|held| held.parameters.keys().map(|name| &**name))
        .collect();
    let gradients: Vec<String> = parameters.iter().map(|name| format!("{name}.grad")).collect();
    let head = fixed.iter().chain(&categories).chain(&["in no tensor"]).copied();
    csv.write_record(
        head.chain(parameters.iter().copied()).chain(gradients.iter().map(|name| &**name)),
    )?;
    for iteration in profile.iterations().0 {
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
            reached.peak_reserved.to_string(),
            reached.reserved.to_string(),
        ];
        let held = iteration.held.get(&device);
        let bytes = |of: &dyn Fn(&HeldInIteration) -> u64| {
            held.map_or_else(String::new, |held| of(held).to_string())
        };
        row.extend(Category::ALL.map(|category| {
            bytes(&|held| held.categories.get(&category).copied().unwrap_or_default())
        }));
        row.push(bytes(&|held| held.in_no_tensor));
        let of = |name: &str, held: &HeldInIteration| {
            held.parameters.get(name).copied().unwrap_or_default()
        };
        row.extend(parameters.iter().map(|name| bytes(&|held| of(name, held).weight)));
        row.extend(parameters.iter().map(|name| bytes(&|held| of(name, held).gradient)));
        csv.write_record(&row)?;
    }
    csv.flush()?;
    Ok(())
}

/// Writes all iterations as JSON, in bytes; what no look fell into is `null`.
pub fn iterations_json(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
) -> Result<(), RenderError> {
    let (all, left_out) = profile.iterations();
    let rows: Vec<Value> = all
        .iter()
        .map(|iteration| {
            let reached = levels(iteration, device);
            let held = iteration.held.get(&device).map(|held| {
                let bytes = |category: Category| {
                    held.categories.get(&category).copied().unwrap_or_default()
                };
                let pairs = Category::ALL.map(|c| (c.name().to_owned(), json!(bytes(c))));
                let mut pairs: serde_json::Map<String, Value> = pairs.into_iter().collect();
                pairs.insert("in no tensor".to_owned(), json!(held.in_no_tensor));
                Value::Object(pairs)
            });
            let parameters: Option<serde_json::Map<String, Value>> =
                iteration.held.get(&device).map(|held| {
                    let pairs = held.parameters.iter().map(|(name, bytes)| {
                        (
                            name.to_string(),
                            json!({"weight": bytes.weight, "gradient": bytes.gradient}),
                        )
                    });
                    pairs.collect()
                });
            json!({
                "epoch": iteration.epoch,
                "step": iteration.step,
                "steps": iteration.steps,
                "from_seconds": iteration.from.seconds(),
                "to_seconds": iteration.to.seconds(),
                "peak_allocated": reached.peak_allocated,
                "peak_is_exact": reached.exact,
                "allocated": reached.allocated,
                "peak_reserved": reached.peak_reserved,
                "reserved": reached.reserved,
                "intermediate_gradients": reached.intermediate,
                "held": held,
                "parameters": parameters,
            })
        })
        .collect();
    let value = json!({"device": device.0, "iterations": rows, "left_out": left_out});
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}
