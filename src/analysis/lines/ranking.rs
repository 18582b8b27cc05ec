//! Ranks lines, with the library code they called.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::Moment;
use crate::analysis::flame;
use crate::analysis::folded::{FoldOptions, PseudoFrame, StackLabel};
use crate::analysis::lines::{self, BoundedValue, LineError, LineTable, recording_kind};
use crate::analysis::profile::Profile;
use crate::model::{
    Frame, Function, FunctionId, Metric, Nanos, OwnerId, Pool, StackId, StackTable, StatField,
    StatKey,
};

/// A line with the library code it called, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankedLine {
    /// The line.
    pub frame: Frame,
    /// Its stacks have no program line.
    pub library: bool,
    /// Live at the peak.
    pub live: u64,
    /// Allocated while recording.
    pub allocated: i64,
    /// Greatest level while on a stack, if known.
    pub peak: Option<BoundedValue>,
    /// Samples of running threads, or exact allocations.
    pub samples: u64,
}

/// The lines of a device; each byte counts once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRanking {
    /// Library lines have their own rows.
    pub by_library_line: bool,
    /// By live bytes, then allocated bytes.
    pub rows: Vec<RankedLine>,
    /// Time of the live bytes, and their total.
    pub moment: Option<(Nanos, u64)>,
    /// Live bytes without a line by reason, most first.
    pub without_line: Vec<(PseudoFrame, u64)>,
    /// Bytes of [`PseudoFrame::BeforeRecording`] by owner, most first.
    pub before_by_owner: Vec<(OwnerId, u64)>,
    files: OwnFiles,
}

/// What the rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineOrder {
    /// Live at the peak.
    #[default]
    Live,
    /// The peak while the line ran.
    Peak,
    /// Allocated while recording.
    Allocated,
    /// Samples, or allocations of an exact recording.
    Samples,
}

impl LineRanking {
    /// Sorts the rows, greatest first.
    pub fn sort(&mut self, order: LineOrder) {
        let peak = |row: &RankedLine| row.peak.map_or(i64::MIN, |peak| peak.value);
        self.rows.sort_by_key(|row| {
            let first = match order {
                LineOrder::Live => i128::from(row.live),
                LineOrder::Peak => i128::from(peak(row)),
                LineOrder::Allocated => i128::from(row.allocated),
                LineOrder::Samples => i128::from(row.samples),
            };
            let rest = (row.live, row.allocated, peak(row));
            (Reverse((first, rest)), row.frame.function, row.frame.line)
        });
    }

    /// Whether a function is of an installed package or the standard library. A package run as the
    /// program (`python -m package`) is not.
    pub fn is_library(&self, function: &Function) -> bool {
        !self.files.is_own(function)
    }

    /// Live bytes on the lines listed.
    pub fn on_lines(&self) -> u64 {
        self.rows.iter().map(|row| row.live).sum()
    }
}

/// Ranks the lines of `table`. Without `by_library_line`, library lines count for their
/// innermost program line.
pub fn ranking(
    profile: &Profile,
    table: &LineTable,
    by_library_line: bool,
) -> Result<LineRanking, LineError> {
    let stacks = profile.stacks();
    let nodes = recording_kind::of(profile).nodes(table.device, &[]);
    let files = OwnFiles::new(stacks, nodes.len());
    let charged = match by_library_line {
        true => innermost_lines(stacks, nodes.len(), &files),
        false => program_lines(stacks, nodes.len(), &files),
    };
    let mut rows: FxHashMap<Frame, RankedLine> = FxHashMap::default();
    for (node, frame) in nodes.iter().zip(&charged) {
        let Some(ChargedLine { frame, library }) = *frame else { continue };
        if node.live == 0 && node.stats[0].allocated == 0 && node.samples == 0 {
            continue;
        }
        let row = rows.entry(frame).or_insert_with(|| RankedLine {
            frame,
            library,
            live: 0,
            allocated: 0,
            peak: None,
            samples: 0,
        });
        row.live += node.live;
        row.allocated += node.stats[0].allocated;
        row.samples += node.samples;
    }
    add_peaks(profile, table, &charged, &mut rows)?;
    let mut ranking = LineRanking {
        by_library_line,
        rows: rows.into_values().collect(),
        moment: None,
        without_line: Vec::new(),
        before_by_owner: Vec::new(),
        files,
    };
    if let Ok(folded) = flame::fold(profile, table.device, Moment::Peak, FoldOptions::default()) {
        ranking.moment = Some((folded.snapshot.time, folded.total));
        let mut without: FxHashMap<PseudoFrame, u64> = FxHashMap::default();
        for stack in &folded.stacks {
            let frames = stack.path.iter().take_while(|label| !is_backward_mark(label));
            let pseudo = frames.clone().find_map(|label| match label {
                StackLabel::Pseudo(pseudo) => Some(*pseudo),
                _ => None,
            });
            if !frames.clone().any(|label| matches!(label, StackLabel::Frame(_))) {
                *without.entry(pseudo.unwrap_or(PseudoFrame::NoPython)).or_default() += stack.bytes;
            }
        }
        ranking.before_by_owner = folded.before_by_owner();
        ranking.without_line = without.into_iter().collect();
        ranking.without_line.sort_unstable_by_key(|(pseudo, bytes)| (Reverse(*bytes), *pseudo));
    }
    ranking.sort(LineOrder::default());
    Ok(ranking)
}

