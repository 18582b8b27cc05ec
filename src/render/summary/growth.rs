//! `memspy growth`: what grows fastest, and what keeps it.

use std::io::Write;

use super::json::{GrowthJson, KeeperJson, ObservedGrowthJson, TimeToFullJson};
use super::text::{LinesSource, ObservedLines, sampled_lines, stops_text};
use crate::analysis::{GrowthWatch, TimeToFull};
use crate::model::{StopTotals, TensorReferrers};
use crate::render::owners::{COLLECT_NOTE, frees_text, group_label};
use crate::render::shared::{
    EscapeGuard, JsonDocument, OutputError, bytes, count, full_in, one_line, suggestion_on,
};

const OWNERS: usize = 15;
const LINES: usize = 10;
/// Of one tensor.
const REFERRERS: usize = 5;

/// What keeps a tensor of a growing owner.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GrowthKeeper {
    pub example: String,
    pub referrers: Vec<TensorReferrers>,
}

/// Writes what grew.
pub fn growth_text(
    out: &mut dyn Write,
    pid: u32,
    watch: &GrowthWatch,
    lines: &ObservedLines,
    keepers: &[GrowthKeeper],
    full: &[(u32, TimeToFull)],
    stops: StopTotals,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    growing_owners(out, watch)?;
    for keeper in keepers {
        write_keeper(out, pid, keeper)?;
    }
    growing_lines(out, pid, watch, lines)?;
    for (gpu, full) in full {
        let (room, rate) = (bytes(full.room), bytes(full.rate as u64));
        let when = full_in(full);
        writeln!(out, "\nGPU {gpu}: {room} are left; at +{rate} a second it is {when}")?;
    }
    if stops.count > 0 {
        writeln!(out, "\n{}", stops_text(stops))?;
    }
    Ok(())
}

fn growing_owners(out: &mut dyn Write, watch: &GrowthWatch) -> std::io::Result<()> {
    let (snapshots, seconds) = (watch.snapshots(), watch.seconds());
    let owners = watch.owners();
    writeln!(out, "{snapshots} snapshots over {seconds:.1} s: what kept growing")?;
    if owners.is_empty() {
        let short = if snapshots < 3 {
            ": at least three complete snapshots are needed, --for gives more time"
        } else {
            ""
        };
        writeln!(out, "\nno owner grew{short}")?;
    } else {
        let shown = || owners.iter().take(OWNERS).map(|growth| growth.group.frees.as_ref());
        let has_frees = shown().any(|frees| frees.is_some());
        let frees = |text: &str| if has_frees { format!("{text:>12}  ") } else { String::new() };
        writeln!(
            out,
            "\n{:>13}  {:>11}  {:>9}  {:>11}  {}owner",
            "a second",
            "grown",
            "storages",
            "now",
            frees("frees")
        )?;
        for growth in owners.iter().take(OWNERS) {
            let sign = if growth.storages < 0 { "-" } else { "+" };
            writeln!(
                out,
                "{:>13}  {:>11}  {:>9}  {:>11}  {}{}",
                format!("+{}", bytes(growth.rise.rate() as u64)),
                format!("+{}", bytes(growth.rise.bytes)),
                format!("{sign}{}", count(growth.storages.unsigned_abs())),
                bytes(growth.group.size.bytes),
                frees(&frees_text(growth.group.frees.as_ref())),
                group_label(&growth.group)
            )?;
        }
        if shown().flatten().any(|frees| frees.after_collect > 0) {
            writeln!(out, "{COLLECT_NOTE}")?;
        }
        if owners.len() > OWNERS {
            let rest: f64 = owners[OWNERS..].iter().map(|growth| growth.rise.rate()).sum();
            let rest = format!("+{}", bytes(rest as u64));
            writeln!(out, "{rest:>13}  {:>35}  [{} others]", "", owners.len() - OWNERS)?;
        }
    }
    Ok(())
}

fn write_keeper(out: &mut dyn Write, pid: u32, keeper: &GrowthKeeper) -> std::io::Result<()> {
    writeln!(out, "\n{} is kept by", one_line(&keeper.example))?;
    let referrers = keeper.referrers.iter().flat_map(|of| &of.referrers);
    for referrer in referrers.take(REFERRERS) {
        let way = match &referrer.name {
            Some(name) => format!("{name}{}", referrer.step),
            None => format!("<{}>{}, no variable leads to it", referrer.class, referrer.step),
        };
        writeln!(out, "    {:<14} {}", one_line(&referrer.class), one_line(&way))?;
    }
    writeln!(out, "    {}", suggestion_on(pid, "why", &[&keeper.example]))
}

fn growing_lines(
    out: &mut dyn Write,
    pid: u32,
    watch: &GrowthWatch,
    lines: &ObservedLines,
) -> std::io::Result<()> {
    let grown = watch.lines();
    match &lines.source {
        LinesSource::Exact => {}
        LinesSource::Sampled { lacks_rights, .. } => {
            writeln!(out, "\n{}", sampled_lines(pid, *lacks_rights))?;
            return Ok(());
        }
        LinesSource::None => return Ok(()),
    }
    if grown.is_empty() {
        writeln!(out, "\nno line owned more and more (proven)")?;
        return Ok(());
    }
    writeln!(out, "\n{:>13}  {:>11}  line that allocated it (proven)", "a second", "grown")?;
    for growth in grown.iter().take(LINES) {
        writeln!(
            out,
            "{:>13}  {:>11}  {}",
            format!("+{}", bytes(growth.rise.rate() as u64)),
            format!("+{}", bytes(growth.rise.bytes)),
            one_line(&growth.line)
        )?;
    }
    Ok(())
}

/// Writes what grew, as JSON.
pub fn growth_json(
    out: &mut dyn Write,
    pid: u32,
    watch: &GrowthWatch,
    keepers: &[GrowthKeeper],
    full: &[(u32, TimeToFull)],
) -> Result<(), OutputError> {
    let kept_by = keepers.iter().map(|keeper| {
        let referrers = keeper.referrers.iter().flat_map(|of| &of.referrers);
        let paths = referrers.filter_map(|r| Some(format!("{}{}", r.name.as_ref()?, r.step)));
        KeeperJson { example: keeper.example.clone(), referrers: paths.collect() }
    });
    let ObservedGrowthJson { snapshots, seconds, owners, lines } = ObservedGrowthJson::new(watch);
    JsonDocument::new(GrowthJson {
        pid,
        snapshots,
        seconds,
        owners,
        lines,
        kept_by: kept_by.collect(),
        full: full.iter().map(|(gpu, full)| TimeToFullJson::new(*gpu, full)).collect(),
    })
    .write(out, true)
}
