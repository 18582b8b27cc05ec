/* Allocates a known pattern through the CUDA driver API, without Python and without PyTorch, and
 * prints what it did.
 *
 *   cc -O1 -o driver_api driver_api.c -ldl -lpthread && ./driver_api
 *
 * Prints READY, waits for a line on standard input, then one line for each call: alloc|free KIND
 * ADDRESS BYTES THREAD and DONE; waits for another line and exits. Functions that the driver does
 * not have are told as `skipped NAME`. Runs alike on a GPU and on the simulated device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr;
typedef int (*fn)();
static void *cuda;

static fn find(const char *name)
{
	fn f = (fn)dlsym(cuda, name);
	if (!f)
		printf("skipped %s\n", name);
	return f;
}

static void must(int result, const char *what)
{
	if (result) {
		printf("error %s: %d\n", what, result);
		fflush(stdout);
		exit(1);
	}
}

static const char *thread_name(void)
{
	static __thread char name[16];
	pthread_getname_np(pthread_self(), name, sizeof name);
	return name;
}

static void told(const char *what, const char *kind, ptr at, size_t bytes)
{
	printf("%s %s %llu %zu %s\n", what, kind, at, bytes, thread_name());
}

static void *context;

static void device_memory(int rounds)
{
	fn alloc = find("cuMemAlloc_v2"), release = find("cuMemFree_v2");
	ptr at[8];
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < 8; i++) {
			size_t bytes = (size_t)(i + 1) * 100000 + round;
			must(alloc(&at[i], bytes), "cuMemAlloc_v2");
			told("alloc", "driver", at[i], bytes);
		}
		/* The last one of each round stays. */
		for (int i = 0; i < 7; i++) {
			must(release(at[i]), "cuMemFree_v2");
			told("free", "driver", at[i], 0);
		}
	}
}

static void *in_thread(void *unused)
{
	pthread_setname_np(pthread_self(), "worker-c");
	must(find("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
	device_memory(3);
	return 0;
}

static void pitched_memory(void)
{
	fn alloc = find("cuMemAllocPitch_v2");
	ptr at;
	size_t pitch = 0;
	if (alloc && !alloc(&at, &pitch, (size_t)1000, (size_t)64, 4u))
		told("alloc", "driver", at, pitch * 64);
}

static void managed_memory(void)
{
	fn alloc = find("cuMemAllocManaged");
	ptr at;
	if (alloc && !alloc(&at, (size_t)3 << 20, 1u))
		told("alloc", "managed", at, (size_t)3 << 20);
}

static void async_memory(void)
{
	fn alloc = find("cuMemAllocAsync"), release = find("cuMemFreeAsync");
	ptr at;
	if (!alloc || !release || alloc(&at, (size_t)5 << 20, (void *)0))
		return;
	told("alloc", "driver", at, (size_t)5 << 20);
	must(release(at, (void *)0), "cuMemFreeAsync");
	told("free", "driver", at, 0);
}

static void host_memory(void)
{
	fn alloc = find("cuMemHostAlloc"), old = find("cuMemAllocHost_v2"), release = find("cuMemFreeHost");
	fn register_ = find("cuMemHostRegister_v2"), unregister = find("cuMemHostUnregister");
	void *at;
	if (alloc && !alloc(&at, (size_t)777777, 0u)) {
		told("alloc", "pinned", (ptr)at, 777777);
		must(release(at), "cuMemFreeHost");
		told("free", "pinned", (ptr)at, 0);
	}
	if (old && !old(&at, (size_t)88888))
		told("alloc", "pinned", (ptr)at, 88888);
	if (!register_ || posix_memalign(&at, 4096, 1 << 20))
		return;
	memset(at, 1, 1 << 20);
	if (!register_(at, (size_t)1 << 20, 0u)) {
		told("alloc", "pinned", (ptr)at, (size_t)1 << 20);
		must(unregister(at), "cuMemHostUnregister");
		told("free", "pinned", (ptr)at, 0);
	}
}

/* The calls of expandable segments. */
static void physical_memory(void)
{
	fn create = find("cuMemCreate"), release = find("cuMemRelease"), map = find("cuMemMap"), unmap = find("cuMemUnmap");
	fn reserve = find("cuMemAddressReserve");
	if (!create || !map || !reserve)
		return;
	/* CUmemAllocationProp: pinned memory of device 0. */
	struct {
		int type, handle_types, location_type, location;
		void *metadata;
		unsigned char flags[8];
	} property = { .type = 1, .location_type = 1 };
	unsigned long long handle;
	ptr at;
	size_t bytes = (size_t)4 << 20;
	if (create(&handle, bytes, &property, 0ull))
		return;
	told("alloc", "physical", handle, bytes);
	must(reserve(&at, bytes, (size_t)0, 0ull, 0ull), "cuMemAddressReserve");
	must(map(at, bytes, (size_t)0, handle, 0ull), "cuMemMap");
	told("alloc", "mapping", at, bytes);
	must(unmap(at, bytes), "cuMemUnmap");
	told("free", "mapping", at, 0);
	must(release(handle), "cuMemRelease");
	told("free", "physical", handle, 0);
}

/* More than any device has: refused. */
static void too_much(void)
{
	ptr at;
	int result = find("cuMemAlloc_v2")(&at, (size_t)1 << 50);
	printf("failed driver %zu %d\n", (size_t)1 << 50, result);
}

int main(void)
{
	char line[64];
	int device;
	setvbuf(stdout, 0, _IOFBF, 1 << 20);
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	if (!cuda) {
		printf("error no driver: %s\n", dlerror());
		return 1;
	}
	must(find("cuInit")(0u), "cuInit");
	must(find("cuDeviceGet")(&device, 0), "cuDeviceGet");
	must(find("cuDevicePrimaryCtxRetain")(&context, device), "cuDevicePrimaryCtxRetain");
	must(find("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
	pthread_setname_np(pthread_self(), "main-c");
	printf("READY\n");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	device_memory(5);
	pthread_t thread;
	pthread_create(&thread, 0, in_thread, 0);
	pthread_join(thread, 0);
	pitched_memory();
	managed_memory();
	async_memory();
	host_memory();
	physical_memory();
	too_much();
	printf("DONE\n");
	fflush(stdout);
	return fgets(line, sizeof line, stdin) == 0;
}
