//! A terminal in tmux: runs programs in a shell, presses keys, reads the screen.

use std::process::{Command, Stdio};

use super::memspy::{command, wait_until};

/// A terminal with a shell; closed when dropped.
pub struct Terminal {
    socket: String,
}

impl Terminal {
    /// Starts a terminal of this size with the prompt `$`.
    pub fn start(name: &str, (width, height): (u32, u32)) -> Terminal {
        let terminal = Terminal { socket: format!("memspy-{name}-{}", std::process::id()) };
        let size = [width, height].map(|n| n.to_string());
        let mut tmux = terminal.tmux();
        tmux.args(["-f", "/dev/null", "new-session", "-d", "-x", &size[0], "-y", &size[1]]);
        tmux.args(["env", "-u", "NO_COLOR", "LC_ALL=C.UTF-8", "PS1=$ ", "HISTFILE=", "sh"]);
        let started = tmux.env("LC_ALL", "C.UTF-8").stderr(Stdio::inherit()).status();
        assert!(
            started.expect("tmux is missing: scripts/test.sh installs it").success(),
            "tmux did not start"
        );
        terminal.wait_for("a prompt", |screen| screen.starts_with("$"));
        terminal
    }

    pub fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &self.socket]);
        tmux
    }

    pub fn ask(&self, words: &[&str]) -> String {
        let done = self.tmux().args(words).output().unwrap();
        assert!(done.status.success(), "tmux {words:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Presses keys, as tmux names them.
    pub fn press(&self, keys: &[&str]) {
        self.ask(&[&["send-keys"], keys].concat());
    }

    pub fn screen(&self) -> String {
        self.ask(&["capture-pane", "-p"])
    }

    /// Types a command that runs memspy on `pid` and then prints its exit code.
    pub fn run(&self, pid: u32, words: &str) {
        self.run_with("", pid, words);
    }

    /// The same with environment variables.
    pub fn run_with(&self, variables: &str, pid: u32, words: &str) {
        let memspy = command(Some(pid));
        let program = memspy.get_program().to_str().unwrap().to_owned();
        let words = memspy.get_args().map(|word| word.to_str().unwrap()).chain([words]);
        let line: Vec<&str> = words.collect();
        // If memspy did not restore the screen, this line is gone.
        let text = format!(
            "clear; echo before; {variables} {program} {} -p {pid}; echo co''de $?",
            line.join(" ")
        );
        self.enter(&text);
    }

    /// Types a line.
    pub fn enter(&self, line: &str) {
        self.ask(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    #[track_caller]
    pub fn wait_for(&self, what: &str, found: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        wait_until(&format!("{what} on the screen"), || {
            screen = self.screen();
            found(&screen)
        });
        screen
    }

    /// The screen after the program's end: the old screen with the new output.
    #[track_caller]
    pub fn wait_for_end(&self, code: &str) {
        // At the start of a line: a function may be called `new_code`.
        let is_over = |screen: &str| screen.lines().any(|line| line.starts_with("code "));
        let screen = self.wait_for("the end", is_over);
        assert!(screen.starts_with("before"), "the other screen is still there:\n{screen}");
        assert!(screen.contains(code), "{screen}");
        assert_eq!(self.ask(&["display", "-p", "#{alternate_on} #{cursor_flag}"]), "0 1\n");
        // Typing is visible again.
        self.enter("echo a''live");
        let screen = self.wait_for("the shell", |screen| screen.contains("\nalive"));
        assert!(screen.contains("$ echo a''live"), "keys are not shown any more:\n{screen}");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").status();
    }
}
