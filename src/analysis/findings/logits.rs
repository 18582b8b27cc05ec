//! Logits in float32 beside their half-precision original.

use std::collections::BTreeSet;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{DType, OwnershipSnapshot, TensorCategory, TensorRow, bytes};
use crate::ownership::{held_storages, is_garbage};

/// float16, float32, bfloat16.
const FLOAT32: DType = DType(6);
const HALF: [DType; 2] = [DType(5), DType(15)];
const EMBEDDING: &str = "Embedding";
const MIN_VOCABULARY: i64 = 1024;
/// Of parameters with that many rows: the embedding and the head. A hidden layer has more.
const MAX_MATRICES: usize = 2;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let vocabularies = vocabularies(snapshot);
    if vocabularies.is_empty() {
        return Vec::new();
    }
    let is_logits = |row: &&TensorRow, dtypes: &[DType]| {
        let shape = row.tensor.shape.as_deref().unwrap_or_default();
        shape.len() >= 2
            && shape.last().is_some_and(|last| vocabularies.contains(last))
            && dtypes.contains(&row.tensor.dtype)
            && row.tensor.device.is_some_and(|device| device.is_cuda())
    };
    let originals: Vec<&TensorRow> =
        snapshot.tensors.iter().filter(|row| is_logits(row, &HALF)).collect();
    let found = held_storages(snapshot).into_iter().filter_map(|(group, held)| {
        if group.category != TensorCategory::Other || is_garbage(snapshot, &group) {
            return None;
        }
        let mut rows = group.tensors.iter().map(|&row| &snapshot.tensors[row]);
        let copy = rows.find(|row| is_logits(row, &[FLOAT32]))?;
        let has_shape = |row: &&&TensorRow| row.tensor.shape == copy.tensor.shape;
        let original = originals.iter().find(has_shape)?;
        let name = |row: &TensorRow| row.names.first().map_or("a tensor", |name| name).to_owned();
        let problem = format!(
            "{} is {} of logits in float32, beside {} in {}",
            name(copy),
            bytes(held),
            name(original),
            original.tensor.dtype
        );
        let found = Finding::new("logits in float32", held, problem)
            .change("compute the loss from these, or convert a part of the tokens at a time")
            .frees(held);
        (held >= MIN_BYTES).then_some(found)
    });
    found.collect()
}

/// Sizes of embeddings that no hidden layer has.
fn vocabularies(snapshot: &OwnershipSnapshot) -> BTreeSet<i64> {
    let rows_of = |row: &TensorRow| match row.tensor.shape.as_deref() {
        Some(&[rows, _]) if rows >= MIN_VOCABULARY => Some(rows),
        _ => None,
    };
    let modules = snapshot.models.iter().flat_map(|model| &model.modules);
    let embeddings: BTreeSet<u64> = modules
        .filter(|module| &*module.class == EMBEDDING)
        .flat_map(|module| &module.parameters)
        .copied()
        .collect();
    let weights =
        || snapshot.tensors.iter().filter(|row| row.category == TensorCategory::Parameter);
    let of_embeddings = weights()
        .filter(|row| row.object.is_some_and(|object| embeddings.contains(&object)))
        .filter_map(rows_of);
    let is_vocabulary =
        |size: &i64| weights().filter(|row| rows_of(row) == Some(*size)).count() <= MAX_MATRICES;
    of_embeddings.filter(is_vocabulary).collect()
}
