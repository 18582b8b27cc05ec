//! Prints the table of lines during a recording.

use std::io::Write;
use std::time::Duration;

use crate::analysis::{LineOrder, Profile, ThreadChoice, lines, peak};
use crate::model::{Definition, Nanos, Record, SinkError, SinkResult};
use crate::render::{self, LinesOptions, OutputError};

use super::calls::CallCounter;
use super::window::{StreamState, StreamWindow};

/// Where tables go.
pub struct TableOutput {
    /// Gets each table in one write.
    pub out: Box<dyn Write + Send>,
    /// Characters per line; `None`: unlimited.
    pub width: Option<usize>,
}

/// When to print tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrintInterval {
    /// After this much time.
    Time(Duration),
    /// After this many calls, as allocations show them.
    Calls {
        /// Its name or qualified name.
        function: String,
        /// The number of calls.
        every: u64,
    },
}

/// Prints tables.
pub struct TablePrinter {
    every: Duration,
    calls: Option<CallCounter>,
    last: Option<Nanos>,
    now: Nanos,
    options: LinesOptions,
    /// Since the last table; `None`: tables of the whole recording.
    since: Option<(StreamState, StreamWindow, ThreadChoice)>,
    out: Box<dyn Write + Send>,
}

impl TablePrinter {
    /// Prints tables of the recording so far.
    pub fn whole_recording(
        interval: &PrintInterval,
        full_filenames: bool,
        out: TableOutput,
    ) -> TablePrinter {
        let TableOutput { out, width } = out;
        let options = LinesOptions {
            full_filenames,
            width,
            limit: Some(render::RANKED_ROWS),
            ..LinesOptions::default()
        };
        let (every, calls) = match interval {
            PrintInterval::Time(every) => (*every, None),
            PrintInterval::Calls { function, every } => {
                (Duration::MAX, Some(CallCounter::new(function, *every)))
            }
        };
        TablePrinter { every, calls, last: None, now: Nanos(0), options, since: None, out }
    }

    /// Prints tables of the time since the last one.
    pub fn since_last(
        every: Duration,
        full_filenames: bool,
        choice: ThreadChoice,
        out: TableOutput,
    ) -> TablePrinter {
        let window = StreamWindow::new(Profile::with_filter(choice));
        let since = Some((StreamState::default(), window, choice));
        let interval = PrintInterval::Time(every);
        TablePrinter { since, ..TablePrinter::whole_recording(&interval, full_filenames, out) }
    }

    /// Takes a record before `whole` does.
    pub fn on_record(&mut self, record: &Record, whole: Option<&Profile>) -> SinkResult {
        if let Some(time) = record.time() {
            self.now = self.now.max(time);
            let last = *self.last.get_or_insert(Nanos(0));
            let is_late = u128::from(self.now.0.saturating_sub(last.0)) >= self.every.as_nanos();
            let is_border = self.is_border(record);
            let mut is_due = || self.calls.as_mut().map_or(is_late, CallCounter::take_due);
            if is_border && is_due() {
                self.print(whole)?;
                // After a late table, the next one does not follow at once.
                let every = u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX);
                self.last = Some(Nanos(self.now.0 - self.now.0.saturating_sub(last.0) % every));
                if let Some((stream, window, choice)) = &mut self.since {
                    window.next(time, stream, Profile::with_filter(*choice), None)?;
                }
            }
        }
        if let (Some(calls), Some(whole)) = (&mut self.calls, whole) {
            match record {
                Record::Events(batch) => calls.on_events(&batch.events, whole.stacks()),
                Record::Definition(Definition::Stack(stack, _)) => calls.redefine(*stack),
                _ => {}
            }
        }
        let Some((stream, window, _)) = &mut self.since else { return Ok(()) };
        if stream.on_record(record) {
            window.on_record(stream, record, None)
        } else {
            window.redefined(record);
            Ok(())
        }
    }

    fn is_border(&mut self, record: &Record) -> bool {
        match &mut self.since {
            Some((stream, window, _)) => stream.border(record).is_some() && window.is_settled(),
            None => matches!(record, Record::Sample(_) | Record::Events(_) | Record::Usage(_)),
        }
    }

    /// Prints the final table.
    pub fn finish(&mut self, whole: Option<&Profile>) -> SinkResult {
        if let Some((_, window, _)) = &mut self.since {
            let _ = window.is_settled();
        }
        self.print(whole)
    }

    fn print(&mut self, whole: Option<&Profile>) -> SinkResult {
        let (profile, what) = match (&self.since, whole) {
            (Some((_, window, _)), _) => {
                let profile = window.profile();
                let from = profile.begins().unwrap_or_default();
                let length = self.now.seconds() - from.seconds();
                (profile, format!("the last {}", render::length(length)))
            }
            (None, Some(profile)) => {
                let calls = self.calls.as_ref().map(CallCounter::counted);
                let calls = calls.map_or_else(String::new, |calls| format!(", {calls}"));
                (profile, format!("the recording so far{calls}"))
            }
            (None, None) => return Ok(()),
        };
        // One write: the job's other recordings print to the same place.
        let mut out = Vec::new();
        let wall = profile.start().map_or_else(String::new, |start| {
            format!("{}, ", render::utc(start.unix_nanos.saturating_add(self.now.0)))
        });
        writeln!(out, "=== memspy: {wall}after {}: {what}", render::length(self.now.seconds()))?;
        let columns = lines::default_columns();
        match peak::main_gpu(profile).map(|gpu| lines::table(profile, gpu, &columns)) {
            None => writeln!(out, "no counters of a GPU were recorded yet")?,
            Some(Err(error)) => writeln!(out, "{error}")?,
            Some(Ok(table)) => {
                let ranking = lines::ranking(profile, &table, false).map_err(SinkError::failed)?;
                let order = LineOrder::default();
                let written = render::ranked_lines_text(
                    &mut out,
                    profile,
                    &table,
                    &ranking,
                    order,
                    &self.options,
                );
                written.map_err(|error| match error {
                    OutputError::Write(error) => SinkError::Write(error),
                    other => SinkError::failed(other),
                })?;
            }
        }
        writeln!(out)?;
        self.out.write_all(&out)?;
        Ok(self.out.flush()?)
    }
}
