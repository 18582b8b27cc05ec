//! Reads many places of another process per system call.

use std::fmt;
use std::io::IoSliceMut;
use std::ops::{Add, Sub};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::process::running_thread;

/// An address in the target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Addr(pub u64);

impl Addr {
    /// Whether it is canonical and not in the first page.
    pub fn is_plausible(self) -> bool {
        (0x1000..1 << 47).contains(&self.0)
    }
}

impl Add<u64> for Addr {
    type Output = Addr;
    fn add(self, bytes: u64) -> Addr {
        Addr(self.0.wrapping_add(bytes))
    }
}

impl Sub<u64> for Addr {
    type Output = Addr;
    fn sub(self, bytes: u64) -> Addr {
        Addr(self.0.wrapping_sub(bytes))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A range of the target's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AddressRange {
    pub addr: Addr,
    pub len: usize,
}

/// Why memory could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum MemoryError {
    #[error("{} bytes at {} of the target are not readable", span.len, span.addr)]
    Fault { span: AddressRange, index: usize },
    #[error("the target process no longer exists")]
    Gone,
    #[error("permission to read the target's memory was denied")]
    Denied,
    #[error("process_vm_readv failed: {0}")]
    Os(Errno),
    #[error("the memory at {0} of the target was not copied while it was stopped")]
    Closed(Addr),
    #[error("the time for the snapshot is used up")]
    TimeUp,
    #[error("the memory for the snapshot is used up")]
    OutOfRoom,
}

impl MemoryError {
    /// Whether a limit prevented the read: the content is unknown.
    pub fn is_limit(&self) -> bool {
        matches!(self, MemoryError::Closed(_) | MemoryError::TimeUp | MemoryError::OutOfRoom)
    }
}

/// Memory of a live process, or captured.
pub trait Memory: Send + Sync {
    /// Reads `spans` in order into `out`, which has the sum of their lengths.
    ///
    /// The target runs meanwhile: each span is copied slightly later than the one before.
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError>;

    /// Reads so far of bytes that may be of another moment than the rest.
    fn torn_reads(&self) -> u64 {
        0
    }

    /// Fills `out` from `addr` on.
    fn read(&self, addr: Addr, out: &mut [u8]) -> Result<(), MemoryError> {
        self.read_spans(&[AddressRange { addr, len: out.len() }], out)
    }

    /// Fills each part from its own address on.
    fn read_parts(&self, parts: &mut [(Addr, &mut [u8])]) -> Result<(), MemoryError> {
        parts.iter_mut().try_for_each(|(addr, out)| self.read(*addr, out))
    }
}

