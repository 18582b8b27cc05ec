/* CUPTI: subscriptions are accepted, and no activity ever arrives, because nothing runs on the
 * device. */
#include "library.h"

enum { OUT_OF_MEMORY = 8, MAX_LIMIT_REACHED = 12 };

API int cuptiGetVersion(unsigned *version) { return *version = CUDART_MAJOR * 10000, 0; }
API int cuptiGetResultString(int code, const char **text) {
  *text = code ? "not supported by the simulated CUPTI" : "CUPTI_SUCCESS";
  return 0;
}
API int cuptiSubscribe(Handle *out, void *callback, void *argument) {
  return (void)callback, (void)argument, give_object(out, 64, OUT_OF_MEMORY);
}
API int cuptiUnsubscribe(Handle subscriber) { return free(subscriber), 0; }
ACCEPTS(cuptiActivityEnable)
ACCEPTS(cuptiActivityDisable)
ACCEPTS(cuptiActivityFlushAll)
ACCEPTS(cuptiActivityRegisterCallbacks)
ACCEPTS(cuptiActivityPushExternalCorrelationId)
ACCEPTS(cuptiEnableCallback)
ACCEPTS(cuptiEnableDomain)
ACCEPTS(cuptiFinalize)
API int cuptiActivityPopExternalCorrelationId(int kind, uint64_t *last) {
  (void)kind;
  if (last) *last = 0;
  return 0;
}
API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid_bytes, void **record) {
  (void)buffer, (void)valid_bytes;
  *record = NULL;
  return MAX_LIMIT_REACHED; /* the documented "no more records" */
}
API int cuptiActivityGetNumDroppedRecords(Handle context, uint32_t stream, size_t *dropped) {
  (void)context, (void)stream;
  return *dropped = 0, 0;
}
