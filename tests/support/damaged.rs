//! Memory with damaged bytes.

use memspy::target::{AddressRange, Memory, MemoryError};

/// Changes some bytes and makes some addresses unreadable, always the same ones.
pub struct Damaged<M> {
    pub inner: M,
    pub seed: u64,
    /// One span in this many has a wrong byte in every kilobyte; one in four times as many is
    /// unreadable.
    pub one_in: u64,
}

impl<M: Memory> Memory for Damaged<M> {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        self.inner.read_spans(spans, out)?;
        let mut start = 0;
        for (index, &span) in spans.iter().enumerate() {
            let mut state = self.seed ^ span.addr.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            random();
            if random().is_multiple_of(4 * self.one_in) {
                return Err(MemoryError::Fault { span, index });
            }
            let bytes =
                if random().is_multiple_of(self.one_in) { span.len.div_ceil(1024) } else { 0 };
            for _ in 0..bytes {
                let place = random() as usize % span.len.max(1);
                out[start + place] = random() as u8;
            }
            start += span.len;
        }
        Ok(())
    }
}