impl dyn Memory + '_ {
    /// Reads `N` bytes.
    pub fn bytes<const N: usize>(&self, addr: Addr) -> Result<[u8; N], MemoryError> {
        let mut out = [0; N];
        self.read(addr, &mut out)?;
        Ok(out)
    }

    /// Reads `len` bytes.
    pub fn vec(&self, addr: Addr, len: usize) -> Result<Vec<u8>, MemoryError> {
        let mut out = vec![0; len];
        self.read(addr, &mut out)?;
        Ok(out)
    }

    /// Reads `len` bytes, or up to the first unreadable page.
    pub fn vec_up_to(&self, addr: Addr, len: usize) -> Vec<u8> {
        if let Ok(whole) = self.vec(addr, len) {
            return whole;
        }
        let mut out = Vec::new();
        while out.len() < len {
            let here = addr + out.len() as u64;
            let Ok(part) = self.vec(here, left_in_page(here).min(len - out.len())) else { break };
            out.extend_from_slice(&part);
        }
        out
    }

    /// What `read` returns, and whether a part of it may be of another moment than the rest.
    pub fn noting_torn<T>(&self, read: impl FnOnce() -> T) -> (T, bool) {
        let before = self.torn_reads();
        let result = read();
        (result, self.torn_reads() > before)
    }

    /// Reads a little-endian `u64`.
    pub fn u64(&self, addr: Addr) -> Result<u64, MemoryError> {
        Ok(u64::from_le_bytes(self.bytes(addr)?))
    }

    /// Reads a little-endian `u32`.
    pub fn u32(&self, addr: Addr) -> Result<u32, MemoryError> {
        Ok(u32::from_le_bytes(self.bytes(addr)?))
    }

    /// Reads a pointer.
    pub fn pointer(&self, addr: Addr) -> Result<Addr, MemoryError> {
        Ok(Addr(self.u64(addr)?))
    }

    /// Reads up to the NUL, at most `max` bytes; replaces invalid UTF-8.
    pub fn c_string(&self, addr: Addr, max: usize) -> Result<String, MemoryError> {
        let mut text = Vec::new();
        while text.len() < max {
            // The next page may not be mapped.
            let here = addr + text.len() as u64;
            let part = self.vec(here, left_in_page(here).min(max - text.len()).min(128))?;
            match part.iter().position(|&b| b == 0) {
                Some(end) => {
                    text.extend_from_slice(&part[..end]);
                    break;
                }
                None => text.extend_from_slice(&part),
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn left_in_page(addr: Addr) -> usize {
    4096 - (addr.0 % 4096) as usize
}

/// Uses `process_vm_readv(2)`.
#[derive(Debug, Clone, Copy)]
pub struct LiveMemory {
    pid: Pid,
    /// The main thread, unless that has ended.
    through: Pid,
}

fn to_remote(span: &AddressRange) -> RemoteIoVec {
    RemoteIoVec { base: span.addr.0 as usize, len: span.len }
}

/// `UIO_MAXIOV`.
const MAX_RANGES: usize = 1024;
const RANGES_ON_STACK: usize = 64;

impl LiveMemory {
    /// The memory of process `pid`.
    pub fn new(pid: u32) -> Self {
        LiveMemory::through(pid, pid)
    }

    pub(super) fn through(pid: u32, thread: u32) -> Self {
        LiveMemory { pid: Pid::from_raw(pid as i32), through: Pid::from_raw(thread as i32) }
    }

    fn another_thread(&self) -> Option<Pid> {
        let pid = self.pid.as_raw() as u32;
        let other = Pid::from_raw(running_thread(pid)? as i32);
        (other != self.through).then_some(other)
    }

    /// `remote` describes the places of `spans`.
    fn call(
        &self,
        spans: &[AddressRange],
        first: usize,
        remote: &[RemoteIoVec],
        out: &mut [IoSliceMut<'_>],
    ) -> Result<(), MemoryError> {
        let wanted: usize = out.iter().map(|part| part.len()).sum();
        let mut read = process_vm_readv(self.through, out, remote);
        if read == Err(Errno::ESRCH)
            && let Some(other) = self.another_thread()
        {
            read = process_vm_readv(other, out, remote);
        }
        match read {
            Ok(read) if read == wanted => Ok(()),
            Ok(read) => Err(fault_after(spans, first, read)),
            Err(Errno::EFAULT) => Err(fault_after(spans, first, 0)),
            Err(Errno::ESRCH) => Err(MemoryError::Gone),
            Err(Errno::EPERM | Errno::EACCES) => Err(MemoryError::Denied),
            Err(errno) => Err(MemoryError::Os(errno)),
        }
    }
}

fn fault_after(spans: &[AddressRange], first: usize, mut read: usize) -> MemoryError {
    for (i, span) in spans.iter().enumerate() {
        if read < span.len {
            return MemoryError::Fault { span: *span, index: first + i };
        }
        read -= span.len;
    }
    MemoryError::Gone
}

impl Memory for LiveMemory {
    fn read_spans(&self, spans: &[AddressRange], mut out: &mut [u8]) -> Result<(), MemoryError> {
        for (call, spans) in spans.chunks(MAX_RANGES).enumerate() {
            let bytes: usize = spans.iter().map(|s| s.len).sum();
            if bytes == 0 {
                continue;
            }
            let Some((now, later)) = out.split_at_mut_checked(bytes) else {
                return Err(MemoryError::Os(Errno::EINVAL));
            };
            let now = &mut [IoSliceMut::new(now)];
            let first = call * MAX_RANGES;
            if spans.len() <= RANGES_ON_STACK {
                let mut remote = [RemoteIoVec { base: 0, len: 0 }; RANGES_ON_STACK];
                for (r, s) in remote.iter_mut().zip(spans) {
                    *r = to_remote(s);
                }
                self.call(spans, first, &remote[..spans.len()], now)?;
            } else {
                let remote: Vec<_> = spans.iter().map(to_remote).collect();
                self.call(spans, first, &remote, now)?;
            }
            out = later;
        }
        Ok(())
    }

    fn read_parts(&self, parts: &mut [(Addr, &mut [u8])]) -> Result<(), MemoryError> {
        for (call, parts) in parts.chunks_mut(MAX_RANGES).enumerate() {
            let span =
                |(addr, out): &(Addr, &mut [u8])| AddressRange { addr: *addr, len: out.len() };
            let spans: Vec<AddressRange> = parts.iter().map(span).collect();
            let remote: Vec<RemoteIoVec> = spans.iter().map(to_remote).collect();
            let out = parts.iter_mut().map(|(_, out)| IoSliceMut::new(out));
            self.call(&spans, call * MAX_RANGES, &remote, &mut out.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> LiveMemory {
        LiveMemory::new(std::process::id())
    }

    fn addr_of<T: ?Sized>(thing: &T) -> Addr {
        Addr(std::ptr::from_ref(thing).cast::<u8>() as u64)
    }

    #[test]
    fn many_spans_arrive_in_order_over_several_calls() {
        let numbers: Vec<u64> = (0..3000).collect();
        let spans: Vec<AddressRange> =
            numbers.iter().rev().map(|n| AddressRange { addr: addr_of(n), len: 8 }).collect();
        let mut out = vec![0; 8 * spans.len()];
        own().read_spans(&spans, &mut out).unwrap();
        let read: Vec<u64> =
            out.chunks(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
        assert!(read.iter().copied().eq((0..3000).rev()));
    }

    #[test]
    fn the_faulting_span_is_reported() {
        let number = 7u64;
        let good = AddressRange { addr: addr_of(&number), len: 8 };
        let bad = AddressRange { addr: Addr(0x1000), len: 4 };
        let error = own().read_spans(&[good, bad, good], &mut [0; 20]).unwrap_err();
        assert_eq!(error, MemoryError::Fault { span: bad, index: 1 });
    }

    #[test]
    fn a_string_ends_at_its_nul_or_at_the_limit() {
        let memory: &dyn Memory = &own();
        let text = b"na\xc3\xafve\0rest";
        assert_eq!(memory.c_string(addr_of(text), 100).unwrap(), "naïve");
        assert_eq!(memory.c_string(addr_of(text), 2).unwrap(), "na");
    }

    #[test]
    fn bytes_before_unreadable_memory_are_read() {
        /// Ends at 0x3000.
        struct TruncatedMemory;
        impl Memory for TruncatedMemory {
            fn read_spans(
                &self,
                spans: &[AddressRange],
                out: &mut [u8],
            ) -> Result<(), MemoryError> {
                out.fill(7);
                match spans.iter().position(|span| span.addr.0 + span.len as u64 > 0x3000) {
                    Some(index) => Err(MemoryError::Fault { span: spans[index], index }),
                    None => Ok(()),
                }
            }
        }
        let memory: &dyn Memory = &TruncatedMemory;
        assert_eq!(memory.vec_up_to(Addr(0x1ff0), 0x100), [7; 0x100]);
        assert_eq!(memory.vec_up_to(Addr(0x1ff0), 0x8000), [7; 0x1010]);
        assert!(memory.vec_up_to(Addr(0x3000), 8).is_empty());
    }

    #[test]
    fn a_missing_process_is_gone() {
        let error = LiveMemory::new(0x3fff_fff0).read(Addr(0x1000), &mut [0; 8]).unwrap_err();
        assert_eq!(error, MemoryError::Gone);
    }
}
