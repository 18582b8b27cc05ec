//! What a first reading of a recording finds out for the second.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::analysis::followed::DecodedDeltas;
use crate::model::CudaIndex;

/// The decoded sites of a recording's counter deltas, by device. Who made a delta is known best
/// after all of them: a recording is read twice. Empty if no allocator was followed.
#[derive(Debug, Clone, Default)]
pub struct FirstReading(pub(super) BTreeMap<CudaIndex, Arc<DecodedDeltas>>);
