/* The target's words that count training steps, read at every event of PyTorch's allocator. A step
 * is written into the ring before the event at which it is first seen, so it lies exactly between
 * two events.
 *
 * User space sets where the words are: it writes the unused half, then switches halves. A program
 * that reads meanwhile continues with the old half. */
#pragma once

#include "frames.bpf.h"

/* abi::CounterLocation */
enum watched_kind { WATCHED_NOTHING, WATCHED_WORD32, WATCHED_WORD64, WATCHED_INTEGER };
struct watched {
	u64 at;        /* the word, or the reference to an `int` */
	u64 check_at;  /* a word that shows that it, or the variable's reference, is still valid, */
	u64 check;     /* and the expected value, without tag bits */
	u64 type;      /* the class `int` */
	u64 thread;    /* PyThreadState of the frame */
	u64 frame;     /* the frame with the variable; 0: no variable */
	u32 kind;
	u32 size_bit;  /* position of the number of digits in its word */
};
#define STEP 0
#define EPOCH 1
struct watching {
	struct watched watched[2];
	u64 last[2];
	u32 is_known; /* whether `last` was ever read */
	u32 turns;    /* number of changes */
	u32 busy;
	u32 number;   /* identifies the words that user space set */
};
_Static_assert(sizeof(struct watched) == 56 && sizeof(struct watching) == 144, "watching");
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct watching);
} WATCHING SEC(".maps");
/* The half in use. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} WATCHING_NOW SEC(".maps");
/* 0: the recording watches nothing. */
volatile const u32 WATCHES;

/* Include/cpython/longintrepr.h from the class on. The reference count before it is longer without
 * a GIL. */
struct integer {
	u64 type, size;
	u32 digits[2];
};
#define DIGIT_BITS 30
/* Low bits of `size` since 3.12: negative. */
#define SIGN 3
#define NEGATIVE 2

#define MOST_CALLERS 1024
struct search {
	u64 at, frame;
	u32 found;
};

static long is_next_frame(u32 i, struct search *s)
{
	if (!s->at || s->at == s->frame) {
		s->found = s->at != 0;
		return 1;
	}
	s->at = read_word(s->at + WALK.frame_previous);
	return 0;
}

/* Reads the value; returns 0 if it is unreadable or no small number. */
static __always_inline int read_watched(const struct watched *w, u64 *value)
{
	if (w->kind == WATCHED_WORD32) {
		u32 word = 0;
		if (bpf_probe_read_user(&word, sizeof word, (void *)w->at))
			return 0;
		*value = word;
		return 1;
	}
	if (w->kind == WATCHED_WORD64)
		return !bpf_probe_read_user(value, sizeof *value, (void *)w->at);
	struct integer integer;
	u64 at = read_word(w->at) & ~TAG;
	if (!at || bpf_probe_read_user(&integer, sizeof integer, (void *)(at + WALK.object_class)) || integer.type != w->type)
		return 0;
	u64 digits = integer.size >> w->size_bit;
	if (digits > 2 || (w->size_bit && (integer.size & SIGN) == NEGATIVE))
		return 0;
	*value = digits ? integer.digits[0] : 0;
	if (digits == 2)
		*value |= (u64)integer.digits[1] << DIGIT_BITS;
	return 1;
}

/* Whether the variable is still there: a frame that has ended keeps its last references. */
static __always_inline int is_in_place(const struct watched *w)
{
	if ((read_word(w->check_at) & ~TAG) != w->check)
		return 0;
	if (!w->frame)
		return 1;
	struct search s = { innermost_frame(w->thread), w->frame };
	bpf_loop(MOST_CALLERS, is_next_frame, &s, 0);
	return s.found;
}

/* Reports a step if the value changed since the last event. */
__noinline int see_step(void)
{
	u32 zero = 0;
	u32 *now = bpf_map_lookup_elem(&WATCHING_NOW, &zero);
	if (!now)
		return 0;
	u32 half = *(volatile u32 *)now & 1;
	struct watching *w = bpf_map_lookup_elem(&WATCHING, &half);
	if (!w || w->watched[STEP].kind == WATCHED_NOTHING)
		return 0;
	/* Before the values: whoever reported a step meanwhile saw values at least as old. */
	u32 turns = *(volatile u32 *)&w->turns;
	u64 step, epoch = 0;
	int has_epoch = w->watched[EPOCH].kind != WATCHED_NOTHING;
	if (!read_watched(&w->watched[STEP], &step))
		return 0;
	if (has_epoch && !read_watched(&w->watched[EPOCH], &epoch))
		return 0;
	if (w->is_known && step == w->last[STEP] && epoch == w->last[EPOCH])
		return 0;
	if (!is_in_place(&w->watched[STEP]) || (has_epoch && !is_in_place(&w->watched[EPOCH])))
		return 0;
	/* The object may have died during the read, and its memory may be another number's. */
	u64 again;
	if (!read_watched(&w->watched[STEP], &again) || again != step)
		return 0;
	if (has_epoch && (!read_watched(&w->watched[EPOCH], &again) || again != epoch))
		return 0;
	if (__sync_lock_test_and_set(&w->busy, 1))
		return 0; /* Another thread reports it. */
	if (*(volatile u32 *)&w->turns == turns) {
		struct step *record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
		if (record) {
			record->kind = RECORD_STEP;
			record->is_first = !w->is_known;
			record->unused = 0;
			record->number = w->number;
			record->time = bpf_ktime_get_ns();
			record->step = step;
			record->epoch = epoch;
			bpf_ringbuf_submit(record, NO_WAKEUP);
			w->last[STEP] = step;
			w->last[EPOCH] = epoch;
			w->is_known = 1;
			w->turns = turns + 1;
		} else {
			count(COUNT_LOST); /* The next event reports it. */
		}
	}
	w->busy = 0;
	return 0;
}
