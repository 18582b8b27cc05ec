//! `memspy mcp`: the read-only commands over the Model Context Protocol.
//!
//! Each call runs a new memspy: it fails alone, keeps no job's data, and the kernel ends it with
//! the server.

mod protocol;
mod tools;

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::sampler::{StopSignal, Worker};

use super::args::McpArgs;
use super::lifetime;
use protocol::{ClientRequest, RpcError, ServerMessage, understand};
use tools::McpTool;

const MAX_CALLS: usize = 4;
/// Another waiting call is refused.
const MAX_WAITING: usize = 64;
const MAX_MESSAGE: u64 = 1 << 20;
const MAX_ANSWER: u64 = 16 << 20;
const MAX_ERROR: u64 = 64 << 10;
pub(super) const TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Runs until standard input ends.
pub(super) fn run(args: &McpArgs) -> Result<()> {
    let mut input = io::stdin().lock();
    let mut calls = ToolCalls::default();
    loop {
        let line = match next_line(&mut input).context("cannot read standard input")? {
            InputLine::End => {
                calls.wait();
                return Ok(());
            }
            InputLine::TooLong => {
                let why = format!("a message is longer than {} MiB", MAX_MESSAGE >> 20);
                send(&ServerMessage::new(Value::Null, Err(RpcError::invalid_request(why))))?;
                continue;
            }
            InputLine::Line(line) => line,
        };
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            continue;
        }
        match understand(&text, tools::list) {
            ClientRequest::Nothing => {}
            ClientRequest::Answer(answer) => send(&answer)?,
            ClientRequest::Cancel { id } => calls.cancel(&id),
            ClientRequest::Call { id, name, arguments } => {
                let words = McpTool::find(&name)
                    .ok_or_else(|| RpcError::invalid_params(format!("no such tool: {name}")))
                    .and_then(|tool| Ok((tool, tool.words(arguments, args.no_stop)?)));
                match words {
                    Ok((tool, words)) => calls.add(ToolCall { id, tool, words })?,
                    Err(error) => send(&ServerMessage::new(id, Err(error)))?,
                }
            }
        }
    }
}

enum InputLine {
    Line(Vec<u8>),
    /// A line longer than any message was skipped.
    TooLong,
    End,
}

fn next_line(input: &mut impl BufRead) -> io::Result<InputLine> {
    let mut line = Vec::new();
    if input.take(MAX_MESSAGE + 1).read_until(b'\n', &mut line)? == 0 {
        return Ok(InputLine::End);
    }
    if line.len() as u64 <= MAX_MESSAGE {
        return Ok(InputLine::Line(line));
    }
    // Skipped in pieces: an endless line takes no memory.
    while line.last() != Some(&b'\n') {
        line.clear();
        if input.take(MAX_MESSAGE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
    }
    Ok(InputLine::TooLong)
}

/// Locks the output: threads do not mix messages.
fn send(answer: &ServerMessage) -> Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot write to standard output")
}

struct ToolCall {
    id: Value,
    tool: &'static McpTool,
    words: Vec<String>,
}

/// Waiting calls, and the threads that take them. One lock for both: a thread without work
/// signs off under it, so no call relies on it.
#[derive(Default)]
struct CallQueue {
    calls: VecDeque<ToolCall>,
    takers: usize,
}

impl CallQueue {
    /// Returns whether the call needs another thread. `Err`: too many wait.
    fn push(&mut self, call: ToolCall) -> Result<bool, ToolCall> {
        if self.calls.len() >= MAX_WAITING {
            return Err(call);
        }
        self.calls.push_back(call);
        let needs_taker = self.takers < MAX_CALLS;
        self.takers += usize::from(needs_taker);
        Ok(needs_taker)
    }

    /// The next call; after `None` the thread takes no more.
    fn take(&mut self) -> Option<ToolCall> {
        let call = self.calls.pop_front();
        if call.is_none() {
            self.takers -= 1;
        }
        call
    }
}

#[derive(Default)]
struct ToolCalls {
    running: Vec<(Arc<Mutex<Option<Value>>>, Worker)>,
    queue: Arc<Mutex<CallQueue>>,
}

impl ToolCalls {
    fn add(&mut self, call: ToolCall) -> Result<()> {
        let needs_taker = match self.queue.lock().push(call) {
            Ok(needs_taker) => needs_taker,
            Err(call) => {
                let text = format!("{MAX_WAITING} calls wait already");
                return send(&ServerMessage::new(call.id, Ok(failure(text))));
            }
        };
        self.running.retain(|(_, worker)| !worker.is_finished());
        if !needs_taker {
            return Ok(());
        }
        let (queue, current) = (Arc::clone(&self.queue), Arc::new(Mutex::new(None)));
        let shown = Arc::clone(&current);
        let work = move |stop: &StopSignal| answer_all(&queue, &shown, stop);
        match Worker::spawn("mcp", work) {
            Ok(worker) => self.running.push((current, worker)),
            Err(error) => self.give_up(&error)?,
        }
        Ok(())
    }

    fn give_up(&mut self, error: &io::Error) -> Result<()> {
        let mut queue = self.queue.lock();
        queue.takers -= 1;
        if queue.takers > 0 {
            return Ok(());
        }
        let why = format!("cannot start a thread for this call: {error}");
        queue
            .calls
            .drain(..)
            .try_for_each(|call| send(&ServerMessage::new(call.id, Ok(failure(why.clone())))))
    }

    fn cancel(&mut self, id: &Value) {
        self.queue.lock().calls.retain(|call| call.id != *id);
        for (current, _) in &self.running {
            let mut current = current.lock();
            if current.as_ref() == Some(id) {
                *current = None;
            }
        }
    }

