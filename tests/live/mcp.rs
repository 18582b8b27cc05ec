//! `memspy mcp`, called by hand and by the official client library.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::memspy::{command, run, wait_until};
use crate::support::sim;

/// A running server.
struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    fn start(pid: Option<u32>, words: &[&str]) -> Server {
        let mut command = command(pid);
        command.arg("mcp").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Server { child, input, output: BufReader::new(output) }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the server ended");
        serde_json::from_str(&line).unwrap()
    }

    fn call(&mut self, id: u32, name: &str, arguments: &Value) {
        let params = json!({"name": name, "arguments": arguments});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn calls_return_the_commands_documents_or_their_error_line() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let pid = target.pid();
    let mut server = Server::start(Some(pid), &["--no-stop"]);
    server.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}));
    assert_eq!(server.answer()["result"]["protocolVersion"], "2025-06-18");
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));

    server.call(2, "devices", &json!({"pids": [pid]}));
    let answer = server.answer();
    let document = &answer["result"]["structuredContent"];
    assert_eq!((&answer["id"], &document["format"]), (&json!(2), &json!("memspy-devices")));
    let truth: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    let allocated = &truth["devices"][0]["stats"]["allocated_bytes.all.current"];
    assert_eq!(document["processes"][0]["devices"][0]["allocated"], *allocated);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *document);

    server.call(3, "doctor", &json!({"pid": 2_147_483_647}));
    let failed = server.answer();
    assert_eq!(failed["result"]["isError"], true, "{failed}");
    assert!(failed["result"]["content"][0]["text"].as_str().unwrap().contains("2147483647"));
    // Commands that write, or do not exist, are no tools.
    for name in ["record", "pause", "flame", "mcp"] {
        server.call(4, name, &json!({}));
        assert_eq!(server.answer()["error"]["code"], -32602, "{name}");
    }
    server.call(5, "lines", &json!({"trace": "--output=/tmp/memspy-mcp-test"}));
    let refused = server.answer();
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(!Path::new("/tmp/memspy-mcp-test").exists());

    // Requests before the end of the input are answered.
    server.call(6, "dump", &json!({"pid": pid}));
    server.input = None;
    let dump = server.answer();
    assert_eq!((&dump["id"], &dump["result"]["isError"]), (&json!(6), &json!(false)), "{dump}");
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_cancelled_call_has_no_answer_and_leaves_no_program() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let mut server = Server::start(Some(target.pid()), &[]);
    server.call(1, "growth", &json!({"pid": target.pid(), "duration": "200s"}));
    let cancelled = json!({"requestId": 1, "reason": "test"});
    server
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}));
    server.call(2, "devices", &json!({}));
    assert_eq!(server.answer()["id"], 2);
    // The server waits for all it started before it ends.
    server.input = None;
    assert!(server.child.wait().unwrap().success());
}

/// Running processes that `pid` started.
fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of_task = |path: std::path::PathBuf| std::fs::read_to_string(path.join("children"));
    let lists = tasks.filter_map(|task| of_task(task.path()).ok()).chain(list.ok());
    let mut found: Vec<u32> = lists
        .flat_map(|list| {
            list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[test]
fn a_server_ended_in_any_way_leaves_no_call_behind() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut server = Server::start(Some(target.pid()), &[]);
        for id in 0..3 {
            server.call(id, "growth", &json!({"pid": target.pid(), "duration": "200s"}));
        }
        let pid = server.child.id();
        wait_until("all calls run", || children(pid).len() == 3);
        let calls = children(pid);
        // Their environment names the server, readable once the program has begun.
        wait_until("the calls have begun", || {
            calls.iter().all(|call| {
                let status = std::fs::read_to_string(format!("/proc/{call}/status")).unwrap();
                status.contains("NoNewPrivs:\t1")
            })
        });
        kill(Pid::from_raw(pid as i32), signal).unwrap();
        server.child.wait().unwrap();
        let runs = |call: &u32| {
            std::fs::read_to_string(format!("/proc/{call}/stat"))
                .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
        };
        wait_until("the calls have ended", || !calls.iter().any(runs));
    }
}

#[test]
fn a_too_long_message_is_answered_and_the_next_works() {
    let mut server = Server::start(None, &[]);
    let long = json!({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": "x".repeat(3 << 20)});
    server.send(&long);
    let answer = server.answer();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert!(answer["error"]["message"].as_str().unwrap().contains("longer than 1 MiB"));
    server.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}));
    assert_eq!(server.answer()["id"], 2);
    server.call(3, "growth", &json!({"pid": 1, "duration": "9999h"}));
    let answer = server.answer();
    assert!(answer["error"]["message"].as_str().unwrap().contains("at most 240 seconds"));
}

#[test]
#[ignore = "needs the client library of PyPI: scripts/test.sh --all installs it"]
fn the_official_client_library_lists_and_calls_the_tools() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/mcp-client/bin/python");
    let pid = target.pid();
    let calls = json!([
        ["doctor", {"pid": pid}],
        ["devices", {"pids": [pid]}],
        ["summary", {"pid": pid, "duration": "1s"}],
        ["tensors", {"pid": pid, "no_stop": false}],
        ["doctor", {}],
    ]);
    // The library gives its server a new environment: the simulated card is chosen inside.
    let mut client = std::process::Command::new(python);
    client.arg("tests/targets/mcp_client.py").arg(calls.to_string());
    client.args(["scripts/with-sim", "--share", &pid.to_string()]);
    client.args([env!("CARGO_BIN_EXE_memspy"), "mcp"]);
    let said = run(&mut client).ok().out;
    let told: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(told["server"]["serverInfo"]["name"], "memspy");
    let tools = told["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true), "{said}");
    let results = told["results"].as_array().unwrap();
    for (index, format) in ["memspy-doctor", "memspy-devices"].into_iter().enumerate() {
        assert_eq!(results[index]["structuredContent"]["format"], format, "{}", results[index]);
    }
    assert!(results[2]["isError"] == false && results[3]["isError"] == false, "{said}");
    let pid = &results[2]["structuredContent"]["pid"];
    assert!(pid.is_null() || *pid == target.pid(), "{}", results[2]);
    assert!(results[4]["exception"].as_str().unwrap().contains("needs pid"), "{}", results[4]);
}
