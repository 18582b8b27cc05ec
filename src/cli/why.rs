//! `memspy why`: what keeps a tensor alive, and what gives it back.

use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::args::WhyArgs;
use super::members::refuse_launcher;
use super::owners::{
    attached, matching_tensors, of_members, print_notes, refused, show, with_figures,
};
use super::{output, summary};
use crate::render;
use crate::sampler::read_referrers;

pub(super) fn why(args: &WhyArgs) -> Result<()> {
    let Some(tensor) = &args.tensor else { return summary::largest_findings(&args.read_args) };
    let pid = args.read_args.pid;
    if args.read_args.subprocesses {
        // Only one rank may have that name.
        return of_members(&args.read_args, false, &|read_args| {
            why(&WhyArgs { read_args, ..args.clone() })
        });
    }
    let mut readers = attached(args.read_args.pid, &AtomicBool::new(false))?;
    let options = args.read_args.cost.options();
    let read = &mut || read_referrers(&mut readers, options, tensor);
    let snapshot = with_figures(read).map_err(|error| refused(error, pid))?;
    let asked = matching_tensors(&snapshot, tensor, pid).or_else(|error| {
        refuse_launcher(&readers)?;
        Err(error)
    })?;
    if args.read_args.json {
        print_notes(&snapshot);
        return show(&args.read_args, &snapshot, &|_, _| Ok(()));
    }
    let mut text = Vec::new();
    render::why_text(&mut text, &snapshot, &asked)?;
    output::print(|out| out.write_all(&text))
}
