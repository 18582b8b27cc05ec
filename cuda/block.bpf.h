/* The size of a PyTorch block, looked up by its address in the allocator.
 *
 * The counters do not give it while several threads allocate: their growth between two events
 * belongs to all threads. `NativeCachingAllocator::allocated_blocks`
 * (c10/cuda/CUDACachingAllocator.cpp, torch 2.3 and later) has every allocated block, in 67
 * `ska::flat_hash_map`s. Another thread may change a map during the read: then nothing is found,
 * and a found block is trusted only if it has the address and the request of this event. */
#pragma once

#define TABLES 67          /* kNumMutexShard */
#define TABLE_BYTES 32
#define MOST_LOOKUPS 16    /* an entry's distance from its desired slot; usually 1 or 2 */

struct block_table {
	u64 entries, mask;
	signed char shift;
	u8 unused[7];
};

struct block_entry {
	signed char distance; /* -1: unused */
	u8 unused[7];
	u64 address, block;
};

/* `Block::size`, `requested_size`, and `ptr` two words later, from 0x30 on, or 0x38 since torch
 * 2.11. */
#define BLOCK_SIZE_AT 0x30
struct block_words {
	u64 words[5];
};

/* c10::twang_mix64 (c10/util/hash.h). */
static __always_inline u64 twang_mix64(u64 key)
{
	key = ~key + (key << 21);
	key ^= key >> 24;
	key = key + (key << 3) + (key << 8);
	key ^= key >> 14;
	key = key + (key << 2) + (key << 4);
	key ^= key >> 28;
	return key + (key << 31);
}

/* The size of the block at `address` with `requested` bytes; 0: unknown. */
__noinline u64 size_of_block(u32 device, u64 address, u64 requested)
{
	struct levels_at *levels = bpf_map_lookup_elem(&LEVELS, &device);
	if (!levels || !levels->tables)
		return 0;
	struct block_table table = {};
	if (bpf_probe_read_user(&table, sizeof table, (void *)(levels->tables + twang_mix64(address) % TABLES * TABLE_BYTES)))
		return 0;
	/* fibonacci_hash_policy (c10/util/flat_hash_map.h) */
	u64 at = table.entries + (address * 11400714819323198485ull >> (table.shift & 63)) * sizeof(struct block_entry);
	struct block_entry entry = {};
	for (int i = 0; i < MOST_LOOKUPS; i++) {
		if (bpf_probe_read_user(&entry, sizeof entry, (void *)at) || entry.distance < i)
			return 0;
		if (entry.address == address)
			break;
		at += sizeof entry;
	}
	struct block_words block = {};
	if (entry.address != address || bpf_probe_read_user(&block, sizeof block, (void *)(entry.block + BLOCK_SIZE_AT)))
		return 0;
	if (block.words[3] == address && block.words[1] == requested)
		return block.words[0];
	if (block.words[4] == address && block.words[2] == requested)
		return block.words[1];
	return 0;
}
