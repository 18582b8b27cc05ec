//! Targets forked from a Python that has imported PyTorch (`fork_server/sitecustomize.py`): an
//! import takes 1.6 s of a processor, and the tests start hundreds of targets.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

/// At least a target's longest command line, which replaces it.
const PLACEHOLDER_BYTES: usize = 1024;

static SERVER: LazyLock<Mutex<ForkServer>> = LazyLock::new(|| Mutex::new(ForkServer::start()));

struct ForkServer {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl ForkServer {
    fn start() -> ForkServer {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let states = root.join("target/sim/state");
        std::fs::create_dir_all(&states).unwrap();
        let mut command = Command::new(root.join("scripts/with-sim"));
        command.arg("python").arg("/".to_owned() + &"x".repeat(PLACEHOLDER_BYTES)); // absolute, as Python makes it so
        // The file's name has room for the longest pid.
        command.env("SIM_CUDA_STATE", states.join("0000000000"));
        command.env("PYTHONPATH", root.join("tests/support/fork_server"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        let answers = BufReader::new(child.stdout.take().unwrap());
        ForkServer { child, answers }
    }

    fn ask(&mut self, request: &serde_json::Value) -> i32 {
        let requests = self.child.stdin.as_mut().unwrap();
        writeln!(requests, "{request}").unwrap();
        requests.flush().unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
            .trim()
            .parse()
            .unwrap_or_else(|_| panic!("the fork server said '{answer}' to {request}"))
    }
}

fn ask(request: &serde_json::Value) -> i32 {
    // A test that failed during a request has not broken the server for the others.
    SERVER.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).ask(request)
}

/// A process forked for a test.
pub struct ForkedTarget {
    pid: Pid,
    ended: Option<ExitStatus>,
}

impl ForkedTarget {
    /// Starts `script` with these arguments; returns it with its standard input and output.
    pub fn start(script: &Path, arguments: &[&str]) -> (ForkedTarget, PipeWriter, PipeReader) {
        let (input, to_input) = std::io::pipe().unwrap();
        let (from_output, output) = std::io::pipe().unwrap();
        // The forked process opens the pipes by these names before the server answers.
        let name = |fd: i32| format!("/proc/{}/fd/{fd}", std::process::id());
        let words: Vec<&str> =
            [script.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
        let (standard_input, standard_output) = (name(input.as_raw_fd()), name(output.as_raw_fd()));
        let pid = ask(&json!({"start": words, "input": standard_input, "output": standard_output}));
        (ForkedTarget { pid: Pid::from_raw(pid), ended: None }, to_input, from_output)
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> ExitStatus {
        if let Some(ended) = self.ended {
            return ended;
        }
        // The server, its parent, serves all tests: ask it only for a status that exists.
        while !self.is_zombie() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = ExitStatus::from_raw(ask(&json!({"wait": self.pid.as_raw()})));
        self.ended = Some(status);
        status
    }

    /// Whether it has ended with all its threads.
    fn is_zombie(&self) -> bool {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let field = |name: &str| {
            status.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned())
        };
        field("State:").is_none_or(|state| state.starts_with('Z'))
            && field("Threads:").is_none_or(|threads| threads == "1")
    }

    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }
}
