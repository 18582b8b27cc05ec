/* The checkpoint calls: another process locks a job's CUDA calls, takes its memory off the card and
 * puts it back.
 *
 * States and their order are the real driver's (570 and newer). Nothing is copied, since device
 * memory is in the job's own address space: only the card's count of bytes changes. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device.h"

/* CUcheckpointLockArgs */
typedef struct { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; } LockArgs;

/* SIM_CUDA_CHECKPOINT_FAIL lists the caller's steps that fail: lock, checkpoint, restore, unlock;
 * with "-broken" after one the process is beyond repair from then on. */
static int fails(struct Slot *slot, const char *step) {
  const char *wanted = getenv("SIM_CUDA_CHECKPOINT_FAIL");
  char broken[32];
  snprintf(broken, sizeof broken, "%s-broken", step);
  if (sim_is_listed(wanted, broken)) card_set_state(slot, STATE_FAILED);
  else if (!sim_is_listed(wanted, step)) return 0;
  return 1;
}

/* The process, if it is in the state that a call needs. */
static CUresult find(int pid, int state, struct Slot **out) {
  *out = card_slot(pid);
  if (!*out) return SIM_INVALID_VALUE;
  return card_state(*out) == state ? SIM_OK : SIM_ILLEGAL_STATE;
}

API CUresult cuCheckpointProcessGetState(int pid, int *state) {
  struct Slot *slot = card_slot(pid);
  if (!slot) return SIM_INVALID_VALUE;
  *state = card_state(slot);
  return SIM_OK;
}

API CUresult cuCheckpointProcessLock(int pid, LockArgs *args) {
  struct Slot *slot;
  CUresult error = find(pid, STATE_RUNNING, &slot);
  if (error) return error;
  if (fails(slot, "lock")) return SIM_UNKNOWN;
  card_set_state(slot, STATE_LOCKED);
  struct timespec pause = {.tv_nsec = 1000000};
  for (unsigned waited = 0; !card_is_drained(slot, waited); waited++) {
    if (args && args->timeout_ms && waited >= args->timeout_ms) {
      card_set_state(slot, STATE_RUNNING);
      return SIM_NOT_READY;
    }
    nanosleep(&pause, NULL);
  }
  return SIM_OK;
}

API CUresult cuCheckpointProcessCheckpoint(int pid, void *args) {
  (void)args;
  struct Slot *slot;
  CUresult error = find(pid, STATE_LOCKED, &slot);
  if (error) return error;
  if (fails(slot, "checkpoint")) return SIM_UNKNOWN;
  card_park(slot);
  card_set_state(slot, STATE_CHECKPOINTED);
  return SIM_OK;
}

API CUresult cuCheckpointProcessRestore(int pid, void *args) {
  (void)args;
  struct Slot *slot;
  CUresult error = find(pid, STATE_CHECKPOINTED, &slot);
  if (error) return error;
  if (fails(slot, "restore")) return SIM_UNKNOWN;
  error = card_unpark(slot);
  if (!error) card_set_state(slot, STATE_LOCKED);
  return error;
}

API CUresult cuCheckpointProcessUnlock(int pid, void *args) {
  (void)args;
  struct Slot *slot;
  CUresult error = find(pid, STATE_LOCKED, &slot);
  if (error) return error;
  if (fails(slot, "unlock")) return SIM_UNKNOWN;
  card_set_state(slot, STATE_RUNNING);
  return SIM_OK;
}
