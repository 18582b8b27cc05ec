//! Takes out of a recording what names the user and the machine, and the program's text.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::allocator::AllocatorBackend;
use super::gpu::ProcessUsage;
use super::record::{EndReason, MissReason, Record, RecordSink};
use super::sink_error::SinkResult;
use super::source_file::standard_library_root;
use super::stack::Definition;

/// In place of the host's name.
const REDACTED: &str = "redacted";

/// Passes records on, without source text, the command line, the host's name, and paths outside of
/// libraries. Names of functions, variables and files stay.
pub struct RedactingSink<S> {
    inner: S,
    names: BaseNames,
    /// Equal files stay equal.
    files: FxHashMap<Arc<str>, Arc<str>>,
}

impl<S: RecordSink> RedactingSink<S> {
    /// Passes what may be shown to `inner`.
    pub fn new(inner: S) -> Self {
        RedactingSink { inner, names: BaseNames::default(), files: FxHashMap::default() }
    }

    /// The inner sink.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn file(&mut self, file: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.files.get(file) {
            return Arc::clone(known);
        }
        let shown: Arc<str> = match in_library(file) {
            Some(rest) => rest.into(),
            None => self.names.of(file).into(),
        };
        self.files.insert(Arc::clone(file), Arc::clone(&shown));
        shown
    }

    fn change(&mut self, record: &mut Record) {
        let texts: Vec<&mut String> = match record {
            Record::Start(start) => {
                start.host = REDACTED.to_owned();
                start.command.clear();
                start.directory = None;
                Vec::new()
            }
            Record::Definition(Definition::Function(_, function)) => {
                function.file = self.file(&function.file);
                Vec::new()
            }
            Record::Definition(Definition::Reset) => {
                self.files.clear();
                Vec::new()
            }
            Record::Runtime(runtime) => match &mut runtime.allocator {
                AllocatorBackend::Unknown(text) | AllocatorBackend::Pluggable(text) => vec![text],
                _ => Vec::new(),
            },
            Record::Usage(usage) => match &mut usage.process {
                ProcessUsage::Unknown(text) => vec![text],
                ProcessUsage::Bytes(_) => Vec::new(),
            },
            Record::Missed(missed) => match &mut missed.why {
                MissReason::Failed(text) => vec![text],
                MissReason::Torn | MissReason::Late => Vec::new(),
            },
            Record::ExactSettings(settings) => {
                for text in settings.probes.iter_mut().chain(&mut settings.uncovered) {
                    *text = without_paths(text).into();
                }
                Vec::new()
            }
            Record::OomException(found) => {
                found.error.as_mut().map(|error| &mut error.text).into_iter().collect()
            }
            Record::Gap(gap) => vec![&mut gap.why],
            Record::End(end) => match &mut end.reason {
                EndReason::Failed(text) => vec![text],
                _ => Vec::new(),
            },
            _ => Vec::new(),
        };
        for text in texts {
            *text = without_paths(text);
        }
    }
}

impl<S: RecordSink> RecordSink for RedactingSink<S> {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Source(_) => Ok(()),
            // Events and samples are many, and have nothing to hide.
            Record::Events(_) | Record::Followed(_) | Record::Sample(_) | Record::Snapshot(_) => {
                self.inner.record(record)
            }
            record => {
                let mut record = record.clone();
                self.change(&mut record);
                self.inner.record(&record)
            }
        }
    }

    fn sync(&mut self) -> SinkResult {
        self.inner.sync()
    }

    fn hurry(&mut self, hurries: bool) {
        self.inner.hurry(hurries);
    }
}

/// A path's part in a package or the standard library, or a name that is no path.
fn in_library(file: &str) -> Option<&str> {
    if file.starts_with('<') {
        return Some(file);
    }
    let packages = ["/site-packages/", "/dist-packages/"];
    let at = packages.iter().find_map(|root| file.rfind(root)).or(standard_library_root(file));
    at.map(|at| &file[at..])
}

/// The last parts of paths; different files of one name get a number.
#[derive(Debug, Default)]
pub struct BaseNames {
    counts: FxHashMap<String, u32>,
}

impl BaseNames {
    /// Of a file that was not named yet.
    pub fn of(&mut self, file: &str) -> String {
        let base = file.rsplit(['/', '\\']).next().unwrap_or_default();
        let count = self.counts.entry(base.to_owned()).or_default();
        *count += 1;
        match count {
            1 => base.to_owned(),
            number => format!("{base} ({number})"),
        }
    }
}

/// A sentence in which each word with a slash is `[path]`.
pub fn without_paths(text: &str) -> String {
    let word = |word: &str| match word.contains('/') && word.len() > 1 {
        true => "[path]".to_owned(),
        false => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Function, FunctionId, Nanos, OomException, RaisedError, RecordingEnd, RecordingStart,
        RecordingTotals, SourceText,
    };

    #[test]
    fn what_tells_of_user_machine_and_program_is_left_out() {
        let function = |id, file: &str| {
            let function = Function { file: file.into(), ..Function::of_test("f", 9) };
            Record::Definition(Definition::Function(FunctionId(id), function))
        };
        let files = [
            "/home/alice/job/utils.py",
            "/home/alice/other/utils.py",
            "/home/alice/job/utils.py",
            "/home/alice/v/lib/python3.12/site-packages/torch/nn/x.py",
            "/home/alice/python/lib/python3.12/json/decoder.py",
            "/home/alice/job/libfast.so",
            "<frozen importlib._bootstrap>",
        ];
        let mut records = vec![Record::Start(RecordingStart {
            memspy: "1".to_owned(),
            pid: 7,
            host: "alice-laptop".to_owned(),
            command: vec!["python".to_owned(), "/home/alice/secret.py".to_owned()],
            directory: Some("/home/alice/job".to_owned()),
            unix_nanos: 1,
            rate: 100,
            rank: Some(3),
        })];
        records.extend(files.iter().zip(0..).map(|(file, id)| function(id, file)));
        records.push(Record::Source(SourceText {
            function: FunctionId(0),
            first_line: 1,
            text: "alice = 1".into(),
        }));
        let text = "out of memory; see '/home/alice/x.py' for why".to_owned();
        let error = Some(RaisedError { thread: None, stack: None, text });
        records.push(Record::OomException(OomException { time: Nanos(1), error }));
        let reason = EndReason::Failed("cannot write /home/alice/t.bin: full".to_owned());
        let totals = RecordingTotals::default();
        records.push(Record::End(RecordingEnd { time: Nanos(2), reason, totals }));

        let mut sink = RedactingSink::new(Vec::new());
        records.iter().for_each(|record| sink.record(record).unwrap());
        let kept = sink.into_inner();
        assert_eq!(kept.len(), records.len() - 1, "all but the source");
        let all = format!("{kept:?}");
        assert!(!all.contains("alice"), "{all}");
        let shown: Vec<&str> = kept
            .iter()
            .filter_map(|record| match record {
                Record::Definition(Definition::Function(_, function)) => Some(&*function.file),
                _ => None,
            })
            .collect();
        let expected = [
            "utils.py",
            "utils.py (2)",
            "utils.py",
            "/site-packages/torch/nn/x.py",
            "/lib/python3.12/json/decoder.py",
            "libfast.so",
            "<frozen importlib._bootstrap>",
        ];
        assert_eq!(shown, expected);
        assert!(all.contains("see [path] for why") && all.contains("rank: Some(3)"), "{all}");
    }
}
