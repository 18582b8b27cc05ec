//! What exact stacks cost the job: events a second, times the time of the kernel's program and of
//! the trap into it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::probe::{ProbeError, ProgramTime, TRAP_ELSEWHERE, trap_time};

/// How long exact stacks are on trial, from the first event on.
const TRIAL: Duration = Duration::from_secs(1);
/// After this time of the trial a cost far above the limit ends it.
const EARLY: Duration = Duration::from_millis(150);
/// So many times the limit is far above it.
const FAR_ABOVE: f64 = 3.0;
/// After the trial, a cost is an average of this time: a job that loads its model is busy for a
/// moment only.
const LATER: Duration = Duration::from_secs(5);

/// PyTorch makes its CUDA context with calls of the driver, for some time, before it allocates:
/// that is no job at work. So long after the first call a job counts as one that has no more than
/// these.
const SETTING_UP: Duration = Duration::from_secs(3);

/// The time of a trap on this machine, once it has been measured.
static TRAP: OnceLock<Duration> = OnceLock::new();

/// Whether the kernel allows exact stacks, where there is nothing to probe yet. Measures the time
/// of a trap.
///
/// # Errors
/// It does not, and why.
pub fn check_exact_rights() -> Result<(), ProbeError> {
    if TRAP.get().is_none() {
        let measured = trap_time()?;
        // Another recording may have been faster.
        let _ = TRAP.set(measured);
    }
    Ok(())
}

/// Measures the time of a trap on a thread of its own, for it takes as long as placing probes.
fn measure_trap() {
    if TRAP.get().is_none() {
        std::thread::spawn(|| TRAP.get_or_init(|| trap_time().unwrap_or(TRAP_ELSEWHERE)));
    }
}

/// What exact stacks cost the job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExactCost {
    /// Events a second.
    pub events: f64,
    /// The part of the job's time, for one thread that makes all events; `None` where too few
    /// events came to tell.
    pub share: Option<f64>,
}

/// Why exact stacks were given up.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialFailure {
    /// They cost too much.
    TooCostly(ExactCost),
    /// The probes cannot be placed.
    Refused(String),
}

/// What there is to say of the cost while a recording goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CostNews {
    /// What the first second cost, in a recording that goes on.
    First(ExactCost),
    /// Later it cost more than the limit.
    Costlier(ExactCost),
}

/// Watches what an exact recording costs; clones share what was found.
#[derive(Debug, Clone)]
pub struct CostWatch {
    limit: f64,
    is_trial: bool,
    found: Arc<Mutex<FoundCost>>,
}

#[derive(Debug, Default)]
struct FoundCost {
    meter: CostMeter,
    failure: Option<TrialFailure>,
    /// What was found last in the first second, or told later.
    first: Option<ExactCost>,
    /// What was found last, and in how much time.
    last: Option<(ExactCost, Duration)>,
    is_judged: bool,
    has_programs: bool,
    news: Vec<CostNews>,
}

impl CostWatch {
    /// A watch over a recording on trial, which ends when it costs more than `limit`, a part of the
    /// job's time.
    pub fn trial(limit: f64) -> CostWatch {
        CostWatch { limit, is_trial: true, found: Arc::default() }
    }

    /// A watch over a recording that goes on whatever it costs.
    pub fn only_tell(limit: f64) -> CostWatch {
        CostWatch { is_trial: false, ..CostWatch::trial(limit) }
    }

    /// The most of the job's time that exact stacks may cost.
    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// Why exact stacks were given up, if they were.
    pub fn failure(&self) -> Option<TrialFailure> {
        self.found.lock().failure.clone()
    }

    /// What there is to say now, and was not said before.
    pub fn take_news(&self) -> Vec<CostNews> {
        std::mem::take(&mut self.found.lock().news)
    }

    /// Whether it is still open if exact stacks stay, though events came.
    pub fn is_open(&self) -> bool {
        let found = self.found.lock();
        self.is_trial && !found.is_judged && found.first.is_some()
    }

    /// What the recording cost that ended before its first second of events was over; `None` where
    /// that was told, or cannot be known because there are no programs in the kernel.
    pub fn unjudged(&self) -> Option<ExactCost> {
        let found = self.found.lock();
        let is_told = found.is_judged || found.failure.is_some();
        let is_known = self.is_trial || found.has_programs;
        let none = ExactCost { events: 0.0, share: None };
        (!is_told && is_known).then(|| found.first.unwrap_or(none))
    }

    /// Begins: what a trap costs is measured meanwhile.
    pub(super) fn begin(&self) {
        measure_trap();
    }

    /// Whether the recording ends where exact stacks turn out not to be possible.
    pub fn is_trial(&self) -> bool {
        self.is_trial
    }

    /// Probes cannot be placed, now that there is something to probe.
    pub(super) fn refuse(&self, why: String) {
        self.found.lock().failure = Some(TrialFailure::Refused(why));
    }

    /// Other probes take the place of those before, whose programs count from 0.
    pub(super) fn renew(&self, now: Duration) {
        self.found.lock().meter.renew(now);
    }

