//! Reads PyTorch's out-of-memory message.

/// Bytes requested ("Tried to allocate 20.00 GiB"), to hundredths of a unit: the request to the
/// driver, of 2 MiB, 20 MiB or a multiple of 2 MiB (`format_size`, `get_allocation_size` in
/// c10/cuda/CUDACachingAllocator.cpp).
pub fn requested_bytes(text: &str) -> Option<u64> {
    let (_, rest) = text.split_once("Tried to allocate ")?;
    let mut words = rest.split_whitespace();
    size(words.next()?, words.next()?)
}

/// Bytes free on the device at the failure ("of which 7.19 MiB is free"; up to PyTorch 2.0 "; 7.19
/// MiB free;").
pub fn free_on_device(text: &str) -> Option<u64> {
    let before = text.split_once(" is free").or_else(|| text.split_once(" free;"))?.0;
    let mut words = before.split_whitespace().rev();
    let unit = words.next()?;
    size(words.next()?, unit)
}

fn size(number: &str, unit: &str) -> Option<u64> {
    let number: f64 = number.parse().ok()?;
    let shift = match unit.trim_end_matches(['.', ',', ';']) {
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
    fn sizes_are_read_from_messages_of_all_versions() {
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

    #[test]
    fn free_memory_is_read_from_the_error_message() {
        let now = "GPU 0 has a total capacity of 1.46 GiB of which 7.50 MiB is free. Including";
        assert_eq!(free_on_device(now), Some(15 << 19));
        let old = "(GPU 0; 4.00 GiB total capacity; 3.00 GiB already allocated; 512 bytes free; 3";
        assert_eq!(free_on_device(old), Some(512));
        assert_eq!(free_on_device("CUDA error: out of memory"), None);
        assert_eq!(free_on_device(" is free"), None);
    }
}
