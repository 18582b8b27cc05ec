//! The text of frames, threads and file names.

use super::escape::visible;
use crate::analysis::{Profile, StackLabel};
use crate::model::in_standard_library;
use crate::model::{Frame, Function, FunctionId, OwnerId, SiteId, StackTable, ThreadId};

const MAX_NATIVE_NAME: usize = 100;

/// Cuts the path up to `site-packages/`, `dist-packages/` or `lib/python3.N/`, else makes it
/// relative to the job's directory.
pub fn short_file<'a>(file: &'a str, directory: Option<&str>) -> &'a str {
    for root in ["/site-packages/", "/dist-packages/"] {
        if let Some(at) = file.rfind(root) {
            return &file[at + root.len()..];
        }
    }
    if let Some(rest) = in_standard_library(file) {
        return rest;
    }
    let relative = directory
        .filter(|d| !d.is_empty())
        .and_then(|d| file.strip_prefix(d.trim_end_matches('/')))
        .and_then(|rest| rest.strip_prefix('/'));
    relative.filter(|r| !r.is_empty()).unwrap_or(file)
}

/// How frames are named.
#[derive(Clone, Copy)]
pub struct FrameLabels<'a> {
    /// The table.
    pub stacks: &'a StackTable,
    /// The job's working directory.
    pub directory: Option<&'a str>,
    /// Files are named by full paths, not relative to `directory`.
    pub full_filenames: bool,
}

impl<'a> FrameLabels<'a> {
    /// The names of a profile's frames.
    pub fn new(profile: &'a Profile, full_filenames: bool) -> FrameLabels<'a> {
        FrameLabels {
            stacks: profile.stacks(),
            directory: profile.start().and_then(|start| start.directory.as_deref()),
            full_filenames,
        }
    }

    pub(crate) fn file(&self, function: &'a Function) -> &'a str {
        if self.full_filenames {
            &function.file
        } else {
            short_file(&function.file, self.directory)
        }
    }

    /// A step of a folded stack.
    pub fn label(&self, label: StackLabel, with_line: bool) -> String {
        match label {
            StackLabel::Thread(thread) => self.thread(thread),
            StackLabel::Frame(frame) => self.frame(frame, with_line),
            StackLabel::Native(frame) => self.native(frame),
            StackLabel::Pseudo(mark) => mark.text().to_owned(),
            StackLabel::Owner(owner) => self.owner(owner),
            StackLabel::Module(name) => self.module(name),
            StackLabel::Node(site) => self.node(site),
            StackLabel::NodeOfUnknownLine(site) => {
                format!("{} (forward line unknown)", self.node(site))
            }
        }
    }

    /// `function (file.py:12)`, or `function (file.py)` without the line.
    pub fn frame(&self, frame: Frame, with_line: bool) -> String {
        match self.frame_parts(frame, with_line) {
            (name, Some(place)) => format!("{name} ({place})"),
            (name, None) => name,
        }
    }

    /// `function`, and `file.py:12` or `file.py`.
    pub fn frame_parts(&self, frame: Frame, with_line: bool) -> (String, Option<String>) {
        let Some(function) = self.stacks.get_function(frame.function) else {
            return (format!("[unknown function {}]", frame.function.0), None);
        };
        let file = one_line(self.file(function));
        let place = match with_line && frame.line > 0 {
            true => format!("{file}:{}", frame.line),
            false => file,
        };
        (one_line(&function.name), Some(place))
    }

    pub(crate) fn native(&self, frame: Frame) -> String {
        match self.stacks.get_function(frame.function) {
            Some(function) if function.file.is_empty() => one_line(&function.name),
            Some(function) => {
                format!("{} ({})", short_native(&function.name), one_line(&function.file))
            }
            None => format!("[unknown function {}]", frame.function.0),
        }
    }

    pub(crate) fn node(&self, id: SiteId) -> String {
        let node = self.stacks.get_site(id).and_then(|site| site.node.as_deref());
        one_line(node.unwrap_or("[unknown node]"))
    }

    pub(crate) fn owner(&self, id: OwnerId) -> String {
        one_line(self.stacks.owners.text(id).unwrap_or("[unknown owner]"))
    }

    pub(crate) fn module(&self, name: FunctionId) -> String {
        let name = self.stacks.get_function(name).map(|function| &*function.name);
        one_line(name.unwrap_or("[unknown module]"))
    }

    pub(crate) fn thread(&self, id: ThreadId) -> String {
        let Some(thread) = self.stacks.get_thread(id) else {
            return format!("thread [unknown {}]", id.0);
        };
        let name = thread.name.as_deref().unwrap_or("[no name]");
        let id =
            thread.os_id.map_or_else(|| format!("{:#x}", thread.python_id), |id| id.to_string());
        one_line(&format!("thread {name} ({id})"))
    }
}

/// A C++ name with templates may fill a page.
pub(crate) fn short_native(function: &str) -> String {
    let name = one_line(function);
    match name.char_indices().nth(MAX_NATIVE_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    }
}

/// Foreign text, escaped by [`visible`].
pub fn one_line(text: &str) -> String {
    visible(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_lose_what_every_program_shares() {
        let home = Some("/home/me/job");
        for (file, short) in [
            ("/v/lib/python3.12/site-packages/torch/nn/x.py", "torch/nn/x.py"),
            ("/usr/lib/python3/dist-packages/a.py", "a.py"),
            ("/usr/lib/python3.11/json/decoder.py", "json/decoder.py"),
            ("/opt/lib/python3.13t/threading.py", "threading.py"),
            ("/opt/lib/python3.x/threading.py", "/opt/lib/python3.x/threading.py"),
            ("/home/me/job/models/net.py", "models/net.py"),
            ("/home/me/job2/net.py", "/home/me/job2/net.py"),
            ("<string>", "<string>"),
            ("train.py", "train.py"),
            ("/home/me/job", "/home/me/job"),
        ] {
            assert_eq!(short_file(file, home), short);
        }
        assert_eq!(short_file("/home/me/job/a.py", Some("/home/me/job/")), "a.py");
        assert_eq!(short_file("/a.py", Some("/")), "a.py");
        assert_eq!(short_file("/a/b.py", None), "/a/b.py");
    }
}
