/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - see cores.h. */
#include "cores.h"

#include "proc_text.h"
#include "sys.h"

#include <stdlib.h>
#include <string.h>

int efs_pressure_open(const char *name)
{
    const char *given = getenv("EXPERTFS_PRESSURE");
    return efs_kernel_open(given && *given ? given : "/proc/pressure", name);
}

bool efs_pressure_total(int fd, uint64_t *total)
{
    char text[EFS_PROC_TEXT], *end;
    efs_proc_text(fd, text);
    text[strcspn(text, "\n")] = '\0';
    const char *number = strncmp(text, "some ", 5) == 0 ? strstr(text, " total=") : NULL;
    if (!number)
        return false;
    number += strlen(" total=");
    *total = strtoull(number, &end, 10);
    return end != number && *end == '\0';
}

void efs_cores_open(struct efs_cores *c)
{
    *c = (struct efs_cores){.fd = efs_pressure_open("cpu")};
}

void efs_cores_close(struct efs_cores *c)
{
    if (c->fd >= 0)
        efs_sys_close(c->fd);
    c->fd = -1;
}

uint64_t efs_cores_pause(struct efs_cores *c, uint64_t now_ns)
{
    uint64_t period = c->paused ? EFS_CORES_PAUSE_NS : EFS_CORES_RUNNING_NS, passed_ns = now_ns - c->at_ns, total;
    if (c->at_ns && passed_ns < period)
        return c->paused ? period - passed_ns : 0;
    bool known = efs_pressure_total(c->fd, &total);
    /* a sample that began long ago says nothing about now: the next one starts, while the work runs */
    bool recent = c->at_ns && passed_ns <= 2u * EFS_CORES_PAUSE_NS;
    uint64_t stalled = known && recent && total > c->total ? total - c->total : 0;
    c->paused = 1000 * (double)stalled >= EFS_CORES_SHARE * (double)passed_ns && stalled;
    c->total = known ? total : 0;
    c->at_ns = known ? now_ns : 0;
    return c->paused ? EFS_CORES_PAUSE_NS : 0;
}
