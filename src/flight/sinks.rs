//! Where the records of a recording go: a trace, what is kept of one, a profile, tables; and what they may set off.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::analysis::{OomReportBuilder, Profile, TriggerWatch};
use crate::model::{
    EndReason, Nanos, Record, RecordSink, RecordingEnd, SinkError, SinkResult, TriggerFired,
};
use crate::trace::TraceWriter;

use super::print::OomReportPrinter;
use super::recorder::FlightRecorder;
use super::report::oom_report_path;

/// While a recording goes on, a condition that comes true so shortly after another one is only counted.
const MIN_TRIGGER_INTERVAL: u64 = 2_000_000_000;
/// What an out-of-memory error said is waited for no longer than this.
const ERROR_TEXT_TIMEOUT: u64 = 1_000_000_000;

/// What is done when a condition has come true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTrigger {
    /// The recording ends.
    End,
    /// What is kept is written, and the recording goes on.
    Continue,
}

/// What happens while a recording goes on, for whoever runs it to tell.
#[derive(Debug)]
#[non_exhaustive]
pub enum FlightEvent {
    /// Something is wrong with the segments that are kept.
    Warning(String),
    /// A condition came true.
    Triggered(TriggerFired),
    /// A condition came true, what was kept is written, and the recording goes on.
    RecordingWritten {
        /// The condition.
        triggered: TriggerFired,
        /// The trace.
        recording: PathBuf,
        /// The report on it.
        report: PathBuf,
    },
    /// So many times a condition came true too shortly after another one for a recording of its own.
    TriggersIgnored(u64),
}

/// Whoever runs a recording.
pub trait RecordingHost: Send {
    /// Tells the user.
    fn tell(&mut self, event: FlightEvent);

    /// Writes the report on a recording to `path`.
    ///
    /// # Errors
    /// It cannot be written.
    fn write_oom_report(&mut self, reports: &mut OomReportBuilder, path: &Path) -> SinkResult;
}

/// What becomes of the records themselves.
pub enum RecordOutput {
    /// Nothing: only what they tell is wanted.
    Nothing,
    /// All are written.
    Trace(Box<TraceWriter<File>>),
    /// The last ones are kept.
    Flight(Box<FlightRecorder>),
}

/// What is known from the records.
pub enum Aggregation {
    /// Nothing, for it is read from what was kept.
    Later,
    /// What reports are made of.
    Profile(Box<Profile>),
    /// That, and the moment at which a condition came true.
    OomReport(Box<OomReportBuilder>),
}

impl Aggregation {
    /// The profile of the recording so far.
    pub fn profile(&self) -> Option<&Profile> {
        match self {
            Aggregation::Later => None,
            Aggregation::Profile(profile) => Some(profile),
            Aggregation::OomReport(reports) => Some(reports.profile()),
        }
    }
}

/// One of several recordings of a job, which a condition of any of them ends.
#[derive(Clone, Default)]
pub struct RankContext {
    /// What messages of this recording begin with: `rank 1 (process 1234)`. `None` where it is the only one.
    pub label: Option<String>,
    /// The condition that came true first, and the label of its recording.
    pub ended_by: Arc<OnceLock<(String, String)>>,
}

impl RankContext {
    /// Another recording of the same job.
    pub fn with_label(&self, label: String) -> RankContext {
        RankContext { label: Some(label), ended_by: Arc::clone(&self.ended_by) }
    }

    /// The condition of another recording that ended this one.
    fn ended_by_other(&self) -> Option<EndReason> {
        let (condition, process) = self.ended_by.get()?;
        let is_own = self.label.as_ref() == Some(process);
        (!is_own).then(|| EndReason::OtherProcess {
            condition: condition.clone(),
            process: process.clone(),
        })
    }
}

/// What is waited for, and what is done then.
pub struct TriggerState {
    watch: TriggerWatch,
    then: OnTrigger,
    /// Recordings after which it ends in any case.
    max_reports: u32,
    /// Ends the recording when set.
    stop: Arc<AtomicBool>,
    fired: Option<String>,
    last: Option<Nanos>,
    uncounted: u64,
    /// Came true, and waits for the words of its error.
    held: Option<TriggerFired>,
    /// When the words of an error came last.
    message_time: Option<Nanos>,
}

impl TriggerState {
    /// Waits for what `watch` does.
    pub fn new(
        watch: TriggerWatch,
        then: OnTrigger,
        most: u32,
        stop: Arc<AtomicBool>,
    ) -> TriggerState {
        TriggerState {
            watch,
            then,
            max_reports: most,
            stop,
            fired: None,
            last: None,
            uncounted: 0,
            held: None,
            message_time: None,
        }
    }
}

/// All of it.
pub struct SinkChain {
    /// What becomes of the records.
    pub output: RecordOutput,
    /// What is known from them.
    pub reading: Aggregation,
    /// What is waited for.
    pub waiting: TriggerState,
    /// Tables while the recording goes on.
    pub printer: Option<OomReportPrinter>,
    /// Which recording of a job this is.
    pub rank: RankContext,
    /// Who runs the recording.
    pub host: Box<dyn RecordingHost>,
}

