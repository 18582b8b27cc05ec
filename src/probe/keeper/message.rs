//! Messages with descriptors between memspy and its keeper.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::model::ProbeBackend;
use crate::probe::placement::{Placement, ProbeAction, SampledWords};
use crate::probe::syscall::ProbePoint;

/// The kernel allows 253 in one message.
const MAX_DESCRIPTORS: usize = 250;
const MAX_BYTES: usize = 1 << 14;
/// The driver has some forty.
const MAX_POINTS: usize = 512;

pub(super) enum ProbeRequest {
    /// `number` names the keeper's copies of the descriptors.
    Place {
        number: u32,
        pid: u32,
        points: Vec<ProbePoint>,
        action: RequestedAction,
    },
    End {
        number: u32,
    },
    Check,
}

pub(super) enum RequestedAction {
    Run { way: ProbeBackend, at_return: bool },
    Sample(SampledWords),
}

const PLACE: u64 = 1;
const END: u64 = 2;
const CHECK: u64 = 3;
const MULTI: u64 = 1;
const PERF: u64 = 2;
const SAMPLE: u64 = 3;

impl ProbeRequest {
    /// `None`: too many points.
    pub(super) fn place<'a>(
        number: u32,
        placement: &Placement<'a>,
    ) -> Option<(Vec<u8>, Vec<BorrowedFd<'a>>)> {
        if placement.points.len() > MAX_POINTS {
            return None;
        }
        let mut descriptors = vec![placement.file];
        let action = match placement.action {
            ProbeAction::Run { way, program, at_return } => {
                descriptors.push(program);
                let way = if way == ProbeBackend::UprobeMulti { MULTI } else { PERF };
                [way, u64::from(at_return)]
            }
            ProbeAction::Sample(words) => [SAMPLE | u64::from(words.stack) << 32, words.registers],
        };
        let mut words = vec![PLACE, number.into(), placement.pid.into()];
        words.extend(action);
        words.extend(placement.points.iter().flat_map(|at| [at.offset, at.semaphore, at.cookie]));
        Some((bytes(&words), descriptors))
    }

    pub(super) fn end(number: u32) -> Vec<u8> {
        bytes(&[END, number.into()])
    }

    pub(super) fn check() -> Vec<u8> {
        bytes(&[CHECK])
    }

    pub(super) fn read(bytes: &[u8]) -> Option<ProbeRequest> {
        let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
        let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
        match words[..] {
            [PLACE, number, pid, how, with, ref points @ ..] => {
                let action = match how & 0xffff_ffff {
                    MULTI => RequestedAction::Run {
                        way: ProbeBackend::UprobeMulti,
                        at_return: with != 0,
                    },
                    PERF => RequestedAction::Run {
                        way: ProbeBackend::PerfUprobes,
                        at_return: with != 0,
                    },
                    SAMPLE => RequestedAction::Sample(SampledWords {
                        registers: with,
                        stack: how >> 32 != 0,
                    }),
                    _ => return None,
                };
                let point = |of: &[u64]| match *of {
                    [offset, semaphore, cookie] => Some(ProbePoint { offset, semaphore, cookie }),
                    _ => None,
                };
                Some(ProbeRequest::Place {
                    number: number.try_into().ok()?,
                    pid: pid.try_into().ok()?,
                    points: points.chunks(3).map(point).collect::<Option<_>>()?,
                    action,
                })
            }
            [END, number] => Some(ProbeRequest::End { number: number.try_into().ok()? }),
            [CHECK] => Some(ProbeRequest::Check),
            _ => None,
        }
    }
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Each message has the total number of descriptors.
pub(super) fn answer(to: impl AsFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let total = (descriptors.len() as u64).to_le_bytes();
    if descriptors.is_empty() {
        return send(to, &total, &[]);
    }
    descriptors.chunks(MAX_DESCRIPTORS).try_for_each(|some| send(to.as_fd(), &total, some))
}