fn add_peaks(
    profile: &Profile,
    table: &LineTable,
    charged: &[Option<ChargedLine>],
    rows: &mut FxHashMap<Frame, RankedLine>,
) -> Result<(), LineError> {
    let key = StatKey { metric: Metric::AllocatedBytes, pool: Pool::All, field: StatField::Peak };
    let found = table.columns.iter().position(|column| *column == key);
    let with_peaks = match found {
        Some(_) => None,
        None => Some(lines::table(profile, table.device, &[key])?),
    };
    let column = found.unwrap_or(0);
    let own: BTreeSet<FunctionId> = charged
        .iter()
        .flatten()
        .filter(|line| !line.library)
        .map(|line| line.frame.function)
        .collect();
    for function in &with_peaks.as_ref().unwrap_or(table).functions {
        for line in &function.rows {
            let frame = Frame { function: function.function, line: line.line };
            let cell = line.cells.get(column).filter(|cell| cell.unknown.is_none());
            let is_known = |value: &BoundedValue| value.upper.is_some() || value.value > 0;
            let Some(peak) = cell.map(|cell| cell.value).filter(is_known) else { continue };
            if own.contains(&frame.function) {
                rows.entry(frame).or_insert(RankedLine {
                    frame,
                    library: false,
                    live: 0,
                    allocated: 0,
                    peak: None,
                    samples: 0,
                });
            }
            if let Some(row) = rows.get_mut(&frame) {
                row.peak = Some(peak);
            }
        }
    }
    Ok(())
}

