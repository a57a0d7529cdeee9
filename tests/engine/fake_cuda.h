/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda.h - a libcuda.so.1 for tests, without a graphics processor: the calls that engine/gpu/ uses, over the twin
 * of the kernels. Memory of the device is memory of this process; each stream is a thread that does its work later,
 * unless it is told to wait; all else that the driver promises is checked, not assumed.
 *
 * EXPERTFS_CUDA names it, and tests reach what is below by dlsym() of the same library.
 */
#ifndef EFS_FAKE_CUDA_H
#define EFS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_DEVICES 2
#define FAKE_CUDA_BYTES ((size_t)512 << 20) /* of each device */

/* The number-th call from now on (from 1; 0: none) returns result; for ever: so do all that follow, and work that is
 * under way ends undone, without its host functions: a lost device. Takes an earlier loss back. */
void fake_cuda_fail(unsigned number, int result, bool for_ever);
/* The same for one device alone, from now on: calls in its context. */
void fake_cuda_lose(int device, int result);
/* Work of streams is taken up only so many microseconds later, at random up to that. */
void fake_cuda_slow(unsigned most_us);
/* Streams, by the order in which they were made since the device was opened, the first one a 1, the second a 2, the
 * third a 4, ...: these take nothing up until they are not held any more. */
void fake_cuda_hold(unsigned streams);
/* The number-th copy to the device of a KiB or more (from 1) comes with its first bytes wrong. */
void fake_cuda_damage(unsigned number);
/* What was made and is still there: memory, streams, events, modules, contexts. */
unsigned fake_cuda_left(void);
/* Bytes of memory of the host that are registered. */
size_t fake_cuda_registered(void);
/* The device whose memory all of it is; -1: none. */
int fake_cuda_device_of(const void *address, size_t bytes);
bool fake_cuda_owns(const void *address, size_t bytes); /* there is one */

#endif
