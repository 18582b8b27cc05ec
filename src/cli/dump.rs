//! `memspy dump`: one look at a process, or at all of a job that use CUDA.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};

use crate::analysis::Look;
use crate::model::{CudaIndex, HolderMap};
use crate::render;
use crate::sampler::{
    AlsoWanted, Family, Member, Readers, Recorder, Wanted, attach, look_at_holders,
};

use super::args::Dump as Words;
use super::flame::into_io;
use super::{hints, output};

/// What is seen of one process.
struct Seen {
    /// What to call it, where there are several.
    label: String,
    look: Look,
    holders: Result<HolderMap, String>,
}

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let seen = match words.subprocesses {
        true => members(words)?,
        false => {
            let readers = attach(words.pid, &AtomicBool::new(false))
                .map_err(|error| hints::attach(error, words.pid))?;
            vec![look(words, readers, String::new())?]
        }
    };
    let gpu = words.gpu.map(CudaIndex);
    output::write(Path::new("-"), false, |out| {
        for Seen { label, look, holders } in &seen {
            if words.json {
                render::dump_json(out, look, holders, gpu).map_err(into_io)?;
                continue;
            }
            if !label.is_empty() {
                writeln!(out, "== {label} ==")?;
            }
            render::dump_text(out, look, holders, gpu, words.full_filenames).map_err(into_io)?;
            if !label.is_empty() {
                writeln!(out)?;
            }
        }
        Ok(())
    })
}

/// All members of the family that use CUDA, one after the other: each look is of a moment of its own.
fn members(words: &Words) -> Result<Vec<Seen>> {
    let pid = words.pid;
    let mut family = Family::of(pid, false).map_err(|error| hints::attach(error, pid))?;
    let members = family.look();
    if members.is_empty() {
        bail!("no process among {pid} and its descendants uses CUDA now");
    }
    let mut seen = Vec::new();
    for member in members {
        let label = member.label();
        let Member { readers, .. } = member;
        seen.push(look(words, readers, label)?);
    }
    Ok(seen)
}

fn look(words: &Words, mut readers: Readers, label: String) -> Result<Seen> {
    let options = words.limits.options(words.no_pause);
    let holders = match look_at_holders(&mut readers, options) {
        Ok(look) => Ok(look.map),
        Err(error) => Err(error.to_string()),
    };
    let mut look = Look::new();
    Recorder::new(readers, Wanted { rate: 1, duration: None, also: AlsoWanted::default() })
        .look(output::host(), &mut look)?;
    Ok(Seen { label, look, holders })
}
