//! The names of a page, each once.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::analysis::{Profile, StackLabel};
use crate::model::{BaseNames, FunctionId, is_library, without_paths};
use crate::render::shared::{FrameLabels, short_file, visible};

/// In characters.
const MAX_OWN_SOURCE: usize = 3 << 20;
const MAX_LIBRARY_SOURCE: usize = 1 << 20;

#[derive(Debug, Clone, Serialize)]
pub(super) struct PageFile {
    name: String,
    library: bool,
    /// First line number, and the lines.
    source: Vec<(u32, Vec<String>)>,
}

/// Text; file number or -1; line or 0.
pub(super) type PageFrame = (String, i64, u32);

#[derive(Debug, Default)]
pub(super) struct PageNames {
    redact: bool,
    frames: Vec<PageFrame>,
    frame_numbers: FxHashMap<PageFrame, u32>,
    files: Vec<PageFile>,
    file_numbers: FxHashMap<String, usize>,
    base_names: BaseNames,
    source: Vec<BTreeMap<u32, String>>,
    source_left: [usize; 2],
    functions: FxHashMap<(usize, FunctionId), ()>,
}

impl PageNames {
    pub(super) fn new(redact: bool) -> PageNames {
        let source_left = [MAX_OWN_SOURCE, MAX_LIBRARY_SOURCE];
        PageNames { redact, source_left, ..PageNames::default() }
    }

    pub(super) fn label(&mut self, recording: usize, profile: &Profile, label: StackLabel) -> u32 {
        let directory = profile.start().and_then(|start| start.directory.as_deref());
        if let StackLabel::Frame(frame) = label
            && let Some(function) = profile.stacks().get_function(frame.function)
        {
            let file = self.file(&function.file, directory);
            self.add_source(recording, profile, frame.function, file);
            let name = visible(&function.name).into_owned();
            return self.frame((name, file as i64, frame.line));
        }
        let stacks = profile.stacks();
        let labels = FrameLabels { stacks, directory: None, full_filenames: true };
        self.frame((labels.label(label, true), -1, 0))
    }

    /// Text that is no code location.
    pub(super) fn text(&mut self, text: &str) -> u32 {
        self.frame((text.to_owned(), -1, 0))
    }

    fn frame(&mut self, frame: PageFrame) -> u32 {
        let frames = &mut self.frames;
        *self.frame_numbers.entry(frame).or_insert_with_key(|frame| {
            frames.push(frame.clone());
            frames.len() as u32 - 1
        })
    }

    fn file(&mut self, file: &str, directory: Option<&str>) -> usize {
        if let Some(number) = self.file_numbers.get(file) {
            return *number;
        }
        let name = match self.redact {
            false => visible(short_file(file, directory)).into_owned(),
            true => visible(&self.base_names.of(file)).into_owned(),
        };
        self.files.push(PageFile { name, library: is_library(file), source: Vec::new() });
        self.source.push(BTreeMap::new());
        self.file_numbers.insert(file.to_owned(), self.files.len() - 1);
        self.files.len() - 1
    }

    fn add_source(
        &mut self,
        recording: usize,
        profile: &Profile,
        function: FunctionId,
        file: usize,
    ) {
        if self.redact || self.functions.insert((recording, function), ()).is_some() {
            return;
        }
        let Some(source) = profile.source(function) else { return };
        let left = &mut self.source_left[usize::from(self.files[file].library)];
        if source.text.len() > *left {
            return;
        }
        *left -= source.text.len();
        for (number, line) in (source.first_line..).zip(source.text.lines()) {
            let text = line.replace('\t', "    ");
            self.source[file].entry(number).or_insert_with(|| visible(&text).into_owned());
        }
    }

    pub(super) fn finish(self) -> (Vec<PageFrame>, Vec<PageFile>) {
        let mut files = self.files;
        for (file, lines) in files.iter_mut().zip(self.source) {
            for (number, text) in lines {
                match file.source.last_mut() {
                    Some((first, run)) if *first as usize + run.len() == number as usize => {
                        run.push(text);
                    }
                    _ => file.source.push((number, vec![text])),
                }
            }
        }
        (self.frames, files)
    }
}

/// Without paths if `redact`.
pub(super) fn sentence(text: &str, redact: bool) -> String {
    let text = visible(text);
    if redact { without_paths(&text) } else { text.into_owned() }
}
