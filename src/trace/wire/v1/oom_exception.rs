//! Result of a search for an out-of-memory exception.

use bincode::{BorrowDecode, Encode};

use crate::model::{self, Nanos, StackId, ThreadId};

/// Its time precedes it.
#[derive(Encode, BorrowDecode)]
pub(crate) struct WireOomException<'a> {
    error: Option<WireRaisedError<'a>>,
}

#[derive(Encode, BorrowDecode)]
struct WireRaisedError<'a> {
    thread: Option<u32>,
    stack: Option<u32>,
    text: &'a str,
}

impl<'a> From<&'a model::OomException> for WireOomException<'a> {
    fn from(oom_exception: &'a model::OomException) -> Self {
        let error = oom_exception.error.as_ref().map(|error| WireRaisedError {
            thread: error.thread.map(|thread| thread.0),
            stack: error.stack.map(|stack| stack.0),
            text: &error.text,
        });
        WireOomException { error }
    }
}

impl WireOomException<'_> {
    /// Unknown thread or stack: its definition was lost.
    pub(crate) fn at(
        self,
        time: Nanos,
        thread: impl Fn(u32) -> Option<u32>,
        stack: impl Fn(u32) -> Option<u32>,
    ) -> model::OomException {
        let error = self.error.map(|error| model::RaisedError {
            thread: error.thread.and_then(thread).map(ThreadId),
            stack: error.stack.and_then(stack).map(StackId),
            text: error.text.to_owned(),
        });
        model::OomException { time, error }
    }
}
