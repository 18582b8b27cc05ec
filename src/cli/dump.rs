//! `memspy dump`: one look at a process, or at all of a job that use CUDA.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};

use crate::analysis::ProcessSnapshot;
use crate::model::{CudaIndex, OwnershipSnapshot};
use crate::render;
use crate::sampler::{
    CommonOptions, ProcessTree, RankProcess, RecordOptions, Recorder, TargetReaders, attach,
    read_owners,
};

use super::args::DumpArgs;
use super::flame::into_io;
use super::{hints, output};

/// What is seen of one process.
struct ProcessDump {
    /// What to call it, where there are several.
    label: String,
    snapshot: ProcessSnapshot,
    owners: Result<OwnershipSnapshot, String>,
}

/// Runs it.
pub(super) fn run(args: &DumpArgs) -> Result<()> {
    let seen = match args.subprocesses {
        true => members(args)?,
        false => {
            let readers = attach(args.pid, &AtomicBool::new(false))
                .map_err(|error| hints::attach(error, args.pid))?;
            vec![read_process(args, readers, String::new())?]
        }
    };
    let gpu = args.gpu.map(CudaIndex);
    output::write(Path::new("-"), false, |out| {
        for ProcessDump { label, snapshot: look, owners } in &seen {
            if args.json {
                render::dump_json(out, look, owners, gpu).map_err(into_io)?;
                continue;
            }
            if !label.is_empty() {
                writeln!(out, "== {label} ==")?;
            }
            render::dump_text(out, look, owners, gpu, args.full_filenames).map_err(into_io)?;
            if !label.is_empty() {
                writeln!(out)?;
            }
        }
        Ok(())
    })
}

/// All members of the family that use CUDA, one after the other: each look is of a moment of its own.
fn members(args: &DumpArgs) -> Result<Vec<ProcessDump>> {
    let pid = args.pid;
    let mut family = ProcessTree::new(pid, false).map_err(|error| hints::attach(error, pid))?;
    let members = family.poll();
    if members.is_empty() {
        bail!("no process among {pid} and its descendants uses CUDA now");
    }
    let mut seen = Vec::new();
    for member in members {
        let label = member.label();
        let RankProcess { readers, .. } = member;
        seen.push(read_process(args, readers, label)?);
    }
    Ok(seen)
}

fn read_process(args: &DumpArgs, mut readers: TargetReaders, label: String) -> Result<ProcessDump> {
    let options = args.limits.options(args.no_pause);
    let owners = match read_owners(&mut readers, options) {
        Ok(look) => Ok(look.snapshot),
        Err(error) => Err(error.to_string()),
    };
    let mut look = ProcessSnapshot::new();
    Recorder::new(
        readers,
        RecordOptions { rate: 1, duration: None, follow: None, common: CommonOptions::default() },
    )
    .record_once(output::host(), &mut look)?;
    Ok(ProcessDump { label, snapshot: look, owners })
}
