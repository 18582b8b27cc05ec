//! `memspy dump`: a snapshot of a process or job.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::analysis::ProcessSnapshot;
use crate::model::{CudaIndex, OwnershipSnapshot};
use crate::render::{self, DumpOptions};
use crate::sampler::{
    CommonOptions, RankProcess, RecordOptions, Recorder, TargetReaders, attach, read_mixed_stacks,
    read_owners, read_sleep_tags,
};

use super::args::DumpArgs;
use super::members::{members as job_members, refuse_launcher};
use super::output::into_io;
use super::{hints, output};

struct ProcessDump {
    label: String,
    snapshot: ProcessSnapshot,
    owners: Result<OwnershipSnapshot, String>,
    /// Time between reading the owners and the rest.
    age: Option<Duration>,
}

pub(super) fn run(args: &DumpArgs) -> Result<()> {
    let seen = match args.subprocesses {
        true => members(args)?,
        false => vec![read_process(args, attach_target(args)?, String::new())?],
    };
    let gpu = args.gpu.map(CudaIndex);
    let write = |out: &mut dyn std::io::Write| {
        for ProcessDump { label, snapshot, owners, age } in &seen {
            let options = DumpOptions {
                gpu,
                full_filenames: args.full_filenames,
                idle: args.idle,
                cache: args.cache,
                each: args.each,
                owners_age: *age,
            };
            if args.json {
                render::dump_json(out, snapshot, owners, &options).map_err(into_io)?;
                continue;
            }
            if !label.is_empty() {
                writeln!(out, "== {label} ==")?;
            }
            render::dump_text(out, snapshot, owners, &options).map_err(into_io)?;
            if !label.is_empty() {
                writeln!(out)?;
            }
        }
        Ok(())
    };
    let path = Path::new("-");
    output::write(path, false, output::fitted(path, !args.json, write))
}

fn attach_target(args: &DumpArgs) -> Result<TargetReaders> {
    let Some(pid) = args.pid else {
        let path = args.core.as_deref().or(args.core_option.as_deref());
        let path = path.context("give a process (-p) or a core file")?;
        return TargetReaders::attach_core(path).map_err(|error| hints::core(error, path));
    };
    let readers =
        attach(pid, &AtomicBool::new(false)).map_err(|error| hints::attach(error, pid))?;
    refuse_launcher(&readers)?;
    Ok(readers)
}

/// All processes that use CUDA, in turn: each snapshot has its own time.
fn members(args: &DumpArgs) -> Result<Vec<ProcessDump>> {
    let mut seen = Vec::new();
    let pid = args.pid.context("-s needs a process (-p)")?;
    for member in job_members(pid)? {
        let label = member.label();
        let RankProcess { readers, .. } = member;
        seen.push(read_process(args, readers, label)?);
    }
    Ok(seen)
}

fn read_process(args: &DumpArgs, mut readers: TargetReaders, label: String) -> Result<ProcessDump> {
    let options = args.cost.options();
    let owners = match read_owners(&mut readers, options) {
        Ok(read) => Ok(read.snapshot),
        Err(error) => Err(error.to_string()),
    };
    let read_at = owners.as_ref().ok().and_then(|owners| Instant::now().checked_sub(owners.age));
    let native = args.native.then(|| read_mixed_stacks(&mut readers));
    let process = readers.identity();
    let is_core = readers.core_origin().is_some();
    let tags = read_sleep_tags(&readers);
    let mut snapshot = ProcessSnapshot::new();
    Recorder::new(
        readers,
        RecordOptions { rate: 1, duration: None, follow: None, common: CommonOptions::default() },
    )
    .record_once(output::host(), &mut snapshot)?;
    snapshot.set_tags(tags);
    if let Some(stacks) = native {
        snapshot.set_mixed_stacks(stacks.map_err(|error| error.to_string()));
    }
    // Only now it is known what was missing.
    snapshot.set_core(process.core_origin());
    // Ids of another namespace do not match /proc.
    if process.pids().len() == 1 {
        snapshot.mark_asleep(&|id| process.is_asleep(id) == Some(true));
    }
    // If the job was stopped, its blocks come from that stop: figures shown together are of one
    // moment.
    if let Ok(owners) = owners.as_ref()
        && owners.is_of_one_moment()
    {
        snapshot.use_blocks_of_owners(&owners.blocks);
    }
    let age = read_at.filter(|_| !is_core).map(|at| at.elapsed());
    Ok(ProcessDump { label, snapshot, owners, age })
}
