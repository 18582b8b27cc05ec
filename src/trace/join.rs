//! From the segments of a ring to one recording.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::ReadError;
use super::reader::Reader;
use super::rewrite::{Names, Rewriter};
use super::ring::SUFFIX;
use super::summary::Summary;
use crate::model::{Record, RecordSink};

/// The segments in the folder of a ring, the oldest first.
///
/// # Errors
/// [`ReadError::Open`] when the folder cannot be listed.
pub fn segments(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let open = |source| ReadError::Open { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(open)? {
        let path = entry.map_err(open)?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            found.push(path);
        }
    }
    // Their numbers have leading zeros.
    found.sort();
    Ok(found)
}

/// Gives the records of `segments`, the oldest first, to `sink` as those of one recording: that of the first
/// segment, gone on with. How things stood at the border of two segments is left out, for the segment before tells it.
///
/// Returns what was found in each segment. A segment that has no whole block is passed over.
///
/// # Errors
/// A segment cannot be read, or the sink takes no more.
pub fn join(
    segments: &[PathBuf],
    sink: &mut dyn RecordSink,
) -> Result<Vec<(PathBuf, Summary)>, ReadError> {
    let mut rewriter = Rewriter::new();
    let mut summaries = Vec::new();
    let mut is_first = true;
    for path in segments {
        let mut reader = match Reader::open(path) {
            // Killed before its head was written.
            Err(ReadError::Empty { .. } | ReadError::HeadCut { .. }) => continue,
            other => other?,
        };
        rewriter.turn();
        let mut segment = Segment {
            names: Names::default(),
            rewriter: &mut rewriter,
            out: Vec::new(),
            standing: !is_first,
            sink,
        };
        let summary = reader.replay(&mut segment)?;
        is_first &= summary.records == 0;
        summaries.push((path.clone(), summary));
    }
    Ok(summaries)
}

/// One segment being read.
struct Segment<'a> {
    names: Names,
    rewriter: &'a mut Rewriter,
    out: Vec<Record>,
    /// Whether what is read only says how things stood, which is known already.
    standing: bool,
    sink: &'a mut dyn RecordSink,
}

impl RecordSink for Segment<'_> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        if self.names.take(record) {
            self.rewriter.redefined(record);
            return Ok(());
        }
        if self.standing {
            self.standing = !matches!(record, Record::Inherited(_));
            return Ok(());
        }
        self.rewriter.rewrite(&self.names, record, &mut self.out);
        for record in self.out.drain(..) {
            self.sink.record(&record)?;
        }
        Ok(())
    }
}
