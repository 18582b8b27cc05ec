//! A headless Chromium, driven through the pipe of its DevTools protocol.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::stat::Mode;
use serde_json::{Value, json};

/// A browser that hangs longer is killed, and its test fails.
const SECONDS: &str = "150";

pub struct Browser {
    child: Child,
    requests: File,
    answers: BufReader<File>,
    session: Option<String>,
    number: u64,
    /// Exceptions, and console errors and warnings of the page or browser.
    pub complaints: Vec<String>,
    /// The URLs that pages requested after `Network.enable`.
    pub requested: Vec<String>,
    _folder: tempfile::TempDir,
}

impl Browser {
    /// A browser with an empty page; `None` if none is installed.
    pub fn start() -> Option<Browser> {
        let found = std::env::split_paths(&std::env::var_os("PATH")?)
            .any(|folder| folder.join("chromium").exists());
        if !found {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let pipe = |name: &str| {
            let path = folder.path().join(name);
            nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
            path
        };
        let (requests, answers) = (pipe("requests"), pipe("answers"));
        let script = "exec timeout -k 5 \"$1\" chromium --headless=new --no-sandbox --disable-gpu --no-first-run \
                      --user-data-dir=\"$2\" --remote-debugging-pipe about:blank 3<\"$3\" 4>\"$4\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh", SECONDS])
            .arg(folder.path().join("profile"))
            .args([&requests, &answers])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The shell opens them in this order, too: each open waits for the other side.
        let requests = OpenOptions::new().write(true).open(requests).unwrap();
        let answers = BufReader::new(File::open(answers).unwrap());
        let mut browser = Browser {
            child,
            requests,
            answers,
            session: None,
            number: 0,
            complaints: Vec::new(),
            requested: Vec::new(),
            _folder: folder,
        };
        let targets = browser.call("Target.getTargets", json!({}));
        let targets = targets["targetInfos"].as_array().unwrap();
        let page = targets.iter().find(|target| target["type"] == "page").unwrap();
        let attached = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attached);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Runtime", "Log", "Page"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method of the protocol and waits for its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let mut request = json!({"id": self.number, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = json!(session);
        }
        write!(self.requests, "{request}\0").unwrap();
        loop {
            let mut message = Vec::new();
            self.answers.read_until(0, &mut message).unwrap();
            assert_eq!(message.pop(), Some(0), "the browser ended while it was asked for {method}");
            let message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == json!(self.number) {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.on_event(&message);
        }
    }

    fn on_event(&mut self, message: &Value) {
        let params = &message["params"];
        let is_bad = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => params["type"] == "error",
            Some("Log.entryAdded") => {
                params["entry"]["level"] == "error" || params["entry"]["level"] == "warning"
            }
            Some("Network.requestWillBeSent") => {
                self.requested.push(params["request"]["url"].to_string());
                false
            }
            _ => false,
        };
        if is_bad {
            self.complaints.push(params.to_string());
        }
    }

    /// Opens a page at `hash` and waits until it is drawn.
    pub fn open(&mut self, page: &Path, hash: &str) {
        // A new hash alone would not reload it.
        self.call("Page.navigate", json!({"url": "about:blank"}));
        let url = format!("file://{}{hash}", page.display());
        self.call("Page.navigate", json!({"url": url}));
        let ready = "new Promise((done) => { const look = () => document.documentElement?.dataset.ready \
                     || document.getElementById('sentence')?.textContent.includes('cannot be shown') \
                     ? done(true) : setTimeout(look, 20); look(); })";
        self.value(ready);
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Drags the mouse across an element; positions are fractions of its size.
    pub fn drag(&mut self, element: &str, from: (f64, f64), to: (f64, f64)) {
        let look = format!(
            "(() => {{ const e = document.getElementById('{element}'); e.scrollIntoView({{block: 'center'}}); \
             const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()"
        );
        let place = self.value(&look);
        let number = |index: usize| place[index].as_f64().unwrap();
        for (kind, (x, y)) in [("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)] {
            let params = json!({
                "type": kind, "button": "left", "buttons": 1, "clickCount": 1,
                "x": number(0) + x * number(2), "y": number(1) + y * number(3),
            });
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// Types a key.
    pub fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({"type": kind, "key": key});
            if kind == "keyDown" && key.len() == 1 {
                params["text"] = json!(key);
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
