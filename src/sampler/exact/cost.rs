//! The cost of exact stacks: events a second, times the time of one event's kernel program and
//! trap.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::probe::{PlacementError, ProgramTime, TRAP_ELSEWHERE, trap_time};

const TRIAL: Duration = Duration::from_secs(1);
/// A cost of [`FAR_ABOVE`] times the limit ends the trial after this time.
const EARLY: Duration = Duration::from_millis(150);
const FAR_ABOVE: f64 = 3.0;
/// Later costs are averages over this time: a job that loads its model is busy only for a moment.
const LATER: Duration = Duration::from_secs(5);

/// PyTorch first calls the driver to create its CUDA context. After this time, driver calls alone
/// count as work.
const SETTING_UP: Duration = Duration::from_secs(3);

static TRAP: OnceLock<Duration> = OnceLock::new();

/// Checks whether the kernel allows exact stacks.
pub fn check_exact_rights() -> Result<(), PlacementError> {
    if TRAP.get().is_none() {
        let measured = trap_time()?;
        let _ = TRAP.set(measured);
    }
    Ok(())
}

/// Runs on a thread: measuring takes as long as placing probes.
fn measure_trap() {
    if TRAP.get().is_none() {
        std::thread::spawn(|| TRAP.get_or_init(|| trap_time().unwrap_or(TRAP_ELSEWHERE)));
    }
}

/// The cost of exact stacks for the job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExactCost {
    /// Events a second.
    pub events: f64,
    /// The share of the job's time, if one thread causes all events; `None` after few.
    pub share: Option<f64>,
}

/// Why exact stacks ended.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialFailure {
    /// They cost too much.
    TooCostly(ExactCost),
    /// The probes cannot be placed.
    Refused(String),
}

/// News about the cost of a recording.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CostNews {
    /// The cost of the first second.
    First(ExactCost),
    /// The cost rose above the limit later.
    Costlier(ExactCost),
}

/// Watches the cost. Clones share the result.
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
    first: Option<ExactCost>,
    last: Option<(ExactCost, Duration)>,
    is_judged: bool,
    has_programs: bool,
    news: Vec<CostNews>,
}

impl CostWatch {
    /// Ends the recording above `limit`, a share of the job's time.
    pub fn trial(limit: f64) -> CostWatch {
        CostWatch { limit, is_trial: true, found: Arc::default() }
    }

    /// A watch that only reports.
    pub fn only_tell(limit: f64) -> CostWatch {
        CostWatch { is_trial: false, ..CostWatch::trial(limit) }
    }

    /// The allowed share of the job's time.
    pub fn limit(&self) -> f64 {
        self.limit
    }

    /// Why exact stacks ended, if they did.
    pub fn failure(&self) -> Option<TrialFailure> {
        self.found.lock().failure.clone()
    }

    /// The news since the last call.
    pub fn take_news(&self) -> Vec<CostNews> {
        std::mem::take(&mut self.found.lock().news)
    }

    /// Whether events came but the trial is undecided.
    pub fn is_open(&self) -> bool {
        let found = self.found.lock();
        self.is_trial && !found.is_judged && found.first.is_some()
    }

    /// The unreported cost of a recording that ended within its first second.
    pub fn unjudged(&self) -> Option<ExactCost> {
        let found = self.found.lock();
        let is_reported = found.is_judged || found.failure.is_some();
        let is_known = self.is_trial || found.has_programs;
        let none = ExactCost { events: 0.0, share: None };
        (!is_reported && is_known).then(|| found.first.unwrap_or(none))
    }

    pub(super) fn begin(&self) {
        measure_trap();
    }

    /// Whether it ends without exact stacks.
    pub fn is_trial(&self) -> bool {
        self.is_trial
    }

    pub(super) fn refuse(&self, why: String) {
        self.found.lock().failure = Some(TrialFailure::Refused(why));
    }

    /// The programs of new probes count from 0.
    pub(super) fn renew(&self, now: Duration) {
        self.found.lock().meter.renew(now);
    }

