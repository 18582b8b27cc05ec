//! Reads a snapshot's tensors, but not torn ones that contradict the allocator's blocks.

use std::cell::{Cell, RefCell};

use rustc_hash::FxHashSet;

use crate::model::TensorInfo;
use crate::ownership::InUse;
use crate::target::{Addr, Memory as _, PageCache};
use crate::torch::TensorDecoder;

pub(super) struct TensorSource<'h, 'a> {
    pub(super) decoder: &'h TensorDecoder<'a>,
    memory: &'h PageCache,
    in_use: &'h InUse,
    /// The process runs: nothing says what is torn.
    is_running: bool,
    /// Tensors that were read.
    misfits: Cell<u64>,
    torn: Cell<u64>,
    /// `TensorImpl`s that changed while they were read, but may be true.
    changed: RefCell<FxHashSet<u64>>,
}

impl<'h, 'a> TensorSource<'h, 'a> {
    pub(super) fn new(
        decoder: &'h TensorDecoder<'a>,
        memory: &'h PageCache,
        in_use: &'h InUse,
        is_running: bool,
    ) -> TensorSource<'h, 'a> {
        TensorSource {
            decoder,
            memory,
            in_use,
            is_running,
            misfits: Cell::new(0),
            torn: Cell::new(0),
            changed: RefCell::default(),
        }
    }

    /// No more is read: rows, too, take memory.
    pub(super) fn has_no_room(&self) -> bool {
        self.memory.has_no_room()
    }

    /// `None`: no tensor, or torn, or without room.
    pub(super) fn tensor(&self, at: Addr) -> Option<TensorInfo> {
        if self.has_no_room() {
            return None;
        }
        let torn_before = self.memory.torn_reads();
        let tensor = self.decoder.tensor(at);
        let is_torn = self.memory.torn_reads() > torn_before;
        if !is_torn && !self.is_running {
            return tensor;
        }
        let sound = tensor.filter(|tensor| self.is_sound(tensor));
        self.torn.set(self.torn.get() + u64::from(sound.is_none()));
        if is_torn {
            self.changed.borrow_mut().extend(sound.as_ref().map(|tensor| tensor.at));
        }
        sound
    }

    /// Of a Python tensor; also counts one whose fields contradict each other.
    pub(super) fn of_python(&self, at: Addr) -> Option<TensorInfo> {
        let unknown = || (self.torn.get(), self.memory.refused());
        let unknown_before = unknown();
        let tensor = self.tensor(at);
        let fits = tensor.as_ref().is_some_and(|tensor| self.decoder.fits(tensor));
        let misfits = u64::from(!fits && unknown() == unknown_before);
        self.misfits.set(self.misfits.get() + misfits);
        tensor
    }

    /// Python tensors with contradictory fields.
    pub(super) fn misfits(&self) -> u64 {
        self.misfits.get()
    }

    /// Tensors left out, as they changed while they were read.
    pub(super) fn torn(&self) -> u64 {
        self.torn.get()
    }

    /// Whether it may be of another moment than the snapshot.
    pub(super) fn is_torn(&self, tensor: u64) -> bool {
        self.changed.borrow().contains(&tensor)
    }

    /// Whether what was read of a torn tensor may be true.
    fn is_sound(&self, tensor: &TensorInfo) -> bool {
        if !self.decoder.fits(tensor) {
            return false;
        }
        let (Some(storage), Some(device)) = (tensor.storage, tensor.device) else { return true };
        let Some(bytes) = storage.bytes else { return true };
        let Some(needed) = extent(tensor) else { return false };
        let most = match self.in_use.room(device, storage.data) {
            // Newer than the blocks, or of another allocator.
            Some(0) if self.is_running => needed,
            Some(room) => room,
            None if self.is_running && !device.is_cuda() => return true,
            // Without blocks: one that is seen whole.
            None => needed,
        };
        (needed..=most).contains(&bytes)
    }
}

/// Bytes from the storage's first one to the tensor's last one.
fn extent(tensor: &TensorInfo) -> Option<u64> {
    let (shape, strides) = (tensor.shape.as_ref()?, tensor.strides.as_ref()?);
    if shape.contains(&0) {
        return Some(0);
    }
    let steps = shape
        .iter()
        .zip(strides)
        .try_fold(0i64, |sum, (size, stride)| sum.checked_add((size - 1).checked_mul(*stride)?))?;
    let elements = steps.checked_add(tensor.offset)?.checked_add(1)?;
    u64::try_from(elements).ok()?.checked_mul(tensor.dtype.bytes()?)
}
