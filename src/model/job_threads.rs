//! What a job's threads do.

/// A thread and the functions on its stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningThread {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Their names, innermost first.
    pub functions: Vec<String>,
}

/// An exception that a thread raises or handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandledError {
    /// Its class.
    pub class: String,
    /// The thread's name.
    pub thread: Option<String>,
    /// Function, file and line that handle it, as far as known.
    pub handler: Option<(String, String, u32)>,
}

/// A job's threads at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobThreads {
    /// All of them.
    pub threads: Vec<RunningThread>,
    /// What they handle.
    pub handled: Vec<HandledError>,
}