pub(super) fn send(to: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(bytes)];
    retry_on_intr(|| sendmsg(&to, &parts, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

pub(super) struct MessageReader<'a> {
    from: BorrowedFd<'a>,
    buffer: Vec<u8>,
}

impl MessageReader<'_> {
    pub(super) fn new(from: BorrowedFd<'_>) -> MessageReader<'_> {
        MessageReader { from, buffer: vec![0; MAX_BYTES] }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<(&[u8], Vec<OwnedFd>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut self.buffer)];
            recvmsg(self.from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                descriptors.extend(some);
            }
        }
        let bytes = self.buffer.get(..got.bytes).unwrap_or_default();
        Ok((!bytes.is_empty()).then_some((bytes, descriptors)))
    }

    /// `None` is a refusal.
    pub(super) fn descriptors(&mut self) -> io::Result<Option<Vec<OwnedFd>>> {
        let mut all = Vec::new();
        loop {
            let Some((bytes, some)) = self.next()? else { return Ok(None) };
            let total = bytes.try_into().map(u64::from_le_bytes).map_err(io::Error::other)?;
            let is_over = some.is_empty();
            all.extend(some);
            if all.len() as u64 >= total {
                return Ok(Some(all));
            }
            if is_over {
                // The kernel drops descriptors above this process's limit.
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_request_reads_back() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let points = [
            ProbePoint { offset: 0x1234, semaphore: 0, cookie: 7 },
            ProbePoint { offset: u64::MAX, semaphore: 0x40, cookie: 0 },
        ];
        let ask =
            |action| Placement { file: file.as_fd(), points: &points, pid: 4_194_304, action };
        for (way, at_return) in
            [(ProbeBackend::UprobeMulti, true), (ProbeBackend::PerfUprobes, false)]
        {
            let placement = ask(ProbeAction::Run { way, program: file.as_fd(), at_return });
            let (bytes, descriptors) = ProbeRequest::place(9, &placement).unwrap();
            assert_eq!(descriptors.len(), 2);
            match ProbeRequest::read(&bytes).unwrap() {
                ProbeRequest::Place {
                    number: 9,
                    pid: 4_194_304,
                    points: read,
                    action: RequestedAction::Run { way: read_way, at_return: read_at },
                } => {
                    assert_eq!(read, points);
                    assert_eq!((read_way, read_at), (way, at_return));
                }
                _ => panic!("another request"),
            }
        }
        let words = SampledWords { registers: 0x8000_0000_0000_0081, stack: true };
        let (bytes, descriptors) =
            ProbeRequest::place(0, &ask(ProbeAction::Sample(words))).unwrap();
        assert_eq!(descriptors.len(), 1);
        assert!(matches!(
            ProbeRequest::read(&bytes).unwrap(),
            ProbeRequest::Place { action: RequestedAction::Sample(read), .. } if read == words
        ));
        assert!(matches!(
            ProbeRequest::read(&ProbeRequest::end(3)),
            Some(ProbeRequest::End { number: 3 })
        ));
        assert!(ProbeRequest::read(&bytes[..bytes.len() - 8]).is_none());
        assert!(ProbeRequest::read(b"").is_none());
    }

    #[test]
    fn many_descriptors_use_several_messages() {
        let (ours, theirs) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        let many = vec![file.as_fd(); 2 * MAX_DESCRIPTORS + 1];
        answer(&theirs, &many).unwrap();
        answer(&theirs, &[]).unwrap();
        drop(theirs);
        let mut reader = MessageReader::new(ours.as_fd());
        let all = reader.descriptors().unwrap().unwrap();
        assert_eq!(all.len(), many.len());
        assert!(all.iter().all(|one| one.as_raw_fd() != file.as_raw_fd()));
        assert_eq!(reader.descriptors().unwrap().map(|none| none.len()), Some(0));
        assert!(reader.descriptors().unwrap().is_none());
    }
}