fn is_backward_mark(label: &StackLabel) -> bool {
    *label == StackLabel::Pseudo(PseudoFrame::BackwardOf)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ChargedLine {
    frame: Frame,
    library: bool,
}

fn innermost_lines(
    stacks: &StackTable,
    count: usize,
    files: &OwnFiles,
) -> Vec<Option<ChargedLine>> {
    let line = |i: u32| {
        let frame = stacks.get_frame(stacks.get_stack(StackId(i))?.frame)?;
        let function = stacks.get_function(frame.function);
        Some(ChargedLine { frame, library: function.is_none_or(|f| !files.is_own(f)) })
    };
    (0..count as u32).map(line).collect()
}

/// The innermost line of the program; else of its package, its script, a library.
fn program_lines(stacks: &StackTable, count: usize, files: &OwnFiles) -> Vec<Option<ChargedLine>> {
    #[derive(Clone, Copy, Default)]
    struct LineCandidates {
        own: Option<Frame>,
        package: Option<Frame>,
        script: Option<Frame>,
        library: Option<Frame>,
        innermost: Option<Frame>,
    }
    let mut known: FxHashMap<FunctionId, LineOrigin> = FxHashMap::default();
    let mut all: Vec<LineCandidates> = Vec::with_capacity(count);
    for i in 0..count as u32 {
        let Some(node) = stacks.get_stack(StackId(i)) else {
            all.push(LineCandidates::default());
            continue;
        };
        let caller = node.parent.and_then(|parent| all.get(parent.0 as usize).copied());
        let mut found = caller.unwrap_or_default();
        if let Some(launcher) = files.launcher_of(stacks, StackId(i)) {
            let script = found.own.take();
            found.script = script.filter(|_| &*launcher.file != "<string>");
        }
        if let Some(frame) = stacks.get_frame(node.frame) {
            let origin = *known.entry(frame.function).or_insert_with(|| {
                stacks
                    .get_function(frame.function)
                    .map_or(LineOrigin::StandardLibrary, |f| files.origin(f))
            });
            found.innermost = Some(frame);
            match origin {
                LineOrigin::Program => found.own = Some(frame),
                LineOrigin::ProgramPackage => found.package = Some(frame),
                LineOrigin::Library => found.library = Some(frame),
                LineOrigin::StandardLibrary => {}
            }
        }
        all.push(found);
    }
    let line = |found: &LineCandidates| match found.own.or(found.package).or(found.script) {
        Some(frame) => Some(ChargedLine { frame, library: false }),
        None => {
            let frame = found.library.or(found.innermost)?;
            Some(ChargedLine { frame, library: true })
        }
    };
    all.iter().map(line).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineOrigin {
    Program,
    ProgramPackage,
    Library,
    StandardLibrary,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnFiles {
    /// Installed packages that run as the program.
    packages: BTreeSet<String>,
}

impl OwnFiles {
    fn new(stacks: &StackTable, count: usize) -> OwnFiles {
        let mut files = OwnFiles { packages: BTreeSet::new() };
        // Stacks that began as the program, not as a thread, and have only standard library frames
        // so far.
        let mut at_entry = vec![false; count];
        for i in 0..count as u32 {
            let Some(node) = stacks.get_stack(StackId(i)) else { continue };
            let Some(function) = function_of(stacks, StackId(i)) else { continue };
            let begins = match node.parent {
                None => matches!(&*function.name, "<module>" | "_run_module_as_main"),
                Some(parent) => {
                    let is_entry = at_entry.get(parent.0 as usize).copied().unwrap_or(false);
                    let caller = function_of(stacks, parent).filter(|caller| is_launcher(caller));
                    is_entry && caller.is_none_or(|caller| is_started_by(function, caller))
                }
            };
            if !begins {
                continue;
            }
            match package(&function.file) {
                // torch starts processes; it is not the program.
                Some(package) if !package.ends_with("/torch/") => {
                    files.packages.insert(package.to_owned());
                }
                Some(_) => {}
                None => at_entry[i as usize] = function.is_of_library() || is_launcher(function),
            }
        }
        files
    }

    fn origin(&self, function: &Function) -> LineOrigin {
        match package(&function.file) {
            Some(package) if self.packages.contains(package) => LineOrigin::ProgramPackage,
            Some(_) => LineOrigin::Library,
            None if function.is_of_library() => LineOrigin::StandardLibrary,
            None => LineOrigin::Program,
        }
    }

    fn is_own(&self, function: &Function) -> bool {
        matches!(self.origin(function), LineOrigin::Program | LineOrigin::ProgramPackage)
    }

    /// The caller, if it only starts the program: a console script, or the line that
    /// `multiprocessing` spawns.
    fn launcher_of<'a>(&self, stacks: &'a StackTable, stack: StackId) -> Option<&'a Function> {
        let parent = stacks.get_stack(stack)?.parent?;
        if stacks.get_stack(parent)?.parent.is_some() {
            return None;
        }
        let caller = function_of(stacks, parent).filter(|caller| is_launcher(caller))?;
        let callee = function_of(stacks, stack)?;
        is_started_by(callee, caller).then_some(caller)
    }
}

fn function_of(stacks: &StackTable, stack: StackId) -> Option<&Function> {
    let frame = stacks.get_frame(stacks.get_stack(stack)?.frame)?;
    stacks.get_function(frame.function)
}

fn is_launcher(function: &Function) -> bool {
    let (folder, name) = function.file.rsplit_once('/').unwrap_or(("", &function.file));
    let is_script = folder.ends_with("/bin") && !name.contains('.');
    &*function.name == "<module>" && (name == "<string>" || is_script)
}

fn is_started_by(callee: &Function, launcher: &Function) -> bool {
    match &*launcher.file {
        // Not a package named `multiprocessing`.
        "<string>" => callee.file.contains("/multiprocessing/") && package(&callee.file).is_none(),
        _ => package(&callee.file).is_some(),
    }
}

/// The folder of a file's package, or a single-file package.
fn package(file: &str) -> Option<&str> {
    let root = ["/site-packages/", "/dist-packages/"]
        .into_iter()
        .find_map(|root| Some(file.rfind(root)? + root.len()))?;
    let end = file[root..].find('/').map_or(file.len(), |end| root + end + 1);
    Some(&file[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGES: &str = "/v/lib/python3.12/site-packages/";

    /// From `(file, function)`, outermost first, to `(file, library)`.
    fn charged(stack: &[(&str, &str)]) -> (String, bool) {
        let mut table = StackTable::new();
        let mut last = None;
        for (line, (file, name)) in stack.iter().enumerate() {
            let function = table.function(Function {
                name: (*name).into(),
                file: (*file).into(),
                first_line: 1,
                last_line: 99,
                is_native: false,
            });
            let frame = table.frame(Frame { function, line: line as u32 + 1 });
            last = Some(table.stack(last, frame));
        }
        let lines = program_lines(&table, stack.len(), &OwnFiles::new(&table, stack.len()));
        let line = lines[last.unwrap().0 as usize].unwrap();
        let file = &table.get_function(line.frame.function).unwrap().file;
        (file.to_string(), line.library)
    }

    #[test]
    fn library_frames_count_for_the_line_that_called_them() {
        let torch = format!("{PACKAGES}torch/nn/x.py");
        let (file, library) =
            charged(&[("train.py", "<module>"), ("net.py", "f"), (&torch, "g"), (&torch, "h")]);
        assert_eq!((&*file, library), ("net.py", false));
    }

    /// Eleven rows `<string>:7` came from a job's dataclasses.
    #[test]
    fn code_generated_by_a_library_is_no_program_line() {
        let torch = format!("{PACKAGES}torch/nn/x.py");
        for made in [
            ("<string>", "__create_fn__.<locals>.__init__"),
            ("<attrs generated init job.Batch>", "__init__"),
            ("<eval_with_key>.3", "forward"),
        ] {
            let stack = [("train.py", "<module>"), (&*torch, "g"), made, (&*torch, "h")];
            assert_eq!(charged(&stack), ("train.py".to_owned(), false), "{made:?}");
        }
    }

    #[test]
    fn package_run_as_the_program_belongs_to_the_program() {
        let (main, code) =
            (format!("{PACKAGES}vllm/__main__.py"), format!("{PACKAGES}vllm/core.py"));
        let torch = format!("{PACKAGES}torch/nn/x.py");
        let runpy = [("<frozen runpy>", "_run_module_as_main"), ("<frozen runpy>", "_run_code")];
        let module = [&runpy[..], &[(&*main, "<module>"), (&*code, "run"), (&*torch, "f")]];
        assert_eq!(charged(&module.concat()), (code.clone(), false));
        let script = [("/v/bin/vllm", "<module>"), (&*code, "main"), (&*torch, "f")];
        assert_eq!(charged(&script), (code.clone(), false));
        let spawn = ("/usr/lib/python3.12/multiprocessing/spawn.py", "spawn_main");
        let spawned = [("<string>", "<module>"), spawn, (&*code, "run"), (&*torch, "f")];
        assert_eq!(charged(&spawned), (code, false));
    }

    #[test]
    fn program_line_precedes_the_starting_packages_line() {
        let torch = format!("{PACKAGES}torch/multiprocessing/spawn.py");
        let spawn = ("/usr/lib/python3.12/multiprocessing/spawn.py", "spawn_main");
        let stack = [
            ("<string>", "<module>"),
            spawn,
            (&*torch, "_wrap"),
            ("job.py", "work"),
            (&*torch, "f"),
        ];
        assert_eq!(charged(&stack), ("job.py".to_owned(), false));
        let command = [("<string>", "<module>"), (&*torch, "f")];
        assert_eq!(charged(&command), ("<string>".to_owned(), false));
    }

    #[test]
    fn library_thread_gets_a_library_line() {
        let torch = format!("{PACKAGES}torch/utils/data/pin_memory.py");
        let threading = "/usr/lib/python3.12/threading.py";
        let stack = [(threading, "_bootstrap"), (&*torch, "loop"), (threading, "wait")];
        assert_eq!(charged(&stack), (torch.clone(), true));
    }
}
