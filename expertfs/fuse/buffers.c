/* SPDX-License-Identifier: Apache-2.0 */
/* buffers.c - the fixed pools of reply buffers; see buffers.h. */
#include "buffers.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

errint_t efsd_buffers_open(struct efsd_buffers *buffers, size_t count)
{
    *buffers = (struct efsd_buffers){.count = count};
    pthread_mutex_init(&buffers->lock, NULL);
    pthread_cond_init(&buffers->available[false], NULL);
    pthread_cond_init(&buffers->available[true], NULL);
    buffers->all = calloc(count + EFSD_SMALL_COUNT, sizeof(*buffers->all));
    void *memory = mmap(NULL, efsd_buffers_bytes(count), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !buffers->all) {
        if (memory != MAP_FAILED)
            munmap(memory, efsd_buffers_bytes(count));
        efsd_buffers_close(buffers);
        return -ENOMEM;
    }
    madvise(memory, count * EFSD_IO_BYTES, MADV_HUGEPAGE); /* the kernel pins each page that it copies from */
    buffers->memory = memory;
    for (size_t i = count + EFSD_SMALL_COUNT; i-- > 0;) {
        struct efsd_buffer *buffer = &buffers->all[i];
        buffer->small = i >= count;
        buffer->data = buffers->memory +
                       (buffer->small ? count * EFSD_IO_BYTES + (i - count) * EFSD_SMALL_BYTES : i * EFSD_IO_BYTES);
        if (!buffer->small && buffers->ahead_count < EFSD_DECODE_AHEAD_SLOTS &&
            buffers->ahead_count < (count + 7) / 8) {
            buffers->ahead[buffers->ahead_count++].data = buffer->data;
            continue;
        }
        buffer->next = buffers->free[buffer->small];
        buffers->free[buffer->small] = buffer;
    }
    return 0;
}

void efsd_buffers_close(struct efsd_buffers *buffers)
{
    if (!buffers->count)
        return;
    if (buffers->memory)
        munmap(buffers->memory, efsd_buffers_bytes(buffers->count));
    free(buffers->all);
    pthread_cond_destroy(&buffers->available[false]);
    pthread_cond_destroy(&buffers->available[true]);
    pthread_mutex_destroy(&buffers->lock);
    *buffers = (struct efsd_buffers){0};
}

struct efsd_buffer *efsd_buffer_get(struct efsd_buffers *buffers, size_t bytes, bool *waited)
{
    const bool small = bytes <= EFSD_SMALL_BYTES;
    pthread_mutex_lock(&buffers->lock);
    *waited = !buffers->free[small];
    while (!buffers->free[small])
        pthread_cond_wait(&buffers->available[small], &buffers->lock);
    struct efsd_buffer *buffer = buffers->free[small];
    buffers->free[small] = buffer->next;
    pthread_mutex_unlock(&buffers->lock);
    return buffer;
}

void efsd_buffer_put(struct efsd_buffers *buffers, struct efsd_buffer *buffer)
{
    pthread_mutex_lock(&buffers->lock);
    buffer->next = buffers->free[buffer->small];
    buffers->free[buffer->small] = buffer;
    pthread_mutex_unlock(&buffers->lock);
    pthread_cond_signal(&buffers->available[buffer->small]);
}