    /// The recording has ended: what came since the last figure is judged, too.
    pub fn end(&self) {
        let mut found = self.found.lock();
        let last = found.last.filter(|(_, elapsed)| found.is_judged && *elapsed >= TRIAL);
        if let Some((cost, _)) = last {
            self.judge_later(&mut found, cost);
        }
    }

    /// Takes how often the programs of the probes ran by `now`, in a job that is at work or is only
    /// setting up CUDA. Returns whether the recording has to end.
    pub(super) fn see(&self, now: Duration, programs: ProgramTime, is_at_work: bool) -> bool {
        let trap = TRAP.get().copied().unwrap_or(TRAP_ELSEWHERE);
        let mut found = self.found.lock();
        found.has_programs = true;
        if let Some((cost, elapsed)) = found.meter.see(now, programs, trap, is_at_work) {
            self.judge(&mut found, cost, elapsed);
        }
        found.failure.is_some()
    }

    fn judge(&self, found: &mut FoundCost, cost: ExactCost, elapsed: Duration) {
        found.last = Some((cost, elapsed));
        if found.is_judged {
            if elapsed >= LATER {
                found.meter.next_window();
                found.last = None;
                self.judge_later(found, cost);
            }
            return;
        }
        let share = cost.share.unwrap_or(0.0);
        found.first = Some(cost);
        let spent = share * elapsed.as_secs_f64();
        let is_clear = match elapsed >= TRIAL {
            true => share > self.limit,
            false => {
                spent > self.limit * TRIAL.as_secs_f64()
                    || elapsed >= EARLY && share > FAR_ABOVE * self.limit
            }
        };
        if self.is_trial && is_clear {
            found.failure = Some(TrialFailure::TooCostly(cost));
        } else if elapsed >= TRIAL {
            found.is_judged = true;
            found.meter.next_window();
            found.news.push(CostNews::First(cost));
        }
    }
}

impl CostWatch {
    /// A cost above the limit is told, unless one was told before.
    fn judge_later(&self, found: &mut FoundCost, cost: ExactCost) {
        let was_told = found.first.is_some_and(|first| first.share > Some(self.limit));
        if cost.share > Some(self.limit) && !was_told {
            found.first = Some(cost);
            found.news.push(CostNews::Costlier(cost));
        }
    }
}

/// Counts events and their time in a window that begins with the first event.
#[derive(Debug, Default)]
struct CostMeter {
    /// When the programs were last seen, and what they had done by then.
    last: (Duration, ProgramTime),
    /// When the window began; `None` before the first event.
    began: Option<Duration>,
    /// When the programs had run for the first time.
    set_up: Option<Duration>,
    /// What the programs did in it.
    within: ProgramTime,
}

impl CostMeter {
    /// The cost in the window until `now`, and how long that is; `None` before the first event.
    fn see(
        &mut self,
        now: Duration,
        programs: ProgramTime,
        trap: Duration,
        is_at_work: bool,
    ) -> Option<(ExactCost, Duration)> {
        let (seen, before) = std::mem::replace(&mut self.last, (now, programs));
        if programs.runs > 0 {
            let set_up = *self.set_up.get_or_insert(seen);
            if self.began.is_none() && !is_at_work && now.saturating_sub(set_up) < SETTING_UP {
                return None;
            }
        }
        self.within.runs += programs.runs.saturating_sub(before.runs);
        self.within.timed += programs.timed.saturating_sub(before.timed);
        self.within.nanos += programs.nanos.saturating_sub(before.nanos);
        if self.began.is_none() && self.within.runs > 0 {
            self.began = Some(seen);
        }
        let elapsed = now.saturating_sub(self.began?);
        let events = self.within.runs as f64 / elapsed.as_secs_f64().max(1e-3);
        let share =
            self.within.of_one_run().map(|nanos| events * (nanos * 1e-9 + trap.as_secs_f64()));
        Some((ExactCost { events, share }, elapsed))
    }

    /// Programs count from 0 again.
    fn renew(&mut self, now: Duration) {
        self.last = (now, ProgramTime::default());
    }

