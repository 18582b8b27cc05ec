/* Where a real driver put its allocations. PyTorch's allocator prefers the lower of two equal blocks, so
 * a replay reuses the same ones only if segments lie as they did in the job.
 *
 * The file SIM_CUDA_PLACES has a line for each allocation, in order: its bytes, and its offset in the
 * device's address space. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "device.h"

struct Place {
  size_t bytes, offset;
  int taken;
};

static struct Place *places;
static size_t place_count, first_left;

static void read_places(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) {
    fprintf(stderr, "simulated CUDA: cannot read SIM_CUDA_PLACES=%s\n", path);
    return;
  }
  size_t capacity = 0;
  struct Place place = {0};
  while (fscanf(file, "%zu %zu", &place.bytes, &place.offset) == 2) {
    if (place_count == capacity) {
      capacity = capacity ? capacity * 2 : 256;
      places = realloc(places, capacity * sizeof *places);
      if (!places) abort();
    }
    places[place_count++] = place;
  }
  fclose(file);
}

/* The caller holds the lock of the address space, here and below. */
int places_exist(void) {
  static int is_read;
  const char *path = getenv("SIM_CUDA_PLACES");
  if (!is_read && path && *path) read_places(path);
  is_read = 1;
  return place_count > 0;
}

/* The offset of the first place left with this size; SIZE_MAX: there is none. */
size_t places_take(size_t bytes) {
  while (first_left < place_count && places[first_left].taken) first_left++;
  for (size_t i = first_left; i < place_count; i++) {
    if (places[i].taken || places[i].bytes != bytes) continue;
    places[i].taken = 1;
    return places[i].offset;
  }
  return SIZE_MAX;
}
