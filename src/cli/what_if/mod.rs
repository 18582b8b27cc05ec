//! `memspy what-if`: a recording under other settings of PyTorch's allocator.

mod replay;
mod settings;

use std::io::Write;

use anyhow::{Context, Result, bail};

use crate::analysis::Profile;
use crate::analysis::what_if::{RecordedAllocations, ReplayBuilder, SettingComparison};
use crate::model::{Card, FreeTracking};
use crate::render::{WhatIfAnswer, what_if_json, what_if_page, what_if_text};

use super::args::WhatIfArgs;
use super::device_choice::device;
use super::output::{self, into_io};
use super::replay::StoredRecording;
use super::simulated_device::{BOUNDLESS, RunFolder, SimulatedLibraries, TorchPython};

use replay::{ReplayRun, run_all};
use settings::{TriedSetting, tried};

/// Memory of a card that is not known.
const ENOUGH: u64 = 80 << 30;

pub(super) fn run(args: &WhatIfArgs) -> Result<()> {
    output::check_requested(args.html.as_deref(), args.force)?;
    let recorded = recorded(args)?;
    if args.empty_cache_every_step && recorded.steps == 0 {
        bail!(
            "{} has no training steps to empty the cache after: record with --iter-var, or with --owners",
            args.trace.display()
        );
    }
    let python = match &args.python {
        Some(python) => TorchPython::of(std::slice::from_ref(python))?,
        None => TorchPython::of(&["python".to_owned()])
            .or_else(|_| TorchPython::of(&["python3".to_owned()]))
            .context("no Python to replay with: name one with --python")?,
    };
    let libraries = SimulatedLibraries::prepare(&python)?;
    let folder = RunFolder::create()?;
    let own_card = card(&recorded, None);
    let other_card = args.limit.as_ref().map(|limit| card(&recorded, Some(limit)));
    let used = other_card.as_ref().unwrap_or(&own_card);
    let settings = tried(args, &recorded, used);
    let mut runs: Vec<(&TriedSetting, &Card)> = settings.iter().map(|it| (it, used)).collect();
    if let (Some(_), Some(own)) = (&other_card, settings.first()) {
        runs.push((own, &own_card));
    }
    let run =
        ReplayRun { python: &python, libraries: &libraries, folder: &folder, recorded: &recorded };
    let mut replayed = run_all(&run, &runs)?;
    let on_own_card = if other_card.is_some() { replayed.pop() } else { replayed.first().cloned() };
    let replayed_peak = on_own_card.context("no replay")?.outcome.reserved_peak;
    let own = replayed.remove(0);
    let peaks = (recorded.reserved_peak, replayed_peak);
    let answer = WhatIfAnswer {
        comparison: SettingComparison::new(peaks, own, replayed),
        memory: (recorded.memory.is_some() || args.limit.is_some()).then_some(used.memory),
        is_other_card: args.limit.is_some(),
        recorded,
    };
    write(args, &answer)
}

fn write(args: &WhatIfArgs, answer: &WhatIfAnswer) -> Result<()> {
    if args.json {
        output::print(|out| what_if_json(out, answer).map_err(into_io))?;
    } else {
        output::print(|out| what_if_text(out, answer))?;
    }
    if let Some(path) = &args.html {
        output::report(path, args.force, |out: &mut dyn Write| what_if_page(out, answer))?;
    }
    Ok(())
}

fn recorded(args: &WhatIfArgs) -> Result<RecordedAllocations> {
    let trace = StoredRecording::trace(&args.trace)?;
    let profile = trace.profile(Profile::new().without_line_statistics())?;
    let gpu = device(&profile, args.gpu)?;
    let name = args.trace.display();
    let Some(exact) = profile.exact().filter(|exact| exact.has_torch()) else {
        bail!(
            "{name} does not have every allocation, so it cannot be replayed: record with --exact, or with 'dry-run -o'"
        );
    };
    if exact.exact().frees == FreeTracking::Snapshots {
        bail!(
            "{name} has no frees (--frees snapshots), so it cannot be replayed: record without that option"
        );
    }
    let mut builder = ReplayBuilder::new(gpu);
    trace.reread(&mut builder)?;
    let recorded = builder.finish();
    let recorded = recorded
        .with_context(|| format!("{name} has no allocation of PyTorch on GPU {}", gpu.0))?;
    if recorded.reserved_peak == 0 {
        bail!("{name} does not say what PyTorch reserved, so a replay could not be checked");
    }
    Ok(recorded)
}

/// The recorded card, or another; what was not PyTorch's stays on it. An unknown one has enough,
/// and not more: PyTorch reserves addresses for all of it in each expandable segment.
fn card(recorded: &RecordedAllocations, other: Option<&Card>) -> Card {
    let enough = || recorded.reserved_peak.saturating_mul(2).clamp(ENOUGH, BOUNDLESS);
    let memory = recorded.memory.unwrap_or_else(enough);
    let card = other.cloned().unwrap_or_else(|| Card::with_memory(memory));
    Card { context: recorded.outside.unwrap_or(card.context), ..card }
}
