//! Finds processes by command line or name.

use std::str::FromStr;

use regex::{Regex, RegexBuilder};

use super::proc_files::{self, MAX_COMMAND_LINE};

const MAX_PATTERN: usize = 1 << 20;

/// For command lines and names.
#[derive(Debug, Clone)]
pub struct CommandPattern(Regex);

impl CommandPattern {
    /// Sorted pids whose command line (joined by spaces) or name matches now, except memspy's.
    pub fn find(&self) -> Vec<u32> {
        let own = std::process::id();
        let is_one = |pid: &u32| *pid != own && self.is_called(*pid);
        let mut found: Vec<u32> = proc_files::pids().filter(is_one).collect();
        found.sort_unstable();
        found
    }

    fn is_called(&self, pid: u32) -> bool {
        let read = |name| Some(proc_files::read(pid, name, MAX_COMMAND_LINE).ok()?.bytes);
        let Some(command) = read("cmdline") else { return false };
        // Skips kernel threads and ended processes.
        !command.is_empty()
            && (self.0.is_match(&command_text(&command))
                || read("comm").is_some_and(|name| self.0.is_match(&command_text(&name))))
    }
}

/// Drops the zeros that a longer, overwritten line left.
fn command_text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches(['\0', '\n', ' ']).replace('\0', " ")
}

impl FromStr for CommandPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<CommandPattern, String> {
        if text.is_empty() {
            return Err("an empty pattern matches every process".to_owned());
        }
        let pattern = RegexBuilder::new(text).size_limit(MAX_PATTERN).build();
        pattern.map(CommandPattern).map_err(|error| error.to_string())
    }
}

impl std::fmt::Display for CommandPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_one_line_without_trailing_zeros() {
        assert_eq!(command_text(b"ray::Actor.step\0\0\0\0"), "ray::Actor.step");
        assert_eq!(command_text(b"python\0-m\0x y\0"), "python -m x y");
        assert_eq!(command_text(b"pt_main_thread\n"), "pt_main_thread");
    }

    #[test]
    fn memspy_does_not_find_itself() {
        let pattern: CommandPattern = ".".parse().unwrap();
        let found = pattern.find();
        assert!(!found.is_empty() && !found.contains(&std::process::id()), "{found:?}");
        assert!("".parse::<CommandPattern>().is_err());
        assert!("(".parse::<CommandPattern>().is_err());
        assert!("a{1000}{1000}".parse::<CommandPattern>().is_err());
    }
}