impl SinkChain {
    /// The last table, and what was left to say.
    ///
    /// # Errors
    /// The table cannot be printed.
    pub fn finish(&mut self) -> SinkResult {
        if self.waiting.uncounted > 0 {
            self.host.tell(FlightEvent::TriggersIgnored(self.waiting.uncounted));
        }
        match &mut self.printer {
            Some(printer) => printer.finish(self.reading.profile()),
            None => Ok(()),
        }
    }

    fn pass(&mut self, record: &Record) -> SinkResult {
        match &mut self.output {
            RecordOutput::Nothing => {}
            RecordOutput::Trace(writer) => writer.record(record)?,
            RecordOutput::Flight(flight) => flight.record(record)?,
        }
        match &mut self.reading {
            Aggregation::Later => Ok(()),
            Aggregation::Profile(profile) => profile.record(record),
            Aggregation::OomReport(reports) => reports.record(record),
        }
    }

    fn print(&mut self, record: &Record) -> SinkResult {
        let Some(printer) = &mut self.printer else { return Ok(()) };
        match printer.on_record(record, self.reading.profile()) {
            // Nobody reads the tables any more; the recording goes on.
            Err(error) if error.is_broken_pipe() => {
                self.printer = None;
                Ok(())
            }
            other => other,
        }
    }

    fn fire(&mut self, triggered: TriggerFired) -> SinkResult {
        let waiting = &mut self.waiting;
        if waiting.fired.is_some()
            || waiting
                .last
                .is_some_and(|last| triggered.time.0.saturating_sub(last.0) < MIN_TRIGGER_INTERVAL)
        {
            waiting.uncounted += 1;
            return Ok(());
        }
        waiting.last = Some(triggered.time);
        // The moment is this one; only what is made of it waits.
        self.pass(&Record::TriggerFired(triggered.clone()))?;
        let told = |words: Nanos| triggered.time.0.saturating_sub(words.0) < ERROR_TEXT_TIMEOUT;
        if triggered.condition == "oom" && !self.waiting.message_time.is_some_and(told) {
            self.waiting.held = Some(triggered);
            return Ok(());
        }
        self.act(triggered)
    }

    /// Acts on what was held back, when the words of its error have come with `record` or will not.
    fn release(&mut self, record: &Record) -> SinkResult {
        if let Record::OomException(oom_exception) = record {
            self.waiting.message_time = Some(oom_exception.time);
        }
        let is_due = |held: &mut TriggerFired| {
            let late = record.time().is_some_and(|now| now.0 >= held.time.0 + ERROR_TEXT_TIMEOUT);
            late || matches!(record, Record::OomException(_))
        };
        self.waiting.held.take_if(is_due).map_or(Ok(()), |triggered| self.act(triggered))
    }

    /// Writes what is kept, or ends the recording.
    fn act(&mut self, triggered: TriggerFired) -> SinkResult {
        let going_on = self.waiting.then == OnTrigger::Continue;
        if let (true, RecordOutput::Flight(flight)) = (going_on, &mut self.output) {
            let last = flight.written() + 1 >= self.waiting.max_reports;
            if !last {
                let host = &mut self.host;
                let mut warn = |warning| host.tell(FlightEvent::Warning(warning));
                let mut reported =
                    flight.write(Some(&triggered), &mut warn).map_err(SinkError::failed)?;
                let (recording, report) = (reported.path.clone(), oom_report_path(&reported.path));
                host.write_oom_report(&mut reported.reports, &report)?;
                host.tell(FlightEvent::RecordingWritten { triggered, recording, report });
                return Ok(());
            }
        }
        self.host.tell(FlightEvent::Triggered(triggered.clone()));
        if let Some(label) = &self.rank.label {
            // Before the others are told to end, so that they find out why.
            let _ = self.rank.ended_by.set((triggered.condition.clone(), label.clone()));
        }
        self.waiting.fired = Some(triggered.condition);
        self.waiting.stop.store(true, Ordering::Release);
        Ok(())
    }
}

impl RecordSink for SinkChain {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.print(record)?;
        let Record::End(end) = record else {
            self.pass(record)?;
            self.release(record)?;
            let fired = self.waiting.watch.on_record(record);
            return fired.map_or(Ok(()), |triggered| self.fire(triggered));
        };
        if let Some(held) = self.waiting.held.take() {
            self.waiting.fired = Some(held.condition.clone());
            self.host.tell(FlightEvent::Triggered(held));
        }
        // What the end itself makes true stands before it.
        if let Some(triggered) = self.waiting.watch.on_record(record)
            && self.waiting.fired.is_none()
        {
            self.host.tell(FlightEvent::Triggered(triggered.clone()));
            self.pass(&Record::TriggerFired(triggered))?;
        }
        let reason = match (&self.waiting.fired, &end.reason) {
            (Some(what), EndReason::Interrupted) => EndReason::Condition(what.clone()),
            (None, EndReason::Interrupted) => {
                self.rank.ended_by_other().unwrap_or(EndReason::Interrupted)
            }
            (_, reason) => reason.clone(),
        };
        self.pass(&Record::End(RecordingEnd { reason, ..end.clone() }))
    }

    fn sync(&mut self) -> SinkResult {
        match &mut self.output {
            RecordOutput::Nothing => Ok(()),
            RecordOutput::Trace(writer) => writer.sync(),
            RecordOutput::Flight(flight) => flight.sync(),
        }
    }
}
