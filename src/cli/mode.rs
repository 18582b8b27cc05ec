//! Chooses a recording's mode.

use std::path::Path;

use anyhow::{Result, anyhow};

use crate::sampler::{
    CostNews, CostWatch, ExactCost, FollowBudget, IdleMeter, MANY_PROCESSORS, TargetReaders,
    TrialFailure, processors,
};

use super::args::{ModeArg, RecordArgs};
use super::following::FollowChoice;

/// Maximum cost of exact stacks, as a part of the job's time; the second holds below
/// [`MANY_PROCESSORS`].
const LIMIT: f64 = 0.02;
const LIMIT_WITH_FEW: f64 = 0.05;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Exact,
    Follow,
    Sample,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExactOutlook {
    Costs(f64),
    /// Impossible or unwanted, with the reason.
    No(String),
}

#[derive(Debug, Clone)]
pub(super) struct ModeFacts {
    pub(super) exact: ExactOutlook,
    pub(super) processors: usize,
    /// Idle processors on average, if known.
    pub(super) idle: Option<f64>,
    pub(super) budget: f64,
    pub(super) unfollowable: Option<String>,
}

pub(super) fn limit(processors: usize) -> f64 {
    if processors < MANY_PROCESSORS { LIMIT_WITH_FEW } else { LIMIT }
}

/// The best allowed mode, and why none better.
pub(super) fn decide(facts: &ModeFacts) -> (Mode, String) {
    let limit = limit(facts.processors);
    let why = match &facts.exact {
        ExactOutlook::Costs(share) if *share <= limit => return (Mode::Exact, String::new()),
        ExactOutlook::Costs(share) => {
            format!("exact stacks would cost {} (limit {})", percent(*share), percent(limit))
        }
        ExactOutlook::No(why) => why.clone(),
    };
    if let Some(unfollowable) = &facts.unfollowable {
        return (Mode::Sample, format!("{why}, and it cannot be followed: {unfollowable}"));
    }
    let is_free =
        facts.processors >= MANY_PROCESSORS || facts.idle.is_some_and(|idle| idle >= facts.budget);
    match is_free {
        true => (Mode::Follow, why),
        false => (Mode::Sample, format!("{why}, and no processor is free to follow it")),
    }
}

#[derive(Debug, Clone)]
pub(super) struct ModeChoice {
    pub(super) asked: ModeArg,
    follow: FollowChoice,
    sample: FollowChoice,
    not_exact: Option<&'static str>,
    idle: IdleMeter,
}

impl ModeChoice {
    pub(super) fn for_record(args: &RecordArgs) -> Result<ModeChoice> {
        let asked = args.mode().map_err(|why| anyhow!(why))?;
        let filters_threads = args.stacks.gil || args.stacks.idle;
        Ok(ModeChoice {
            asked,
            follow: FollowChoice::for_record(args, asked != ModeArg::Sample)?,
            sample: FollowChoice::for_record(args, false)?,
            not_exact: filters_threads.then_some(
                "exact stacks do not go with --gil and --idle, which choose among threads",
            ),
            idle: IdleMeter::start(),
        })
    }

    pub(super) fn for_summary() -> ModeChoice {
        let budget = FollowBudget::for_machine(processors());
        ModeChoice {
            asked: ModeArg::Auto,
            follow: FollowChoice::automatic(Some(budget)),
            sample: FollowChoice::automatic(None),
            not_exact: None,
            idle: IdleMeter::start(),
        }
    }

    pub(super) fn cost_watch(&self) -> CostWatch {
        match self.asked {
            ModeArg::Auto => CostWatch::trial(limit(processors())),
            _ => CostWatch::only_tell(limit(processors())),
        }
    }

    /// The choice for exact stacks and samples.
    pub(super) fn unfollowed(&self) -> &FollowChoice {
        &self.sample
    }

    pub(super) fn followed(&self) -> &FollowChoice {
        &self.follow
    }

    pub(super) fn why_not_exact(&self, path: Option<&Path>) -> Option<&'static str> {
        let is_stream = path.is_some_and(|path| path.exists() && !path.is_file());
        self.not_exact.or(is_stream.then_some(
            "exact stacks are tried first, and what is written into a pipe cannot be taken back",
        ))
    }

    pub(super) fn without_exact(
        &self,
        exact: ExactOutlook,
        readers: &TargetReaders,
    ) -> (FollowChoice, String) {
        let processors = processors();
        let budget = self.follow.budget.as_ref().map(FollowBudget::of_one_process);
        let (mode, why) = decide(&ModeFacts {
            exact,
            processors,
            idle: if processors < MANY_PROCESSORS { self.idle.idle() } else { None },
            budget: budget.unwrap_or_default(),
            unfollowable: readers
                .follow_refusal()
                .or_else(|| budget.is_none().then(|| "--gil asks for samples".to_owned())),
        });
        match mode {
            Mode::Follow => (self.follow.clone(), format!("following the allocator: {why}")),
            Mode::Exact | Mode::Sample => {
                let rate = self.sample.rate;
                (self.sample.clone(), format!("sampling {rate} times a second: {why}"))
            }
        }
    }
}

