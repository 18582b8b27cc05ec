//! `memspy summary` and `memspy growth`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::analysis::{FindingFacts, RankHolding, findings, odd_rank};
use crate::model::IncompleteSnapshot;
use crate::render::{self, FindingText, GrowthKeeper, JobSummary};
use crate::sampler::{SnapshotOptions, read_referrers};

use super::args::{GrowthArgs, SummaryArgs};
use super::members::{members, refuse_launcher};
use super::observe::{JobObservation, ObserveOptions, observe};
use super::output::into_io;
use super::owners::attached;
use super::signals::StopSignals;
use super::{eprint_line, hints, in_one_line, output};

const SUMMARY_SNAPSHOTS: u32 = 3;
/// Many snapshots, yet few stops.
const GROWTH_INTERVAL: Duration = Duration::from_millis(800);
const MAX_GROWTH_SNAPSHOTS: u32 = 60;
/// Referrers are searched for this many fastest-growing owners.
const KEEPERS: usize = 2;

pub(super) fn summary(args: &SummaryArgs) -> Result<()> {
    let options = ObserveOptions {
        duration: args.duration,
        every: args.duration / SUMMARY_SNAPSHOTS,
        limits: args.cost.options(),
    };
    let stop = StopSignals::watch()?.stop;
    if args.subprocesses {
        let first = |ranks: &[RankHolding]| match odd_rank(ranks).filter(|_| !args.json) {
            Some(odd) => {
                let text = render::odd_rank_text(&odd, ranks.len());
                output::print(|out| writeln!(out, "{}\n", render::visible(&text)))
            }
            None => Ok(()),
        };
        return of_ranks(args.pid, options, &stop, &first, &|label, pid, observation| {
            print(args.json, pid, &observation, Some(label))
        });
    }
    let readers = attached(args.pid, &stop)?;
    refuse_launcher(&readers)?;
    let observation = observe(readers, options, &stop)?;
    print(args.json, args.pid, &observation, None)
}

/// Observes ranks at the same time, passes their memory to `first`, then each rank to `show`. A
/// failed rank is an error at the end.
fn of_ranks(
    pid: u32,
    options: ObserveOptions,
    stop: &AtomicBool,
    first: &dyn Fn(&[RankHolding]) -> Result<()>,
    show: &dyn Fn(&str, u32, JobObservation) -> Result<()>,
) -> Result<()> {
    let members = members(pid)?;
    let observed: Vec<(String, u32, Result<JobObservation>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .map(|member| {
                let (label, pid) = (member.label(), member.readers.pid());
                (label, pid, scope.spawn(move || observe(member.readers, options, stop)))
            })
            .collect();
        let joined = threads.into_iter().map(|(label, pid, thread)| {
            let ended = || anyhow::anyhow!("the observation of process {pid} ended unexpectedly");
            (label, pid, thread.join().unwrap_or_else(|_| Err(ended())))
        });
        joined.collect()
    });
    let held = |(label, _, seen): &(String, u32, Result<JobObservation>)| {
        Some(holding(label, seen.as_ref().ok()?))
    };
    first(&observed.iter().filter_map(held).collect::<Vec<_>>())?;
    let mut failed = Vec::new();
    for (label, pid, observation) in observed {
        if let Err(error) = observation.and_then(|seen| show(&label, pid, seen)) {
            eprint_line(&format!("{label}: {}", in_one_line(&error)));
            failed.push(label);
        }
    }
    if !failed.is_empty() {
        bail!("{} could not be observed: see above", failed.join(", "));
    }
    Ok(())
}

fn holding(label: &str, observation: &JobObservation) -> RankHolding {
    let allocated = observation.gpus().iter().filter_map(|gpu| gpu.allocated).sum();
    let mut owners = BTreeMap::new();
    for group in observation.growth.last().iter().filter(|group| group.device.is_cuda()) {
        // The number of members differs between ranks.
        let label = render::group_label(group);
        let label = label.split(" (").next().unwrap_or(&label).to_owned();
        *owners.entry(label).or_default() += group.size.bytes;
    }
    RankHolding { label: label.to_owned(), allocated, owners }
}

