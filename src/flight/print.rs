//! The table of lines, printed again and again while a recording goes on.

use std::io::Write;
use std::time::Duration;

use crate::analysis::{LineOrder, Profile, ThreadChoice};
use crate::model::{Nanos, Record, SinkError, SinkResult};
use crate::render::{self, LinesOptions, RenderError};

use super::window::{StreamState, StreamWindow};

/// Where tables are printed to.
pub struct TableOutput {
    /// What they are written to, each at once.
    pub out: Box<dyn Write + Send>,
    /// Characters per line; `None` for as many as there are.
    pub width: Option<usize>,
}

/// Prints it.
pub struct OomReportPrinter {
    every: Duration,
    last: Option<Nanos>,
    now: Nanos,
    options: LinesOptions,
    /// The stretch since the last table; `None` where tables are of the whole recording, whose profile others have.
    since: Option<(StreamState, StreamWindow, ThreadChoice)>,
    out: Box<dyn Write + Send>,
}

impl OomReportPrinter {
    /// Prints one at this interval, of the recording so far.
    pub fn whole_recording(
        every: Duration,
        full_filenames: bool,
        out: TableOutput,
    ) -> OomReportPrinter {
        let TableOutput { out, width } = out;
        let options = LinesOptions {
            full_filenames,
            width,
            limit: Some(render::RANKED_ROWS),
            ..LinesOptions::default()
        };
        OomReportPrinter { every, last: None, now: Nanos(0), options, since: None, out }
    }

    /// Prints one at this interval, of the time since the last one.
    pub fn since_last(
        every: Duration,
        full_filenames: bool,
        choice: ThreadChoice,
        out: TableOutput,
    ) -> OomReportPrinter {
        let window = StreamWindow::new(Profile::with_filter(choice));
        let since = Some((StreamState::default(), window, choice));
        OomReportPrinter { since, ..OomReportPrinter::whole_recording(every, full_filenames, out) }
    }

    /// Takes a record before `whole`, the profile of the recording so far, does.
    ///
    /// # Errors
    /// A table cannot be made or written.
    pub fn on_record(&mut self, record: &Record, whole: Option<&Profile>) -> SinkResult {
        if let Some(time) = record.time() {
            self.now = self.now.max(time);
            let last = *self.last.get_or_insert(Nanos(0));
            let is_due = u128::from(self.now.0.saturating_sub(last.0)) >= self.every.as_nanos();
            if is_due && self.is_border(record) {
                self.print(whole)?;
                // Not at once again, when printing came late.
                let every = self.every.as_nanos() as u64;
                self.last = Some(Nanos(self.now.0 - self.now.0.saturating_sub(last.0) % every));
                if let Some((stream, window, choice)) = &mut self.since {
                    window.next(time, stream, Profile::with_filter(*choice), None)?;
                }
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

    /// Whether a table can be made before this record.
    fn is_border(&mut self, record: &Record) -> bool {
        match &mut self.since {
            Some((stream, window, _)) => stream.border(record).is_some() && window.is_settled(),
            None => matches!(record, Record::Sample(_) | Record::Events(_) | Record::Usage(_)),
        }
    }

    /// Prints the last table.
    ///
    /// # Errors
    /// It cannot be made or written.
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
            (None, Some(profile)) => (profile, "the recording so far".to_owned()),
            (None, None) => return Ok(()),
        };
        // Written at once: tables of other recordings of the job go to the same place.
        let mut out = Vec::new();
        let wall = profile.start().map_or_else(String::new, |start| {
            format!("{}, ", render::utc(start.unix_nanos.saturating_add(self.now.0)))
        });
        writeln!(out, "=== memspy: {wall}after {}: {what}", render::length(self.now.seconds()))?;
        let columns = Profile::default_columns();
        match profile.main_gpu().map(|gpu| profile.lines(gpu, &columns)) {
            None => writeln!(out, "no counters of a GPU were recorded yet")?,
            Some(Err(error)) => writeln!(out, "{error}")?,
            Some(Ok(table)) => {
                let ranking = profile.rank_lines(&table, false).map_err(SinkError::failed)?;
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
                    RenderError::Write(error) => SinkError::Write(error),
                    other => SinkError::failed(other),
                })?;
            }
        }
        writeln!(out)?;
        self.out.write_all(&out)?;
        Ok(self.out.flush()?)
    }
}
