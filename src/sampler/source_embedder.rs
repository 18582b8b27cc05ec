//! Adds source text to functions.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use crate::model::{Definition, Function, FunctionId, Record, RecordSink, SinkResult, SourceText};
use crate::python::LineCache;
use crate::target::{JobFiles, Process};

use super::readers::TargetReaders;

const MAX_FILE_BYTES: u64 = 8 << 20;
const MAX_LINES: u32 = 2_000;
/// A stack's functions come from a few files again and again.
const FILES_KEPT: usize = 16;

/// Reads the source text of functions.
pub struct SourceReader {
    process: Arc<Process>,
    /// The process may end before its last functions are known.
    kept: Option<JobFiles>,
    line_cache: Option<LineCache>,
}

impl SourceReader {
    /// Reads the source text of the target's functions.
    pub fn new(readers: &TargetReaders) -> SourceReader {
        let process = Arc::clone(&readers.process);
        let line_cache = readers.python.as_ref().and_then(|python| python.line_cache(&process));
        let kept = process.files().ok();
        SourceReader { process, kept, line_cache }
    }

    /// After the process has ended, by what was known at the start.
    fn file(&self, name: &str) -> Option<Vec<u8>> {
        let path = Path::new(name);
        let read = self.process.read_file(path, MAX_FILE_BYTES);
        let kept = self.kept.as_ref().filter(|_| read.is_err() && self.process.is_ending());
        match kept {
            Some(kept) => self.process.read_from(kept, path, MAX_FILE_BYTES).ok(),
            None => read.ok(),
        }
    }
}

/// Adds source text to functions.
pub struct SourceEmbedder<S> {
    inner: S,
    sources: SourceReader,
    files: VecDeque<(Arc<str>, Option<Arc<str>>)>,
    hurries: bool,
}

impl<S: RecordSink> SourceEmbedder<S> {
    /// Passes records with sources to `inner`.
    pub fn new(inner: S, sources: SourceReader) -> Self {
        SourceEmbedder { inner, sources, files: VecDeque::new(), hurries: false }
    }

    /// The inner sink.
    pub fn into_inner(self) -> S {
        self.inner
    }

    fn source(&mut self, id: FunctionId, function: &Function) -> Option<SourceText> {
        if function.first_line == 0 {
            return None;
        }
        let text = self.file(&function.file)?;
        let last = function.last_line.max(function.first_line);
        let count = (last - function.first_line + 1).min(MAX_LINES);
        let lines: Vec<&str> =
            text.lines().skip(function.first_line as usize - 1).take(count as usize).collect();
        if lines.is_empty() {
            return None;
        }
        Some(SourceText {
            function: id,
            first_line: function.first_line,
            text: lines.join("\n").into(),
        })
    }

    fn file(&mut self, name: &Arc<str>) -> Option<Arc<str>> {
        if let Some((_, text)) = self.files.iter().find(|(known, _)| known == name) {
            return text.clone();
        }
        let in_file = match name.starts_with('<') {
            true => None,
            false => self.sources.file(name),
        };
        let in_file = in_file.map(|bytes| Arc::from(String::from_utf8_lossy(&bytes)));
        let text = in_file.or_else(|| self.sources.line_cache.as_ref()?.text(name).map(Arc::from));
        if self.files.len() == FILES_KEPT {
            self.files.pop_front();
        }
        self.files.push_back((name.clone(), text.clone()));
        text
    }
}

impl<S: RecordSink> RecordSink for SourceEmbedder<S> {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.inner.record(record)?;
        if !self.hurries
            && let Record::Definition(Definition::Function(id, function)) = record
            && let Some(source) = self.source(*id, function)
        {
            self.inner.record(&Record::Source(source))?;
        }
        Ok(())
    }

    fn sync(&mut self) -> SinkResult {
        self.inner.sync()
    }

    fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
        self.inner.hurry(hurries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources_of(function: Function) -> Vec<Record> {
        let own = Arc::new(Process::open(std::process::id()).unwrap());
        let mut sink = SourceEmbedder::new(
            Vec::new(),
            SourceReader { process: own, kept: None, line_cache: None },
        );
        sink.record(&Record::Definition(Definition::Function(FunctionId(0), function))).unwrap();
        sink.into_inner().into_iter().skip(1).collect()
    }

    #[test]
    fn a_function_comes_with_its_lines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "import os\n\ndef f():\n    x = 'é'\n    return x\n\nf()\n")
            .unwrap();
        let name: Arc<str> = file.path().to_str().unwrap().into();
        let function = |first_line, last_line| Function {
            name: "f".into(),
            file: name.clone(),
            first_line,
            last_line,
            is_native: false,
        };
        let own = Arc::new(Process::open(std::process::id()).unwrap());
        let mut sink = SourceEmbedder::new(
            Vec::new(),
            SourceReader { process: own, kept: None, line_cache: None },
        );
        for hurries in [true, false] {
            sink.hurry(hurries);
            let number = FunctionId(u32::from(!hurries));
            let definition = Definition::Function(number, function(3, 5));
            sink.record(&Record::Definition(definition)).unwrap();
        }
        assert_eq!(sink.into_inner().len(), 3, "the first one was in a hurry");
        let Record::Source(source) = sources_of(function(3, 5)).remove(0) else { panic!() };
        assert_eq!(&*source.text, "def f():\n    x = 'é'\n    return x");
        assert_eq!(source.first_line, 3);
        assert!(sources_of(function(30, 35)).is_empty(), "lines the file does not have");
    }

    #[test]
    fn an_ended_job_has_source_for_relative_file_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("job.py"), "def f():\n    return 1\n").unwrap();
        let mut job = std::process::Command::new("sleep");
        let mut job = job.arg("60").current_dir(folder.path()).spawn().unwrap();
        // Right after its start the kernel may still be replacing the program.
        let open = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let process = Process::open(job.id()).unwrap();
            process.files().ok().map(|kept| (Arc::new(process), kept))
        };
        let (process, kept) = std::iter::repeat_with(open).take(100).flatten().next().unwrap();
        job.kill().unwrap();
        job.wait().unwrap();
        let function = Function {
            name: "f".into(),
            file: "job.py".into(),
            first_line: 1,
            last_line: 2,
            is_native: false,
        };
        let source = |kept| {
            let sources = SourceReader { process: process.clone(), kept, line_cache: None };
            let mut sink = SourceEmbedder::new(Vec::new(), sources);
            let defined = Definition::Function(FunctionId(0), function.clone());
            sink.record(&Record::Definition(defined)).unwrap();
            sink.into_inner().len() == 2
        };
        assert!(source(Some(kept)));
        assert!(!source(None), "nothing else tells where it was");
    }

    #[test]
    fn a_missing_file_gives_no_source() {
        for name in ["<string>", "/dev/zero", "/no/such/file.py", "/"] {
            let function = Function {
                name: "f".into(),
                file: name.into(),
                first_line: 1,
                last_line: 3,
                is_native: false,
            };
            assert!(sources_of(function).is_empty(), "{name}");
        }
    }
}
