//! The way that keeps a tensor, what each step would free, and the change that frees most.

use std::io::Write;

use super::frees::{COLLECT_NOTE, retained_text, sum};
use crate::model::{KeptWay, TensorRow, WayStep};
use crate::ownership::with_attributes;
use crate::render::shared::{OutputError, bytes, number, one_line};

/// The tensor shows less than this part of its storage: 1/2.
const PART_SHOWN: u64 = 2;

pub(super) fn write_way(
    out: &mut dyn Write,
    row: &TensorRow,
    way: &KeptWay,
) -> Result<(), OutputError> {
    writeln!(out, "\n{:>12}  {:>11}  the way that keeps it", "frees", "holds")?;
    let mut frees = Vec::new();
    for WayStep { step, class, holds, retained } in &way.steps {
        let text = retained_text(retained.as_ref());
        let (step, class) = (one_line(step), one_line(class));
        writeln!(out, "{text:>12}  {:>11}  {step}  <{class}>", bytes(*holds))?;
        frees.push(text);
    }
    if let Some(all) = &way.all_names {
        let text = retained_text(Some(all));
        writeln!(out, "{text:>12}  {:>11}  all references to it together", "")?;
        frees.push(text);
    }
    if frees.iter().any(|text| text.ends_with('*')) {
        writeln!(out, "{COLLECT_NOTE}")?;
    }
    writeln!(out)?;
    for change in changes(row, way) {
        writeln!(out, "{change}")?;
    }
    Ok(())
}

/// What to change, and what that gives.
fn changes(row: &TensorRow, way: &KeptWay) -> Vec<String> {
    let size = row.tensor.storage.map_or(0, |storage| storage.memory());
    let mut lines = Vec::new();
    let freed = |step: &&WayStep| step.retained.as_ref().map_or((0, 0), sum);
    let all = |step: &&WayStep| freed(step).0 + freed(step).1;
    let enough = way.steps.iter().rev().find(|step| size > 0 && all(step) >= size);
    // The outermost of those that free as much.
    let most = way.steps.iter().rev().max_by_key(|step| all(step)).filter(|step| all(step) > 0);
    let change = |step: &WayStep| {
        let (at_once, after_collect) = freed(&step);
        let name = step.retained.as_ref().map_or("", |retained| &retained.name);
        let collect = if after_collect > 0 { ", then gc.collect()," } else { "" };
        let line = format!("{}{collect} frees {}", removal(name), bytes(at_once + after_collect));
        one_line(&line)
    };
    match (enough, most) {
        (None, None) => lines.extend(held_by_others(way)),
        (enough, most) => {
            lines.extend(enough.map(change));
            let is_more = |most: &&WayStep| enough.is_none_or(|enough| all(most) > all(&enough));
            lines.extend(most.filter(is_more).map(change));
            if enough.is_none() {
                lines.push("that does not free this tensor: it has other references".to_owned());
            }
        }
    }
    let shown = row.tensor.logical_bytes().unwrap_or(size);
    if size > 0 && shown.saturating_mul(PART_SHOWN) < size {
        let (shown, size) = (bytes(shown), bytes(size));
        lines.push(format!("it shows {shown} of its memory: .clone() of it does not keep {size}"));
    }
    if row.tensor.grad_fn.is_some() {
        lines.push("it keeps its autograd graph: .detach() of it does not".to_owned());
    }
    lines
}

fn held_by_others(way: &KeptWay) -> Option<String> {
    way.steps.iter().any(|step| step.retained.is_some()).then(|| {
        let unknown = match way.unknown_holders {
            0 => String::new(),
            unknown => format!(
                ", {} of them unknown (temporary values, C++)",
                number(unknown, "reference")
            ),
        };
        format!("no single reference on this way frees anything: others hold it, too{unknown}")
    })
}

/// As a program says it: `main: cache["a"]` is `del cache["a"]`, in `main`.
fn removal(name: &str) -> String {
    let (scope, path) = match name.find(": ").filter(|&at| !name[..at].contains(['[', '"'])) {
        Some(at) => (Some(&name[..at]), &name[at + 2..]),
        None => (None, name.strip_prefix("__main__.").unwrap_or(name)),
    };
    let place = scope.map_or_else(String::new, |function| format!(" in {function}"));
    let path = &with_attributes(path);
    if let Some(tensor) = path.strip_suffix(".grad") {
        return format!("{tensor}.grad = None{place}");
    }
    if let Some(function) = path.strip_suffix(".<cache>") {
        return format!("{function}.cache_clear(){place}");
    }
    match path.contains(['<', '(', '{']) {
        true => format!("without {path}{place}:"),
        false => format!("del {path}{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_in_the_language_of_python() {
        for (name, change) in [
            ("main: cache[\"a: b\"]", "del cache[\"a: b\"] in main"),
            ("__main__.checkpoint", "del checkpoint"),
            ("pkg.mod.CACHE", "del pkg.mod.CACHE"),
            ("main: x.grad", "x.grad = None in main"),
            ("__main__.encode.<cache>", "encode.cache_clear()"),
            ("__main__.Tap.__dict__[\"records\"]", "del Tap.records"),
            ("main: local.get()", "without local.get() in main:"),
        ] {
            assert_eq!(removal(name), change);
        }
    }
}
