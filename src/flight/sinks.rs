//! The sinks of a recording: a trace, its last part, a profile, tables; and conditions on the
//! records.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::analysis::{OomReportBuilder, Profile, TriggerWatch};
use crate::model::{
    EndReason, Nanos, Record, RecordSink, RecordingEnd, SinkError, SinkResult, TriggerFired,
};
use crate::trace::TraceWriter;

use super::print::TablePrinter;
use super::recorder::FlightRecorder;
use super::report::oom_report_path;

/// If a condition is met sooner than this after another one, it is only counted, while the
/// recording goes on.
const MIN_TRIGGER_INTERVAL: u64 = 2_000_000_000;
/// Longest wait for the text of an out-of-memory error.
const ERROR_TEXT_TIMEOUT: u64 = 1_000_000_000;

/// What to do when a condition is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTrigger {
    /// End the recording.
    End,
    /// Write the kept part and go on.
    Continue,
}

/// Events of a recording for its host.
#[derive(Debug)]
#[non_exhaustive]
pub enum FlightEvent {
    /// A problem with the kept segments.
    Warning(String),
    /// A condition was met.
    Triggered(TriggerFired),
    /// A condition was met, the kept part is written, and the recording goes on.
    RecordingWritten {
        /// The condition.
        triggered: TriggerFired,
        /// The trace.
        recording: PathBuf,
        /// The report on it.
        report: PathBuf,
    },
    /// Conditions met too soon after another one for a recording of their own.
    TriggersIgnored(u64),
}

/// Runs a recording.
pub trait RecordingHost: Send {
    /// Informs the user.
    fn tell(&mut self, event: FlightEvent);

    /// Writes the report on a recording to `path`.
    ///
    /// # Errors
    /// It cannot be written.
    fn write_oom_report(&mut self, reports: &mut OomReportBuilder, path: &Path) -> SinkResult;
}

/// The destination of records.
pub enum RecordOutput {
    /// None: only the aggregation is wanted.
    Nothing,
    /// All are written.
    Trace(Box<TraceWriter<File>>),
    /// The last ones are kept.
    Flight(Box<FlightRecorder>),
}

/// What is aggregated from the records.
pub enum Aggregation {
    /// Nothing yet: it is read from the kept part.
    Later,
    /// A profile for reports.
    Profile(Box<Profile>),
    /// A profile, and the moment a condition was met.
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

/// One of a job's recordings, all of which end at any one's condition.
#[derive(Clone, Default)]
pub struct RankContext {
    /// Prefix of this recording's messages: `rank 1 (process 1234)`. `None`: it is the only one.
    pub label: Option<String>,
    /// The condition that was met first, and its recording's label.
    pub ended_by: Arc<OnceLock<(String, String)>>,
}

impl RankContext {
    /// Another recording of the same job.
    pub fn with_label(&self, label: String) -> RankContext {
        RankContext { label: Some(label), ended_by: Arc::clone(&self.ended_by) }
    }

    /// The other recording's condition that ended this one.
    fn ended_by_other(&self) -> Option<EndReason> {
        let (condition, process) = self.ended_by.get()?;
        let is_own = self.label.as_ref() == Some(process);
        (!is_own).then(|| EndReason::OtherProcess {
            condition: condition.clone(),
            process: process.clone(),
        })
    }
}

/// The conditions, and what to do then.
pub struct TriggerState {
    watch: TriggerWatch,
    then: OnTrigger,
    /// Ends after this many recordings.
    max_reports: u32,
    /// Ends the recording when set.
    stop: Arc<AtomicBool>,
    fired: Option<String>,
    last: Option<Nanos>,
    uncounted: u64,
    /// Met, and waiting for the error's text.
    held: Option<TriggerFired>,
    /// When an error's text last arrived.
    message_time: Option<Nanos>,
}

impl TriggerState {
    /// Waits for the conditions of `watch`.
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

/// All sinks of a recording.
pub struct SinkChain {
    /// The destination of records.
    pub output: RecordOutput,
    /// What is aggregated.
    pub reading: Aggregation,
    /// The conditions.
    pub waiting: TriggerState,
    /// Tables during the recording.
    pub printer: Option<TablePrinter>,
    /// Which recording of a job this is.
    pub rank: RankContext,
    /// Runs the recording.
    pub host: Box<dyn RecordingHost>,
}

impl SinkChain {
    /// Prints the last table and delivers pending events.
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
            // The tables' reader is gone; the recording goes on.
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
        // Record the moment now; only its effect waits.
        self.pass(&Record::TriggerFired(triggered.clone()))?;
        let told = |words: Nanos| triggered.time.0.saturating_sub(words.0) < ERROR_TEXT_TIMEOUT;
        if triggered.condition == "oom" && !self.waiting.message_time.is_some_and(told) {
            self.waiting.held = Some(triggered);
            return Ok(());
        }
        self.act(triggered)
    }

    /// Acts on the held condition once `record` brings the error's text, or no longer can.
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

    /// Writes the kept part, or ends the recording.
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
            // Before the others are stopped, so that they find the reason.
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
        // A condition met by the end itself is recorded before it.
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
