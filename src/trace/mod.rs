//! Writes records to a file and reads the same records back.
//!
//! Turns records into the bytes of a file, and back.
//! May import `model`, `files` and `std`. Only this room uses bincode, zstd, crc32c and thiserror.
//! Never knows the clock, the target or the meaning of records, and never invents a record.
//! Start reading at the format below, then at [`TraceWriter`] and [`TraceReader`].
//!
//! # The format, version 1
//!
//! All numbers are little-endian. A file is a head and any number of blocks:
//!
//! ```text
//! file    = "MEMSPY\r\n"  version:u16  block*
//! block   = length:u32  crc32c:u32  body
//! body    = one zstd frame of `length` bytes that states its content size; unpacked it is:
//! payload = record*
//! record  = tag:u8  length:number  fields of `length` bytes
//! ```
//!
//! * `crc32c` covers the body. A body has at most 65 MiB, a payload at most 64 MiB; a larger size
//!   is damage.
//! * Few bytes of a body can unpack to a large payload, and that to more memory. So a reader also
//!   refuses samples of more threads than were described plus 65,536 (whose description may be
//!   lost); snapshots and keyframes of more blocks than the file has bytes plus 1,048,576; sizes
//!   and counts of one device beyond 2^50, times beyond 2^60, totals beyond 2^61, and memory that
//!   ends beyond 2^64. Users that keep more, such as reports, bound their own memory and work.
//! * A `number` and all fields are encoded by bincode 2, `config::standard()`: one byte below 251;
//!   else 251, 252 or 253 followed by a u16, u32 or u64. A string is its length in bytes and its
//!   UTF-8; an option is 0, or 1 and the value; an enum is the number of its variant and the
//!   variant's fields.
//! * The records of a block may cost their reader work and memory only in proportion to the block's
//!   bytes (see `spending.rs`). No recorder exceeds that. The rest of a block that does is damage.
//! * A reader skips records with an unknown tag, and unknown bytes at the end of a record. So a
//!   later writer may add both without a new version.
//! * Blocks can be unpacked and read in any order, except that they use definitions from earlier
//!   blocks. Coding by difference restarts in every block.
//! * A writer writes a block in one piece after a second of recorded time or 256 KiB. A recorder
//!   writes its first blocks sooner: its first observation at once, then after 0.1, 0.2, 0.4 and
//!   0.8 s. Whatever kills it, every block but the last is whole.
//!
//! ## Records
//!
//! `time` is a zigzag number (0, -1, 1, -2 are 0, 1, 2, 3): nanoseconds since the previous time in
//! this block, at first since the head's. A sample's `time` is relative to the previous sample's
//! time plus the head's `period`, if this block has a previous sample. `opt` is an option.
//!
//! * 0 head, first in every block: block number from 0; records in all earlier blocks; last time
//!   before; period (ns between samples; 0 unknown); functions, frames, stacks defined before; a
//!   random number, the same in all blocks of a recording and of its segments.
//! * 1 start: memspy version, pid, host, list of command words, opt directory, unix nanoseconds,
//!   rate, opt rank.
//! * 2 runtime: time, opt python, opt torch, allocator (enum: not loaded, not initialised, native,
//!   cudaMallocAsync, pluggable + name, unknown + text).
//! * 3 function: name, file, first line, last line; of compiled code only: 1, and the file is the
//!   library's name.
//! * 4 frame: function, line.
//! * 5 stack: opt parent stack, frame.
//! * 6 thread: thread, opt OS id, Python id, opt name, main (0 or 1).
//! * 7 source: function, first line, text.
//! * 8 device: opt CUDA index, opt NVML index, opt UUID, opt PCI bus id, opt name, opt bytes.
//! * 9 sample: time, number of threads, for each: thread (zigzag difference from the previous),
//!   stack, flags.
//! * 10 sample, same threads as the previous one: time, number of changes, for each: unchanged
//!   threads skipped, stack (zigzag difference from this thread's previous one), flags.
//! * 11 sample, equal to the previous one: time.
//! * 12 counters: time, device, presence, masks, differences (below).
//! * 13 snapshot: time, device, retries, consistency (0, or 1 and both sums folded), segment edits
//!   (below).
//! * 14 usage: time, NVML index, total, used, free, opt reserved, process (enum: bytes, unknown +
//!   text).
//! * 15 missed: time, reader (enum: stacks, counters, blocks, GPU, events, owners), why (enum:
//!   torn, late, failed + text), count.
//! * 16 end: time, reason (enum: duration, interrupted, target exited, target executed, failed +
//!   text, condition + text, condition of another process: texts of the condition and of the
//!   process), ticks, late, stacks, torn, consistent snapshots, other snapshots, opt exact totals
//!   (allocations, frees, lost, truncated, borrowed, faulted, unknown, without Python), opt follow
//!   totals (polls, polling ns, processor ns, slow poll ns, deltas, single deltas, steady deltas,
//!   held back); only where there are any: allocations with frames of compiled code, and those that
//!   lost them.
//! * 17 site: site, thread, opt stack, source (one byte: own, backward, borrowed, no Python, not
//!   taken, unknown, sampled), truncated (0 or 1), opt node, opt forward stack; only where frames
//!   of compiled code were requested: opt stack with them (no stack: they were lost).
//! * 18 exact: time, way (enum: `uprobe_multi`, perf uprobes, perf samples), frees (enum: events,
//!   stacks, snapshots), stacks from (bytes), stacks every (bytes), backward lines (0 or 1), list
//!   of probes, list of what is not covered, whether allocations and frees mark the backward pass,
//!   whether no device had an allocator yet (both 0 or 1); only where frames of compiled code are
//!   recorded: the bytes from which they are.
//! * 19 events: number of events, lengths of columns, columns (below).
//! * 20 reconciled: time, device, allocations (zigzag), opt frees (zigzag), requested bytes
//!   (zigzag).
//! * 21 owners: time, opt pause (ns); for each device: device, allocated, rounding, in no tensor,
//!   for each owner: category (0 parameters, 1 buffers, 2 gradients, 3 optimizer state, 4 saved for
//!   backward, 5 other tensors), owner, bytes, count; how long before (ns) the process was stopped
//!   and, for each block without a name: index of its device, opt index of its owner, address,
//!   bytes; for each device opt bytes of other tensors that are outputs of autograd nodes; in the
//!   first of a recording, for each allocated block: index of its device, address less the previous
//!   one (wrapping), bytes and, for each owner in it, its index and bytes.
//! * 22 step: time, training steps done or the value of the loop's variable; opt value of the
//!   epoch's variable, clock (enum: optimizer, variable, Trainer's `global_step`, learning-rate
//!   scheduler's `last_epoch`), opt longest time (ns) since it was done (0: exactly between the
//!   events before and after it), whether the variable is gone (0 or 1).
//! * 23 keyframe: time, origins, memory (below): the state that replaces a dropped beginning.
//! * 24 triggered: time, condition, what was seen.
//! * 25 thrown: time, opt error: opt thread, opt stack, the error's words.
//! * 26 gap: time (its end), begin (ns since the recording began), what is missing.
//! * 27 counter deltas: number of deltas, lengths of columns, columns (below).
//! * 28 counter deltas with addresses (below).
//!
//! A block with another recording's number is damage; so are blocks and records missing by their
//! numbers. Traces written before heads had a random number are still read; a mixture of two of
//! these recordings may go unnoticed.
//!
//! Functions, frames and stacks are numbered in the order of their records, starting with the
//! numbers in the block's head; each uses only smaller numbers of its own kind. A thread's number
//! is written: the next one, or a known one whose description it replaces. Thread flags are one
//! byte: bit 0 the GIL, bits 1 and up the activity (active, idle, unknown). A site's number is
//! written and is always the next one. The end has a block of its own and closes the file: it is
//! the trailer. A file without it ended abruptly.
//!
//! **Folding** makes multiples of 512 small: an unsigned number is rotated right by 9 bits; a
//! signed one becomes the zigzag of its 512ths (rounded down) in the low 55 bits, its remainder
//! above.
//!
//! **Counters** are 122 signed numbers: nine metrics of twelve (pools all, small, large; in each
//! current, peak, allocated, freed), the four of the oversize allocations and of the oversize
//! segments, then retries, out-of-memory errors, and the optional stream syncs, device allocations,
//! device frees and `max_split_size` (0 when absent; one byte `presence` has a bit for each of
//! these four). Each is written as `now - before - expected`, wrapping, where `before` are the
//! device's previous counters in this block, or zeros. Inside a metric the order is allocated and
//! freed of small, large and all; then current of small, large, all; then peak of small, large,
//! all. The 122 in this order make eleven rows of twelve, the last shorter. The expected difference
//! is:
//!
//! * *allocated* and *freed* of all: the sum of those of small and large;
//! * both in small and large of active, active bytes and requested bytes: that of allocation,
//!   allocated bytes and allocated bytes;
//! * *freed* in small and large of inactive-split bytes: that of its allocated plus the growth
//!   (allocated less freed) of active bytes less the growth of reserved bytes;
//! * *freed* in small and large elsewhere: that of allocated;
//! * *current*: that of allocated less that of freed;
//! * *peak*: what makes it the greater of the previous peak and current now;
//! * device allocations and frees: those of the segment metric's allocated and freed of all;
//! * else 0.
//!
//! Written are a number with a bit for each row that is not all 0 (the first row the lowest bit);
//! for each such row a number with a bit for each of its numbers that is not 0; then these, folded
//! in allocated, reserved, active and inactive-split bytes, else zigzag.
//!
//! **Snapshots** are edits of the device's previous snapshot in this block, or of an empty one. An
//! edit is `count << 2 | kind`, and 0 ends the edits. Kind 0 keeps and 1 drops the next `count`
//! segments of the previous snapshot, 2 adds `count` new ones, 3 changes the next `count`. A new or
//! changed segment is one byte of flags (1 small, 2 expandable, 4 the fields up to the blocks are
//! unchanged and left out, 8 of a pool no longer in use, 16 it has an unusual granule), its address
//! less the end of the previous segment in the new snapshot (folded; at first 0), size (folded),
//! stream, both parts of its pool, and the granule if it is unusual (usual are 0 or, if expandable,
//! 2 MiB for small and 20 MiB for others); then edits of its blocks: kinds 0, 1 and 2 as above. A
//! new block is one byte of flags (bits 0 and 1 the state: allocated, pending free, inactive; 4 a
//! gap follows; 8 nothing was requested), size (folded), the gap to the end of the previous block
//! or the segment's address (folded) if there is one, and `size - requested` (zigzag) unless
//! nothing was.
//!
//! **Events** are seven columns, each with one field of all events in their order: kinds, times,
//! places, sites, addresses, sizes, levels. First comes the number of events, at most 65,536; then
//! the length in bytes of each column but the first; then the columns. All but kinds are numbers:
//!
//! * Kinds: a byte for each event. Bits 0 to 2 are the kind: 0 allocated by PyTorch, 1 allocated
//!   otherwise, 2 freed by PyTorch, 3 freed otherwise, 4 failed, 5 marked. Bit 3: it has a site.
//!   Only in kind 2, bit 4: by a thread of the autograd engine that evaluated a node. Only in kind
//!   0, bit 4: it has levels; with these, bit 5: the peak is written, bit 6: reserved and active
//!   are written; and bit 7: its device is that of the last event of kind 0 in this block (before
//!   the first, device 0).
//! * Times: `time`, of every event.
//! * Places: in kind 0 without bit 7, the device; in kind 1 an arena; in kind 3 an arena's number;
//!   in kind 4 an arena, then the driver's `CUresult`; in kind 5 the mark (0 context created, 1
//!   module, 2 library loaded). An arena is its number (0 PyTorch, 1 driver, 2 physical, 3 mapping,
//!   4 managed, 5 page-locked host), and after 0, 1 and 2 the device's number plus 1, or 0 if it is
//!   unknown. What is freed of arena 4 says 1.
//! * Sites: of events that have one.
//! * Addresses, in kinds 0 to 3: less the previous one in this block, at first less 0 (signed,
//!   folded).
//! * Sizes, in kinds 0, 1 and 4: requested bytes (folded).
//! * Levels, of events that have them, each signed and folded, and wrapping: allocated less
//!   allocated before; if written, peak less the greater of the peak before and allocated now; if
//!   written, reserved less reserved before, and active less active before, less the growth of
//!   allocated. What is not written differs by 0. *Before* are this device's previous levels in
//!   this block, at first zeros; its number is below 1024.
//!
//! If the record goes on after the columns, it gives the bytes of the block of each event of kind
//! 0, in order: 0 unknown, 1 the requested bytes rounded up to 512, or 2 and the bytes (folded).
//!
//! **Counter deltas** are five columns, each with one field of all deltas in their order: kinds,
//! times, sizes, threads, stacks. First comes the number of deltas, at most 32,768; then the length
//! in bytes of each column but the first; then the columns. All but kinds are numbers:
//!
//! * Kinds: a byte for each delta. Bits 0 to 2 are its shape: 0 one allocation in the small pool, 1
//!   one in the large pool, 2 one free in the small pool, 3 one in the large pool, 4 anything. Bit
//!   3: its device is that of the previous delta in this block (before the first, device 0). Bit 4:
//!   live bytes are written. Bit 5: the counters were torn. Bit 6: other threads are possible. Bit
//!   7: the totals were reset.
//! * Times: `time` of the poll after; the time since the poll before.
//! * Sizes: the device without bit 3; then in kinds 0 to 3 the bytes of the block (folded) and
//!   these less the requested bytes (zigzag); in kind 4, for the small and then the large pool,
//!   allocations, frees (both zigzag), bytes allocated, bytes freed (both signed and folded), bytes
//!   requested by the allocations and by what was freed (both zigzag); then, with bit 4, live bytes
//!   of the small and of the large pool less the expected ones (signed and folded). Expected are
//!   this device's previous ones in this block, at first 0, plus bytes allocated, less bytes freed.
//!   A device's number is below 1024.
//! * Threads: a byte with the number of threads, at most 8; for each its number and a byte of
//!   flags: bits 0 and 1 its stack before the delta (0 not read, 1 torn, 2 no frames, 3 whole),
//!   bits 2 and 3 the same after it, bit 4 it held the allocator's lock, bit 5 both stacks are
//!   whole and equal, and the next column has only the first.
//! * Stacks: of each whole stack its number, less the previous one in this block, at first less 0
//!   (zigzag).
//!
//! **Counter deltas with addresses** are the same, and after the columns: the number of deltas
//! whose addresses were read; the length in bytes of each of the following three parts; then the
//! parts, all of numbers:
//!
//! * Counts: for each of these deltas, how many without addresses precede it since the previous one
//!   with them, in how many deltas the addresses were allocated and freed, how many were allocated,
//!   at most 4096, and how many were freed, as many at most.
//! * Addresses: those allocated, then those freed, each less the previous one in this record, at
//!   first less 0 (signed, folded).
//! * Sizes: of each allocated one its bytes (folded), and these less the requested bytes (zigzag).
//!
//! **Keyframes**: a recorder that keeps only the last minutes writes its trace as segments, each a
//! whole trace, and drops the oldest. A segment begins with the state at its first moment: start,
//! runtime, devices, the last observation of each; then this record, with the live blocks and their
//! origins; then the observations. The origins are their number and for each a kind: 0 from before
//! the recording, 1 found without an event, 2 its site was lost, 3 its stack was not taken, 4
//! followed by a site, 5 by the duration of its delta (0 unknown, else plus 1), a number of shares
//! and for each 0 or the thread plus 1, its stack unless 0, and the weight, 6 from before and
//! followed by its owners: their number, and for each the number of steps of its path, each with
//! its length in bytes, and the weight. The memory is a number of kinds, and for each: arena (as in
//! places above), time of the last snapshot (0 none, else plus 1), 0 or 1 and four levels (zigzag),
//! bytes freed since then, number of blocks; then seven columns, each with one number for every
//! block: address less the previous one (signed, folded), size (folded), size less requested, size
//! less what it stands for, birth less the previous birth (all three zigzag), origin, small (0 or
//! 1).
//!
//! ## Damage
//!
//! A block whose checksum does not match its bytes, or whose length is impossible or reaches beyond
//! the file's end, is damage if a good block follows. The reader then searches for the next good
//! block: every body begins with `28 B5 2F FD`, as each zstd frame does; reading resumes where the
//! eight bytes before these state a length and a checksum that match. If none follows, a block that
//! reaches beyond the end is unfinished, as in every recording that was killed or still runs; other
//! bytes are damage. The search gives up when false block starts have cost 64 MiB plus four times
//! the file. Block numbers and record counts in the heads say how much was lost.
//!
//! Definitions in a lost block stay unknown: definitions and samples that use them are left out and
//! counted. An event that uses a lost site stays, without a site, because it still allocated or
//! freed. So does a counter delta, without the lost threads and stacks. The reader gives later
//! definitions smaller numbers, so that numbers have no gaps. Names are never wrong.

mod block;
mod error;
mod id_map;
mod join;
mod limits;
mod read_ahead;
mod reader;
mod renumberer;
mod ring;
mod sequence;
mod sniff;
mod spending;
mod summary;
mod window;
mod wire;
mod writer;

pub use error::{CreateError, ReadError};
pub use join::{JoinResult, join, segments};
pub use reader::TraceReader;
pub use renumberer::{DefinitionTables, Renumberer};
pub use ring::{Retention, RetentionLimit, TraceRing};
pub use summary::{ReplayProgress, ReplaySummary, TraceDamage};
pub use wire::v1::encode::RejectedRecord;
pub use writer::{TraceWriter, WrittenTrace};
