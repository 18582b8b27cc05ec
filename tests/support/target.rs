//! A target process: started, awaited until READY, killed when dropped.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use super::fork_server::ForkedTarget;

/// A running target that has printed READY.
pub struct Target {
    process: TargetProcess,
    input: Option<Box<dyn Write + Send>>,
    output: BufReader<Box<dyn Read + Send>>,
    /// The lines it printed before READY.
    pub said: Vec<String>,
}

impl Target {
    /// Starts `command` and reads its output up to a line `READY`.
    pub fn start(command: Command) -> Target {
        Target::start_when(command, |line| line == "READY")
    }

    /// Starts `command` and reads its output up to a line that `is_ready` accepts.
    pub fn start_when(mut command: Command, is_ready: impl Fn(&str) -> bool) -> Target {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let input = Box::new(child.stdin.take().unwrap());
        let output = Box::new(child.stdout.take().unwrap());
        Target::wait_for(TargetProcess::Started(child), input, output, is_ready)
    }

    /// Like `start`, with a Python script forked from a process that has imported PyTorch.
    pub fn fork(script: &Path, arguments: &[&str]) -> Target {
        let (process, input, output) = ForkedTarget::start(script, arguments);
        Target::wait_for(
            TargetProcess::Forked(process),
            Box::new(input),
            Box::new(output),
            |line| line == "READY",
        )
    }

    fn wait_for(
        process: TargetProcess,
        input: Box<dyn Write + Send>,
        output: Box<dyn Read + Send>,
        is_ready: impl Fn(&str) -> bool,
    ) -> Target {
        let output = BufReader::new(output);
        let mut target = Target { process, input: Some(input), output, said: Vec::new() };
        loop {
            match target.line() {
                line if is_ready(&line) => return target,
                line => target.said.push(line),
            }
        }
    }

    pub fn pid(&self) -> u32 {
        match &self.process {
            TargetProcess::Started(child) => child.id(),
            TargetProcess::Forked(target) => target.pid(),
        }
    }

    /// The next line of its output; panics if it ends instead.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap();
        assert!(read > 0, "the target ended instead of printing a line: {:?}", self.wait());
        line.truncate(line.trim_end().len());
        line
    }

    /// The lines it prints up to the next READY.
    pub fn read_until_ready(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        loop {
            match self.line() {
                line if line == "READY" => return said,
                line => said.push(line),
            }
        }
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    /// Closes its standard input and waits for its end; panics on failure. Returns its last output.
    pub fn finish(mut self) -> String {
        self.input = None;
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        let status = self.wait();
        assert!(status.success(), "the target ended with {status}: {rest}");
        rest
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> ExitStatus {
        match &mut self.process {
            TargetProcess::Started(child) => child.wait().unwrap(),
            TargetProcess::Forked(target) => target.wait(),
        }
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        match &mut self.process {
            TargetProcess::Started(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            TargetProcess::Forked(target) => {
                target.kill();
                target.wait();
            }
        }
    }
}

/// How a target was started.
enum TargetProcess {
    Started(Child),
    Forked(ForkedTarget),
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}
