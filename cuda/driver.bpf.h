/* Calls of the CUDA driver: arguments are noted at entry, results reported at return. */
#pragma once

/* Which arguments of a function say what is allocated or freed (src/probe/driver.rs), by the index
 * of their register in pt_regs. */
struct call {
	u8 arena;
	u8 out;     /* points to the returned address or handle; NO_ARGUMENT: `address` is it */
	u8 address;
	u8 size;
	u8 rows;    /* factor of `size`: cuMemAllocPitch's height */
	u8 pitch;   /* points to the returned pitch, which replaces `size` */
	u8 property; /* points to a CUmemAllocationProp with the device */
	u8 mark : 4, is_mark : 4;
};
#define NO_ARGUMENT 0xff
#define MOST_CALLS 64
volatile const struct call CALLS[MOST_CALLS];
/* CUmemAllocationProp.location (cuda.h): type 1 is a device, then its number. */
#define LOCATION_TYPE 8
#define LOCATION_DEVICE 1

struct in_call {
	u64 id;
	u64 call;
};
struct pending {
	u64 address, size, rows, pitch;
	u32 device;
	struct place place;
};
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct in_call);
	__type(value, struct pending);
} PENDING SEC(".maps");

static __always_inline struct in_call key_of_call(struct pt_regs *ctx)
{
	return (struct in_call){ bpf_get_current_pid_tgid(), bpf_get_attach_cookie(ctx) & (MOST_CALLS - 1) };
}

/* Loads of modules and creations of contexts. */
static __always_inline int marked(u8 mark, const struct place *p)
{
	struct freed *record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
	if (!record) {
		count(COUNT_LOST);
		return 0;
	}
	set_who(&record->who, RECORD_MARKED, 0, p);
	record->who.flags &= ~FLAG_NODE;
	record->who.mark = mark;
	record->address = 0;
	bpf_ringbuf_submit(record, NO_WAKEUP);
	return 0;
}

static __always_inline int on_driver_entry(struct pt_regs *ctx)
{
	struct in_call key = key_of_call(ctx);
	const volatile struct call *call = &CALLS[key.call & (MOST_CALLS - 1)];
	struct pending p = { .device = NO_DEVICE };
	find_place(&p.place);
	if (call->is_mark)
		return marked(call->mark, &p.place);
	p.address = register_of(ctx, call->out != NO_ARGUMENT ? call->out : call->address);
	p.size = register_of(ctx, call->size);
	p.rows = register_of(ctx, call->rows);
	p.pitch = register_of(ctx, call->pitch);
	p.place.native = native_stack(ctx, call->size == NO_ARGUMENT ? 0 : p.size * (p.rows ?: 1));
	if (call->property != NO_ARGUMENT) {
		u64 location = read_word(register_of(ctx, call->property) + LOCATION_TYPE);
		if ((u32)location == LOCATION_DEVICE && location >> 32 < NO_DEVICE)
			p.device = location >> 32;
	}
	bpf_map_update_elem(&PENDING, &key, &p, BPF_ANY);
	return 0;
}

static __always_inline int on_driver_return(struct pt_regs *ctx)
{
	struct in_call key = key_of_call(ctx);
	const volatile struct call *call = &CALLS[key.call & (MOST_CALLS - 1)];
	struct pending *found = bpf_map_lookup_elem(&PENDING, &key);
	if (!found)
		return 0;
	struct pending p = *found;
	bpf_map_delete_elem(&PENDING, &key);
	u32 result = ctx->rax;
	u64 size = call->size == NO_ARGUMENT ? 0 : p.size;
	if (result) {
		struct allocated *record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
		if (!record) {
			count(COUNT_LOST);
			return 0;
		}
		set_who(&record->who, RECORD_FAILED, call->arena, &p.place);
		record->who.device = p.device;
		record->who.code = result;
		record->who.flags &= ~FLAG_NODE;
		record->address = 0;
		record->size = size;
		bpf_ringbuf_submit(record, NO_WAKEUP);
		return 0;
	}
	u64 address = call->out != NO_ARGUMENT ? read_word(p.address) : p.address;
	if (call->pitch != NO_ARGUMENT)
		size = read_word(p.pitch);
	if (call->rows != NO_ARGUMENT)
		size *= p.rows;
	return allocated(call->arena, p.device, address, size, &p.place);
}

static __always_inline int on_driver_free(struct pt_regs *ctx)
{
	const volatile struct call *call = &CALLS[bpf_get_attach_cookie(ctx) & (MOST_CALLS - 1)];
	struct place place = { .source = SOURCE_NOT_TAKEN };
	u64 address = register_of(ctx, call->address);
	return address ? freed(call->arena, address, &place) : 0;
}

PROGRAM(driver_entry, on_driver_entry(ctx))
PROGRAM(driver_return, on_driver_return(ctx))
PROGRAM(driver_free, on_driver_free(ctx))
