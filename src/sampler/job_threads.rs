//! Threads with their functions, and the exceptions that they handle.

use super::readers::TargetReaders;
use crate::model::{HandledError, JobThreads, RunningThread, StackTable};
use crate::python::ExceptionFinder;

/// Empty without Python.
pub fn read_threads(readers: &mut TargetReaders) -> JobThreads {
    let (mut table, mut samples) = (StackTable::new(), Vec::new());
    let Some(python) = readers.python.as_mut().filter(|_| !readers.process.is_core()) else {
        return JobThreads::default();
    };
    if python.sample(&mut table, &mut samples).is_err() {
        return JobThreads::default();
    }
    let name = |thread| table.get_thread(thread).and_then(|known| known.name.as_deref());
    let name = |thread| name(thread).map(str::to_owned);
    let functions = |stack| {
        let functions = table.frames(stack).filter_map(|frame| table.get_function(frame.function));
        functions.map(|function| function.name.to_string()).collect()
    };
    let threads = samples.iter().map(|sample| RunningThread {
        name: name(sample.thread),
        functions: functions(sample.stack),
    });
    let threads = threads.collect();
    let finder = python.exceptions(&readers.process, ExceptionFinder::ANY);
    let found = finder.map(|mut finder| finder.find(false)).unwrap_or_default();
    let handled = found.into_iter().map(|found| HandledError {
        class: found.class,
        thread: found.python_id.and_then(|id| table.find_thread(id, None)).and_then(name),
        handler: found
            .handler
            .map(|(function, line)| (function.name.to_string(), function.file.to_string(), line)),
    });
    JobThreads { threads, handled: handled.collect() }
}