    fn next_window(&mut self) {
        self.began = Some(self.last.0);
        self.within = ProgramTime::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAP: Duration = Duration::from_nanos(600);

    /// Sees a job of `rate` events a second, each of 1 µs with the trap, every 5 ms until `until`;
    /// when the watch ended it.
    fn run(watch: &CostWatch, rate: u64, from: u64, until: u64) -> Option<u64> {
        let of = |ms: u64| {
            let runs = rate * ms / 1000;
            ProgramTime { runs, timed: runs / 8, nanos: runs / 8 * 400 }
        };
        let mut found = None;
        for ms in (from..=until).step_by(5) {
            let mut seen = watch.found.lock();
            if let Some((cost, elapsed)) =
                seen.meter.see(Duration::from_millis(ms), of(ms - from), TRAP, true)
            {
                watch.judge(&mut seen, cost, elapsed);
            }
            if seen.failure.is_some() && found.is_none() {
                found = Some(ms);
                break;
            }
        }
        found
    }

    #[test]
    fn a_cheap_job_stays_exact_and_its_figure_is_told_after_a_second() {
        let watch = CostWatch::trial(0.02);
        assert_eq!(run(&watch, 3_000, 0, 1_100), None);
        let [CostNews::First(cost)] = watch.take_news()[..] else { panic!("no figure") };
        assert!((cost.events / 3_000.0 - 1.0).abs() < 0.02, "{cost:?}");
        assert!((cost.share.unwrap() / 0.003 - 1.0).abs() < 0.02, "{cost:?}");
        assert!(watch.failure().is_none() && watch.unjudged().is_none());
    }

    #[test]
    fn a_costly_job_is_given_up_as_soon_as_that_is_clear() {
        // 10 % is far above 2 %; 3 % is clear once the whole second's part is spent.
        let watch = CostWatch::trial(0.02);
        assert_eq!(run(&watch, 100_000, 0, 2_000), Some(150));
        let Some(TrialFailure::TooCostly(cost)) = watch.failure() else { panic!() };
        assert!((cost.share.unwrap() / 0.1 - 1.0).abs() < 0.05, "{cost:?}");
        let watch = CostWatch::trial(0.02);
        let ended = run(&watch, 30_000, 0, 2_000).unwrap();
        assert!((650..700).contains(&ended), "{ended}");
        assert_eq!(run(&CostWatch::trial(0.05), 30_000, 0, 2_000), None, "that limit allows it");
    }

    #[test]
    fn the_trial_begins_with_the_first_event() {
        let watch = CostWatch::trial(0.02);
        assert!(!watch.see(Duration::from_secs(60), ProgramTime::default(), false));
        assert_eq!(watch.unjudged(), Some(ExactCost { events: 0.0, share: None }));
        // Averaged over the minute before, it would cost nothing.
        let ended = run(&watch, 100_000, 60_000, 62_000).unwrap();
        assert!((60_150..60_170).contains(&ended), "{ended}");
    }

    #[test]
    fn calls_that_set_up_cuda_are_no_part_of_the_trial() {
        let watch = CostWatch::trial(0.02);
        let runs = |runs| ProgramTime { runs, timed: runs, nanos: 400 * runs };
        // A second and a half with 200 calls of the driver, then the job begins to work.
        for ms in (0..1_500).step_by(5) {
            assert!(!watch.see(Duration::from_millis(ms), runs(200 * ms / 1_500), false));
        }
        assert!(watch.unjudged().is_some(), "nothing is judged by that");
        let ended = (1_500..3_000)
            .step_by(5)
            .find(|ms| watch.see(Duration::from_millis(*ms), runs(200 + 100 * (ms - 1_495)), true));
        assert!(ended.is_some_and(|ms| ms < 1_700), "{ended:?}");
        // A job that only ever calls the driver counts all the same.
        let watch = CostWatch::trial(0.02);
        let ended = (0..9_000)
            .step_by(5)
            .find(|ms| watch.see(Duration::from_millis(*ms), runs(100 * ms), false));
        assert!(ended.is_some_and(|ms| (3_000..3_300).contains(&ms)), "{ended:?}");
    }

    #[test]
    fn what_came_last_is_judged_at_the_end() {
        let watch = CostWatch::trial(0.02);
        run(&watch, 1_000, 0, 1_000);
        watch.renew(Duration::from_millis(1_000));
        run(&watch, 50_000, 1_005, 3_500);
        assert!(matches!(watch.take_news()[..], [CostNews::First(_)]));
        watch.end();
        assert!(matches!(watch.take_news()[..], [CostNews::Costlier(_)]));
    }

    #[test]
    fn few_events_of_unknown_time_are_no_cost_of_0() {
        let watch = CostWatch::trial(0.02);
        watch.see(Duration::from_millis(5), ProgramTime { runs: 3, timed: 0, nanos: 0 }, true);
        assert_eq!(watch.unjudged().unwrap().share, None);
    }

    #[test]
    fn without_programs_in_the_kernel_there_is_no_cost_to_tell() {
        assert_eq!(CostWatch::only_tell(0.02).unjudged(), None);
    }

    #[test]
    fn what_is_asked_for_goes_on_and_what_gets_costlier_is_told_once() {
        let watch = CostWatch::only_tell(0.02);
        assert_eq!(run(&watch, 100_000, 0, 12_000), None);
        let news = watch.take_news();
        assert!(matches!(news[..], [CostNews::First(_)]), "its first figure said so: {news:?}");
        let watch = CostWatch::trial(0.02);
        run(&watch, 1_000, 0, 1_100);
        watch.renew(Duration::from_millis(1_100));
        run(&watch, 50_000, 1_105, 20_000);
        let news = watch.take_news();
        let [CostNews::First(_), CostNews::Costlier(cost)] = news[..] else { panic!("{news:?}") };
        assert!(cost.share.unwrap() > 0.02 && watch.failure().is_none());
    }
}