impl From<&TrialFailure> for ExactOutlook {
    fn from(failure: &TrialFailure) -> ExactOutlook {
        match failure {
            TrialFailure::TooCostly(ExactCost { share: Some(share), .. }) => {
                ExactOutlook::Costs(*share)
            }
            TrialFailure::TooCostly(_) => ExactOutlook::No("exact stacks cost too much".to_owned()),
            TrialFailure::Refused(why) => ExactOutlook::No(no_exact(why)),
        }
    }
}

pub(super) fn no_exact(why: &str) -> String {
    format!("no exact stacks ({why})")
}

pub(super) fn cost_line(news: CostNews, limit: f64) -> String {
    let (CostNews::First(cost) | CostNews::Costlier(cost)) = news;
    let now = if matches!(news, CostNews::Costlier(_)) { " now" } else { "" };
    let events = format!("{} events/s", crate::render::count(cost.events.round() as u64));
    match cost.share {
        None if cost.events == 0.0 => {
            "exact stacks: no event was seen, so what they cost is not known".to_owned()
        }
        None => format!("exact stacks: {events}, too few to tell what they cost"),
        Some(share) if share > limit => format!(
            "exact stacks: {events} cost the job {}{now}, more than the limit of {}; --mode follow costs less",
            percent(share),
            percent(limit)
        ),
        Some(share) => format!("exact stacks: {events} cost the job {}{now}", percent(share)),
    }
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        less if less < 0.05 => "less than 0.1 %".to_owned(),
        some if some < 9.95 && (some - some.round()).abs() >= 0.05 => format!("{some:.1} %"),
        whole => format!("{whole:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(exact: ExactOutlook, processors: usize, idle: Option<f64>) -> ModeFacts {
        let budget = FollowBudget::for_machine(processors).of_one_process();
        ModeFacts { exact, processors, idle, budget, unfollowable: None }
    }

    #[test]
    fn rights_cost_processors_and_idle_time_decide() {
        use ExactOutlook::Costs;
        let refused = || ExactOutlook::No("no exact stacks (no root)".to_owned());
        let table = [
            (Costs(0.0), 16, None, Mode::Exact),
            (Costs(0.001), 2, Some(0.0), Mode::Exact),
            (Costs(0.04), 2, Some(0.0), Mode::Exact),
            (Costs(0.04), 4, None, Mode::Follow),
            (Costs(0.02), 16, None, Mode::Exact),
            (Costs(0.06), 2, Some(1.0), Mode::Follow),
            (Costs(0.06), 2, Some(0.05), Mode::Sample),
            (Costs(0.06), 2, None, Mode::Sample),
            (refused(), 2, Some(0.1), Mode::Follow),
            (refused(), 2, Some(0.09), Mode::Sample),
            (refused(), 4, Some(0.0), Mode::Follow),
            (refused(), 1, None, Mode::Sample),
        ];
        for (exact, processors, idle, mode) in table {
            let facts = facts(exact, processors, idle);
            assert_eq!(decide(&facts).0, mode, "{facts:?}");
        }
    }

    #[test]
    fn jobs_without_readable_counters_are_sampled() {
        let refused = ExactOutlook::No("no exact stacks (no root)".to_owned());
        let unfollowable = Some("it runs no Python".to_owned());
        let (mode, why) = decide(&ModeFacts { unfollowable, ..facts(refused, 16, None) });
        assert_eq!(mode, Mode::Sample);
        assert_eq!(why, "no exact stacks (no root), and it cannot be followed: it runs no Python");
    }

    #[test]
    fn the_reason_has_the_figure_and_the_limit() {
        let (_, why) = decide(&facts(ExactOutlook::Costs(0.07), 16, None));
        assert_eq!(why, "exact stacks would cost 7 % (limit 2 %)");
        let (_, why) = decide(&facts(ExactOutlook::Costs(0.052), 2, Some(0.0)));
        assert_eq!(
            why,
            "exact stacks would cost 5.2 % (limit 5 %), and no processor is free to follow it"
        );
    }

    #[test]
    fn a_cost_above_the_limit_names_the_remedy() {
        let line =
            |events, share, limit| cost_line(CostNews::First(ExactCost { events, share }), limit);
        assert_eq!(line(310.2, Some(0.001), 0.02), "exact stacks: 310 events/s cost the job 0.1 %");
        let costly = line(61_000.0, Some(0.073), 0.02);
        assert!(costly.contains("7.3 %, more than the limit of 2 %; --mode follow"), "{costly}");
        assert!(line(0.0, None, 0.02).contains("not known"), "unknown is not 0 %");
    }
}
