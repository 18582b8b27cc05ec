/* The words of the target that count the steps of training, read at every event of PyTorch's allocator: a step is written
 * into the ring before the event at which it is first seen, so it stands exactly between the events that it separates.
 *
 * Where they are, user space keeps up to date. It writes all of it anew into the half that is not in use, then says
 * which half is: a program that reads meanwhile goes on with the old one. */
#pragma once

#include "frames.bpf.h"

/* model::Watched */
enum watched_kind { WATCHED_NOTHING, WATCHED_WORD32, WATCHED_WORD64, WATCHED_INTEGER };
struct watched {
	u64 at;        /* the word, or the reference to an `int` */
	u64 check_at;  /* a word that tells that it is still there, or that the reference is still the variable's, */
	u64 check;     /* and what it has to be, without tag bits */
	u64 type;      /* the class `int` */
	u64 thread;    /* PyThreadState of the frame */
	u64 frame;     /* the frame that has the variable; 0: none has */
	u32 kind;
	u32 size_bit;  /* where the number of digits begins in the word for it */
};
#define STEP 0
#define EPOCH 1
struct watching {
	struct watched watched[2];
	u64 last[2];
	u32 is_known; /* whether `last` was ever seen */
	u32 turns;    /* how often it changed */
	u32 busy;
	u32 number;   /* tells this from other places that user space gave */
};
_Static_assert(sizeof(struct watched) == 56 && sizeof(struct watching) == 144, "watching");
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct watching);
} WATCHING SEC(".maps");
/* Which of the halves is in use. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} WATCHING_NOW SEC(".maps");
/* 0 in a recording that has nothing to watch. */
volatile const u32 WATCHES;

/* Include/cpython/longintrepr.h, from the class on, which a reference count comes before: longer without a GIL. */
struct integer {
	u64 type, size;
	u32 digits[2];
};
#define DIGIT_BITS 30
/* Of the low bits of `size` since 3.12: less than zero. */
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

/* Its value; 0 when there is none. */
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

/* Whether what lies there is the variable: a frame that has ended keeps its last references. */
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

/* Tells of a step, if there is another than at the event before. */
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
	/* Before the values: whoever told of a step meanwhile saw values at least as old as these. */
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
	/* The object may have died while another thread read it, and be another number's by now. */
	u64 again;
	if (!read_watched(&w->watched[STEP], &again) || again != step)
		return 0;
	if (has_epoch && (!read_watched(&w->watched[EPOCH], &again) || again != epoch))
		return 0;
	if (__sync_lock_test_and_set(&w->busy, 1))
		return 0; /* Another thread is telling. */
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
			count(COUNT_LOST); /* The next event tells of it. */
		}
	}
	w->busy = 0;
	return 0;
}
