//! What keeps one tensor alive, as text.

use std::collections::BTreeMap;
use std::io::Write;

use super::text::{footer, name};
use super::why::write_way;
use crate::analysis::results;
use crate::model::{OwnershipSnapshot, Referrer, SavedIn, TensorReferrers, TensorRow};
use crate::ownership::storages;
use crate::render::shared::{EscapeGuard, OutputError, bytes, count, number, one_line};

/// Tensors of one name: all of a cache may be called alike.
const MAX_OF_NAME: usize = 3;

/// Writes what keeps the requested tensors alive: the way, what its steps would free, and all that
/// refers to them.
pub fn why_text(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    asked: &[usize],
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let groups = storages(snapshot);
    let results = results(&snapshot.tensors, &snapshot.nodes);
    let mut of_names: BTreeMap<&str, usize> = BTreeMap::new();
    for &index in asked {
        let row = &snapshot.tensors[index];
        if let Some(name) = row.names.first() {
            let of_name = of_names.entry(name).or_default();
            *of_name += 1;
            if *of_name > MAX_OF_NAME {
                continue;
            }
        }
        let referrers =
            snapshot.referrers.iter().find(|referrers| Some(referrers.object) == row.object);
        write_tensor(out, snapshot, row)?;
        if let Some(way) = snapshot.ways.iter().find(|way| way.tensor == row.tensor.at) {
            write_way(out, row, way)?;
            writeln!(out, "\nwhat refers to it")?;
        }
        match referrers {
            Some(referrers) => write_referrers(out, referrers)?,
            None => writeln!(out, "  no Python object refers to it")?,
        }
        let of_it = |other: &&TensorRow| other.tensor.grad == Some(row.tensor.at);
        for other in snapshot.tensors.iter().filter(of_it) {
            writeln!(out, "  C++            .grad of {}", name(snapshot, other))?;
        }
        for saved in &row.saved {
            let node = &snapshot.nodes[saved.node];
            let how = match saved.by {
                SavedIn::Field => "in a field",
                SavedIn::Vector => "in a list",
                SavedIn::Function => "by save_for_backward",
            };
            let alive = match results[saved.node] {
                Some(result) => format!(", alive by {}", name(snapshot, &snapshot.tensors[result])),
                None => String::new(),
            };
            writeln!(out, "  autograd       {} keeps it {how}{alive}", one_line(&node.class))?;
        }
        for group in groups.iter().filter(|group| group.tensors.contains(&index)) {
            for other in group.tensors.iter().filter(|&&other| other != index) {
                let other = &snapshot.tensors[*other];
                writeln!(out, "  its memory     is shared by {}", name(snapshot, other))?;
            }
        }
    }
    for (name, all) in of_names.into_iter().filter(|(_, all)| *all > MAX_OF_NAME) {
        writeln!(out, "{} more {name} (--json has all)", count((all - MAX_OF_NAME) as u64))?;
    }
    footer(out, snapshot)
}

fn write_tensor(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    row: &TensorRow,
) -> Result<(), OutputError> {
    let size = row.tensor.storage.and_then(|storage| storage.bytes);
    let size = size.map_or_else(|| "of unknown size".to_owned(), bytes);
    let shape = row.tensor.shape.as_ref().map_or("symbolic".to_owned(), |s| format!("{s:?}"));
    let device = row.tensor.device.map_or("no device".to_owned(), |device| device.to_string());
    let (dtype, category) = (row.tensor.dtype, row.category.name());
    let garbage = if row.garbage { ", only cycles of garbage hold it" } else { "" };
    let name = name(snapshot, row);
    writeln!(out, "{name}: {size}, {dtype} {shape} on {device}, {category}{garbage}")?;
    Ok(())
}

fn write_referrers(out: &mut dyn Write, referrers: &TensorReferrers) -> Result<(), OutputError> {
    for Referrer { at, class, name, step } in &referrers.referrers {
        let way = match (name, at) {
            (Some(name), _) => one_line(&format!("{name}{step}")),
            (None, Some(at)) => {
                one_line(&format!("<{class} at {at:#x}>{step}, no variable leads to it"))
            }
            (None, None) => one_line(step),
        };
        writeln!(out, "  {:<14} {way}", one_line(class))?;
    }
    let seen = referrers.referrers.len();
    match referrers.count {
        Some(all) if all >= 0 && all as usize > seen => {
            let more = match seen {
                0 => number(all as u64, "reference"),
                _ => format!("{} more of its {all} references", all as usize - seen),
            };
            writeln!(out, "  {more}: temporary values of functions, C and C++")?;
        }
        _ if seen == 0 => writeln!(out, "  nothing was found that refers to it")?,
        _ => {}
    }
    Ok(())
}