    /// Judges the last events of a recording.
    pub fn end(&self) {
        let mut found = self.found.lock();
        let last = found.last.filter(|(_, elapsed)| found.is_judged && *elapsed >= TRIAL);
        if let Some((cost, _)) = last {
            self.judge_later(&mut found, cost);
        }
    }

    /// `is_at_work` is false while the job only sets up CUDA. Returns whether to end the recording.
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

    fn judge_later(&self, found: &mut FoundCost, cost: ExactCost) {
        let was_reported = found.first.is_some_and(|first| first.share > Some(self.limit));
        if cost.share > Some(self.limit) && !was_reported {
            found.first = Some(cost);
            found.news.push(CostNews::Costlier(cost));
        }
    }
}

#[derive(Debug, Default)]
struct CostMeter {
    last: (Duration, ProgramTime),
    began: Option<Duration>,
    set_up: Option<Duration>,
    within: ProgramTime,
}

impl CostMeter {
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
    fn a_cheap_job_stays_exact_and_reports_its_cost() {
        let watch = CostWatch::trial(0.02);
        assert_eq!(run(&watch, 3_000, 0, 1_100), None);
        let [CostNews::First(cost)] = watch.take_news()[..] else { panic!("no figure") };
        assert!((cost.events / 3_000.0 - 1.0).abs() < 0.02, "{cost:?}");
        assert!((cost.share.unwrap() / 0.003 - 1.0).abs() < 0.02, "{cost:?}");
        assert!(watch.failure().is_none() && watch.unjudged().is_none());
    }

    #[test]
    fn a_costly_trial_ends_early() {
        // 10 % is far above 2 %; 3 % ends once the second's budget is spent.
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
        let ended = run(&watch, 100_000, 60_000, 62_000).unwrap();
        assert!((60_150..60_170).contains(&ended), "{ended}");
    }

    #[test]
    fn cuda_setup_calls_are_not_part_of_the_trial() {
        let watch = CostWatch::trial(0.02);
        let runs = |runs| ProgramTime { runs, timed: runs, nanos: 400 * runs };
        for ms in (0..1_500).step_by(5) {
            assert!(!watch.see(Duration::from_millis(ms), runs(200 * ms / 1_500), false));
        }
        assert!(watch.unjudged().is_some(), "nothing is judged by that");
        let ended = (1_500..3_000)
            .step_by(5)
            .find(|ms| watch.see(Duration::from_millis(*ms), runs(200 + 100 * (ms - 1_495)), true));
        assert!(ended.is_some_and(|ms| ms < 1_700), "{ended:?}");
        let watch = CostWatch::trial(0.02);
        let ended = (0..9_000)
            .step_by(5)
            .find(|ms| watch.see(Duration::from_millis(*ms), runs(100 * ms), false));
        assert!(ended.is_some_and(|ms| (3_000..3_300).contains(&ms)), "{ended:?}");
    }

    #[test]
    fn last_events_are_judged_at_the_end() {
        let watch = CostWatch::trial(0.02);
        run(&watch, 1_000, 0, 1_000);
        watch.renew(Duration::from_millis(1_000));
        run(&watch, 50_000, 1_005, 3_500);
        assert!(matches!(watch.take_news()[..], [CostNews::First(_)]));
        watch.end();
        assert!(matches!(watch.take_news()[..], [CostNews::Costlier(_)]));
    }

    #[test]
    fn too_few_events_have_unknown_cost() {
        let watch = CostWatch::trial(0.02);
        watch.see(Duration::from_millis(5), ProgramTime { runs: 3, timed: 0, nanos: 0 }, true);
        assert_eq!(watch.unjudged().unwrap().share, None);
    }

    #[test]
    fn without_kernel_programs_the_cost_is_unknown() {
        assert_eq!(CostWatch::only_tell(0.02).unjudged(), None);
    }

    #[test]
    fn a_requested_recording_continues_and_reports_higher_cost_once() {
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
