/* SPDX-License-Identifier: Apache-2.0 */
/* readers.c - see readers.h: open files by process. The kernel names the thread of a request; its process is looked up
 * here, not at the open. */
#include "readers.h"

#include <stdlib.h>

#include "daemon.h"

static int reader_compare(const void *a, const void *b)
{
    const struct efsd_reader *x = a, *y = b;
    if (x->user != y->user)
        return x->user < y->user ? -1 : 1;
    return (x->thread > y->thread) - (x->thread < y->thread);
}

/* The process of a thread; the thread itself if it has ended. */
static uint32_t process_of(uint32_t thread)
{
    char path[64], line[256];
    unsigned process = thread;
    snprintf(path, sizeof(path), "/proc/%u/status", thread);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof(line), status) && sscanf(line, "Tgid: %u", &process) != 1) {
    }
    if (status)
        fclose(status);
    return process;
}

void efsd_readers_print(struct efsd *daemon, FILE *out)
{
    size_t count;
    struct efsd_reader *list = efsd_opens_list(daemon, &count);
    uint32_t thread = 0, process = 0;
    if (list)
        qsort(list, count, sizeof(*list), reader_compare);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || list[i].thread != thread)
            process = process_of(list[i].thread);
        thread = list[i].thread;
        list[i].thread = process;
    }
    if (list)
        qsort(list, count, sizeof(*list), reader_compare);
    for (size_t i = 0, end = 0; i < count; i = end) {
        uint64_t bytes = 0;
        for (end = i; end < count && reader_compare(&list[i], &list[end]) == 0; end++)
            bytes += list[end].read_bytes;
        fprintf(out, "%-10u %10u %10zu %15llu\n", list[i].thread, list[i].user, end - i, (unsigned long long)bytes);
    }
    free(list);
}
