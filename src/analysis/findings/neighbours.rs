//! Other processes on the job's GPUs that nobody needs: idle workers, orphans.

use super::{Finding, FindingFacts};
use crate::model::{GpuNeighbour, NeighbourRole, bytes, number};

pub(super) fn idle_workers(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let idle = facts.neighbours.iter().filter(|it| it.role == NeighbourRole::IdleWorker);
    let sizes: Vec<u64> = idle.filter_map(|worker| worker.bytes).collect();
    let size = sizes.iter().sum();
    let problem = format!(
        "{} of the job with no tensor on a GPU keep{} CUDA contexts of {}",
        number(sizes.len() as u64, "waiting worker"),
        if sizes.len() == 1 { "s" } else { "" },
        bytes(size)
    );
    let found = Finding::new("idle contexts", size, problem)
        .change("use CUDA only in the main process, or end the workers")
        .frees(size)
        .command("devices", &[]);
    (size > 0).then_some(found).into_iter().collect()
}

pub(super) fn orphans(facts: &FindingFacts<'_>) -> Vec<Finding> {
    facts.neighbours.iter().filter_map(orphan).collect()
}

fn orphan(process: &GpuNeighbour) -> Option<Finding> {
    let NeighbourRole::Orphan { launcher, is_job } = process.role else { return None };
    let size = process.bytes?;
    let who = match (&process.command, is_job) {
        (_, true) => "this process".to_owned(),
        (Some(command), false) => format!("process {} ({command})", process.pid),
        (None, false) => format!("process {}", process.pid),
    };
    let gpus: Vec<String> = process.gpus.iter().map(|gpu| format!("GPU {gpu}")).collect();
    let problem = format!(
        "{}: {who} holds {}, and its launcher {launcher} has ended",
        gpus.join(", "),
        bytes(size)
    );
    let found = Finding::new("orphans", size, problem)
        .change(format!("if nobody needs it, kill {}", process.pid))
        .frees(size);
    Some(found.on_machine("devices"))
}
