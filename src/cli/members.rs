//! A job's processes that use CUDA.

use std::io::{self, Write};

use anyhow::{Result, anyhow, bail};

use crate::model::AllocatorBackend;
use crate::sampler::{ProcessTree, RankProcess, TargetReaders};

use super::{eprint_error, hints, in_one_line};

const MAX_NAMED: usize = 8;

/// All processes of the job that use CUDA; at least one.
pub(super) fn members(pid: u32) -> Result<Vec<RankProcess>> {
    let mut tree = ProcessTree::new(pid, false).map_err(|error| hints::attach(error, pid))?;
    let members = tree.poll();
    if members.is_empty() {
        bail!("no process among {pid} and its descendants uses CUDA now");
    }
    Ok(members)
}

/// Prints failures of `read`. Fails if all failed or, with `all`, if any failed.
pub(super) fn for_each_member(
    pid: u32,
    json: bool,
    all: bool,
    read: &dyn Fn(u32) -> Result<()>,
) -> Result<()> {
    let members: Vec<(u32, String)> =
        members(pid)?.iter().map(|member| (member.readers.pid(), member.label())).collect();
    let mut failed = Vec::new();
    for (member, label) in &members {
        if !json {
            writeln!(io::stdout(), "== {label} ==")?;
        }
        if let Err(error) = read(*member) {
            eprint_error(&format!("{label}: {}", in_one_line(&error)));
            failed.push(label.as_str());
        }
        if !json {
            writeln!(io::stdout())?;
        }
    }
    match failed.len() {
        0 => Ok(()),
        count if all || count == members.len() => {
            Err(anyhow!("{} could not be read: see above", failed.join(", ")))
        }
        _ => Ok(()),
    }
}

/// Refuses a process without CUDA whose descendants use it.
pub(super) fn refuse_launcher(readers: &TargetReaders) -> Result<()> {
    let pid = readers.pid();
    if let Some(ranks) = ranks_below(readers) {
        bail!(
            "process {pid} uses no CUDA itself, but starts processes that do: {ranks}; add -s (--subprocesses) to look at \
             each of them, or give the pid of one"
        );
    }
    Ok(())
}

pub(super) fn ranks_below(readers: &TargetReaders) -> Option<String> {
    let without = [AllocatorBackend::NotLoaded, AllocatorBackend::NotInitialized];
    if !without.contains(&readers.allocator()) {
        return None;
    }
    let pid = readers.pid();
    let members = ProcessTree::new(pid, false).ok()?.poll();
    let below: Vec<&RankProcess> =
        members.iter().filter(|member| member.readers.pid() != pid).collect();
    if below.is_empty() || below.len() < members.len() {
        return None;
    }
    let mut names: Vec<String> =
        below.iter().take(MAX_NAMED).map(|member| member.label()).collect();
    if below.len() > MAX_NAMED {
        names.push(format!("{} more", below.len() - MAX_NAMED));
    }
    Some(names.join(", "))
}
