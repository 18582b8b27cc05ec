//! Training iterations as a table, CSV and JSON.

use std::io::Write;

use serde_json::{Value, json};

use super::RenderError;
use super::header::header;
use super::size::{count, signed_bytes};
use crate::analysis::{Iteration, IterationLevels, Profile};
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
        writeln!(out, "highest peak: {peak} in step {}", highest.step)?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "{:>8} {:>9} {:>8} {:>12} {:>11} {:>11} {:>11}  held by (last look in it)",
        "step", "at (s)", "seconds", "peak", "at its end", "peak cached", "cached"
    )?;
    let from = match limit {
        0 => 0,
        limit => all.len().saturating_sub(limit),
    };
    for iteration in &all[from..] {
        let reached = levels(iteration, device);
        let held: Vec<String> = iteration
            .held
            .get(&device)
            .into_iter()
            .flatten()
            .map(|(category, bytes)| format!("{} {}", category.name(), signed_bytes(*bytes as i64)))
            .collect();
        let row = format!(
            "{:>8} {:>9.3} {:>8.4} {:>12} {:>11} {:>11} {:>11}  {}",
            iteration.step,
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
    writeln!(
        out,
        "An iteration ends when the optimizer's step counter rises; seen within the time between two samples."
    )?;
    Ok(())
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
    csv.write_record(fixed.iter().chain(&categories))?;
    for iteration in profile.iterations().0 {
        let reached = levels(iteration, device);
        let mut row = vec![
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
        row.extend(Category::ALL.map(|category| {
            held.map_or_else(String::new, |held| {
                held.get(&category).copied().unwrap_or_default().to_string()
            })
        }));
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
                let bytes = |category: Category| held.get(&category).copied().unwrap_or_default();
                let pairs = Category::ALL.map(|c| (c.name().to_owned(), json!(bytes(c))));
                Value::Object(pairs.into_iter().collect())
            });
            json!({
                "step": iteration.step,
                "steps": iteration.steps,
                "from_seconds": iteration.from.seconds(),
                "to_seconds": iteration.to.seconds(),
                "peak_allocated": reached.peak_allocated,
                "peak_is_exact": reached.exact,
                "allocated": reached.allocated,
                "peak_reserved": reached.peak_reserved,
                "reserved": reached.reserved,
                "held": held,
            })
        })
        .collect();
    let value = json!({"device": device.0, "iterations": rows, "left_out": left_out});
    serde_json::to_writer_pretty(&mut *out, &value)?;
    writeln!(out)?;
    Ok(())
}
