//! What PyTorch's out-of-memory error says of itself.

/// Bytes that the error's words name ("Tried to allocate 20.00 GiB"): rounded to the hundredth of a unit, and of what the allocator
/// asked the driver for, which is 2 MiB, 20 MiB or a multiple of 2 MiB (`format_size`, `get_allocation_size` in
/// c10/cuda/CUDACachingAllocator.cpp). `None` where they name none.
pub fn requested_bytes(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("Tried to allocate ")?;
    let mut words = rest.split_whitespace();
    let number: f64 = words.next()?.parse().ok()?;
    let unit = words.next()?.trim_end_matches(['.', ',', ';']);
    let shift = match unit {
        "bytes" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    let bytes = number * 2f64.powi(shift);
    (0.0..1e18).contains(&bytes).then_some(bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_out_of_the_words_of_every_version() {
        for (text, bytes) in [
            ("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total", Some(20 << 30)),
            ("CUDA out of memory. Tried to allocate 2.50 MiB (GPU 0; 4.00 GiB", Some(5 << 19)),
            ("Caught OutOfMemoryError in replica 1.\nTried to allocate 512 bytes.", Some(512)),
            ("CUDA out of memory. Tried to allocate more than 1EB memory.", None),
            ("CUDA out of memory. Tried to allocate -1.00 GiB.", None),
            ("CUDA out of memory. Tried to allocate NaN GiB.", None),
            ("Tried to allocate 1.00", None),
            ("CUDA error: out of memory", None),
        ] {
            assert_eq!(requested_bytes(text), bytes, "{text}");
        }
    }
}