fn print(json: bool, pid: u32, observation: &JobObservation, rank: Option<&str>) -> Result<()> {
    let gpus = observation.gpus();
    let growth = observation.growth.owners();
    let facts = FindingFacts {
        gpus: &gpus,
        snapshot: observation.last.as_ref().ok().filter(|snapshot| snapshot.has_all_tensors()),
        groups: observation.growth.last(),
        growth: &growth,
        devices: &observation.devices,
    };
    let texts: Vec<FindingText> =
        findings(&facts).iter().map(|finding| render::finding_text(finding, pid)).collect();
    let summary = JobSummary {
        pid,
        process: &observation.process,
        gpus: &gpus,
        growth: &observation.growth,
        snapshot: observation.last.as_ref().map_err(String::as_str),
        stops: observation.stops,
        lines: &observation.lines,
        devices: &observation.devices,
        findings: &texts,
    };
    output::write(Path::new("-"), false, |out| {
        if json {
            return render::job_summary_json(out, &summary).map_err(into_io);
        }
        if let Some(rank) = rank {
            writeln!(out, "== {} ==", render::visible(rank))?;
        }
        render::job_summary_text(out, &summary, rank.is_some(), output::width())
            .map_err(into_io)?;
        if rank.is_some() { writeln!(out) } else { Ok(()) }
    })
}

pub(super) fn growth(args: &GrowthArgs) -> Result<()> {
    let options = ObserveOptions {
        duration: args.duration,
        every: GROWTH_INTERVAL
            .min(args.duration / SUMMARY_SNAPSHOTS)
            .max(args.duration / MAX_GROWTH_SNAPSHOTS),
        limits: args.cost.options(),
    };
    let stop = StopSignals::watch()?.stop;
    if args.subprocesses {
        return of_ranks(args.pid, options, &stop, &|_| Ok(()), &|label, pid, observation| {
            print_growth(args, pid, observation, Some(label))
        });
    }
    let readers = attached(args.pid, &stop)?;
    refuse_launcher(&readers)?;
    let observation = observe(readers, options, &stop)?;
    print_growth(args, args.pid, observation, None)
}

fn print_growth(
    args: &GrowthArgs,
    pid: u32,
    mut observation: JobObservation,
    rank: Option<&str>,
) -> Result<()> {
    if observation.growth.snapshots() == 0 {
        bail!("cannot tell what grows in process {pid}: {}", why_unknown(&observation));
    }
    let keepers = keepers(args.cost.options(), &mut observation);
    let JobObservation { growth, lines, stops, .. } = &observation;
    if args.json {
        return output::write(Path::new("-"), false, |out| {
            render::growth_json(out, pid, growth, &keepers).map_err(into_io)
        });
    }
    output::print(|out| {
        if let Some(rank) = rank {
            writeln!(out, "== {} ==", render::visible(rank))?;
        }
        render::growth_text(out, pid, growth, lines, &keepers, *stops).map_err(into_io)?;
        if rank.is_some() { writeln!(out) } else { Ok(()) }
    })
}

fn why_unknown(observation: &JobObservation) -> String {
    match &observation.last {
        Err(why) => why.clone(),
        Ok(snapshot) => match &snapshot.incomplete {
            Some(IncompleteSnapshot { limit, .. }) => {
                format!("no snapshot was complete: {limit}; {}", hints::limit(*limit))
            }
            None => "no snapshot was read in the time; --for 60s gives it more".to_owned(),
        },
    }
}

fn keepers(limits: SnapshotOptions, observation: &mut JobObservation) -> Vec<GrowthKeeper> {
    let grown = observation.growth.owners();
    let mut examples: Vec<String> =
        grown.iter().filter_map(|growth| growth.group.example.clone()).take(KEEPERS).collect();
    // A loss keeps itself and its graph.
    examples.dedup();
    let readers = &mut observation.readers;
    let mut keeper = |example: String| {
        let referrers = read_referrers(readers, limits, &example).ok()?.snapshot.referrers;
        (!referrers.is_empty()).then_some(GrowthKeeper { example, referrers })
    };
    examples.into_iter().filter_map(&mut keeper).collect()
}