    fn wait(&mut self) {
        for (_, worker) in self.running.drain(..) {
            worker.join();
        }
    }
}

/// Answers all waiting calls. `current` runs; cancelling clears it.
fn answer_all(queue: &Mutex<CallQueue>, current: &Mutex<Option<Value>>, stop: &StopSignal) {
    loop {
        let Some(call) = queue.lock().take() else { return };
        *current.lock() = Some(call.id.clone());
        let is_wanted = || !stop.is_set() && current.lock().is_some();
        let result =
            call_tool(&call, &is_wanted).unwrap_or_else(|error| failure(error.to_string()));
        if current.lock().take().is_some()
            && send(&ServerMessage::new(call.id, Ok(result))).is_err()
        {
            let mut queue = queue.lock();
            queue.calls.clear();
            queue.takers -= 1;
            return;
        }
    }
}

fn call_tool(call: &ToolCall, is_wanted: &dyn Fn() -> bool) -> Result<Value> {
    let program = std::env::current_exe().context("cannot find memspy's own program")?;
    let child = Command::new(program)
        .args(&call.words)
        .env(lifetime::ENDS_WITH, std::process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start memspy")?;
    let mut child = KillGuard(child);
    let (out, error) = (child.0.stdout.take(), child.0.stderr.take());
    let out = Worker::spawn("mcp-out", move |_| read_at_most(out, MAX_ANSWER))?;
    let error = Worker::spawn("mcp-err", move |_| read_at_most(error, MAX_ERROR))?;
    let until = Instant::now() + TIMEOUT;
    let status = loop {
        if let Some(status) = child.0.try_wait()? {
            break status;
        }
        if !is_wanted() || Instant::now() >= until {
            drop(child);
            return Ok(failure(format!("ended after {} s: it took too long", TIMEOUT.as_secs())));
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let (out, error) = (out.join().unwrap_or_default(), error.join().unwrap_or_default());
    if !status.success() {
        return Ok(failure(error.trim_end().to_owned()));
    }
    if out.len() as u64 > MAX_ANSWER {
        let text =
            format!("the answer is longer than {} MiB; 'summary' has the groups", MAX_ANSWER >> 20);
        return Ok(failure(text));
    }
    let notes = error.trim_end();
    let mut content = vec![json!({"type": "text", "text": out})];
    if !notes.is_empty() {
        content.push(json!({"type": "text", "text": notes}));
    }
    let mut result = json!({"content": content, "isError": false});
    if call.tool.is_json {
        result["structuredContent"] = documents(&out)?;
    }
    Ok(result)
}

/// The printed document, or a list with one for each process.
fn documents(text: &str) -> Result<Value> {
    let read: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_str(text).into_iter().collect();
    let mut documents = read.context("memspy printed no JSON")?;
    Ok(match documents.len() {
        1 => documents.remove(0),
        _ => json!({"documents": documents}),
    })
}

fn failure(text: String) -> Value {
    json!({"content": [{"type": "text", "text": text}], "isError": true})
}

/// Reads up to `most` bytes, plus one if there is more, and drops the rest, so that the program can
/// end.
fn read_at_most(from: Option<impl Read>, most: u64) -> String {
    let Some(mut from) = from else { return String::new() };
    let mut bytes = Vec::new();
    // The JSON parser notices unreadable text.
    let _ = (&mut from).take(most + 1).read_to_end(&mut bytes);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

struct KillGuard(Child);

impl Drop for KillGuard {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // SIGTERM first: a memspy that stopped a job resumes it before it ends.
            let pid = rustix::process::Pid::from_child(&self.0);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let until = Instant::now() + Duration::from_secs(5);
            while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(POLL_INTERVAL);
            }
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: u64) -> ToolCall {
        let tool = McpTool::find("devices").unwrap();
        ToolCall { id: id.into(), tool, words: Vec::new() }
    }

    #[test]
    fn every_queued_call_has_a_thread() {
        let mut queue = CallQueue::default();
        let starts: Vec<bool> = (0..6).map(|id| queue.push(call(id)).ok().unwrap()).collect();
        assert_eq!(starts, [true, true, true, true, false, false]);
        assert!((0..6).all(|id| queue.take().unwrap().id == id));
        // One of four finds no work; its thread has not ended: the next call needs another.
        assert!(queue.take().is_none());
        assert!(queue.push(call(6)).ok().unwrap());
        assert!(!queue.push(call(7)).ok().unwrap(), "four are there again");
        for id in 8..8 + MAX_WAITING as u64 {
            let is_full = queue.calls.len() == MAX_WAITING;
            assert_eq!(queue.push(call(id)).is_err(), is_full);
        }
    }

    #[test]
    fn only_the_too_long_line_is_skipped() {
        let long = vec![b'a'; 3 * MAX_MESSAGE as usize];
        let most = [&long[..MAX_MESSAGE as usize - 1], b"\n"].concat();
        let mut input = io::Cursor::new([&long[..], b"\nping\n", &most, &long].concat());
        assert!(matches!(next_line(&mut input).unwrap(), InputLine::TooLong));
        let InputLine::Line(line) = next_line(&mut input).unwrap() else { panic!() };
        assert_eq!(line, b"ping\n");
        assert!(matches!(next_line(&mut input).unwrap(), InputLine::Line(line) if line == most));
        assert!(matches!(next_line(&mut input).unwrap(), InputLine::TooLong));
        assert!(matches!(next_line(&mut input).unwrap(), InputLine::End));
    }
}
