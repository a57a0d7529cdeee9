/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.h - a libcuda.so.1 for tests without a GPU: the calls that engine/gpu/ uses, with the CPU twin of the
 * kernels. Device memory is memory of this process; each stream is a thread that executes its work asynchronously. The
 * fake checks the arguments that the driver requires.
 *
 * EXPERTFS_CUDA is the path of the library; tests find the functions below with dlsym().
 */
#ifndef EFS_FAKE_CUDA_H
#define EFS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_DEVICES 2
#define FAKE_CUDA_BYTES ((size_t)512 << 20) /* memory of each device */

/* The number-th call from now on (counted from 1; 0: none) returns result. for_ever: the device is lost: all later
 * calls fail, too, and work in flight ends without being executed, including host functions. Every call of this
 * function ends an earlier loss. */
void fake_cuda_fail(unsigned number, int result, bool for_ever);
/* From now on one device is lost: calls in its context return result. */
void fake_cuda_lose(int device, int result);
/* Each copy, kernel and host function starts after a random delay of less than most_us microseconds. */
void fake_cuda_slow(unsigned most_us);
/* Overwrite the first 4 bytes of the number-th copy to the device of at least 1 KiB (counted from 1). */
void fake_cuda_damage(unsigned number);
/* Number of resources that were not released: memory, registrations, streams, events, modules, contexts. */
unsigned fake_cuda_left(void);
/* Bytes of registered host memory. */
size_t fake_cuda_registered(void);
/* The device that owns the whole range; -1: none. */
int fake_cuda_device_of(const void *address, size_t bytes);
bool fake_cuda_owns(const void *address, size_t bytes); /* any device */

#endif
