//! The names of groups.

use super::{OwnerGroup, OwnerKind};
use crate::model::{TensorCategory, count};

/// `parameters of main: model`, `server: sessions[*].keys`; with the job's own characters.
pub fn raw_group_label(group: &OwnerGroup) -> String {
    let members = |what: &str| match group.members {
        0 | 1 => String::new(),
        members => format!(" ({} {what})", count(members)),
    };
    let of = |what: &str| match group.owner.is_empty() {
        true => group.category.name().to_owned(),
        false => format!("{} of {}{}", group.category.name(), group.owner, members(what)),
    };
    let category = group.category.name();
    let label = match &group.kind {
        OwnerKind::Model => of("models"),
        OwnerKind::Optimizer => of("optimizers"),
        OwnerKind::Graph => format!("{category}, alive by {}{}", group.owner, members("graphs")),
        OwnerKind::UnknownGraph if group.owner.is_empty() => {
            format!("{category}, no variable leads to the graph")
        }
        OwnerKind::UnknownGraph => format!("{category}, {}", group.owner),
        OwnerKind::Garbage if group.owner.is_empty() => "garbage in reference cycles".to_owned(),
        OwnerKind::Garbage => {
            format!("garbage in reference cycles of {}: {category}", group.owner)
        }
        OwnerKind::NoTensor => group.owner.clone(),
        OwnerKind::Variable => {
            let tail = match group.patterns.as_slice() {
                [only] => only.tail.as_str(),
                _ => "",
            };
            let prefix = match group.category {
                TensorCategory::Other => String::new(),
                _ => format!("{category}: "),
            };
            let shape = match &group.largest_shape {
                Some(shape) if group.owner.starts_with('[') => format!(", largest {shape}"),
                _ => String::new(),
            };
            format!("{prefix}{}{tail}{shape}", group.owner)
        }
    };
    with_attributes(&label)
}

/// `model.layers[1].act` for `model._modules["layers"]._modules["1"]._modules["act"]`.
pub fn with_attributes(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("._modules[") {
        text.push_str(before);
        let Some((key, behind)) = after.split_once(']') else {
            text.push_str("._modules[");
            rest = after;
            continue;
        };
        let child = key.trim_matches('"');
        match child == "*" || child.bytes().all(|b| b.is_ascii_digit()) {
            true => text.push_str(&format!("[{child}]")),
            false => text.push_str(&format!(".{child}")),
        }
        rest = behind;
    }
    text + rest
}
