/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - see machine.h. */
#include "machine.h"

#include "cores.h"
#include "sys.h"

#include <string.h>

void efs_machine_open(struct efs_machine *m)
{
    *m = (struct efs_machine){.io = efs_pressure_open("io"), .cpu = efs_pressure_open("cpu")};
}

void efs_machine_close(struct efs_machine *m)
{
    if (m->io >= 0)
        efs_sys_close(m->io);
    if (m->cpu >= 0)
        efs_sys_close(m->cpu);
    m->io = m->cpu = -1;
}

bool efs_machine_sample(struct efs_machine *m, uint64_t now_ns)
{
    uint64_t total[2], passed_ns = now_ns - m->at_ns;
    double share[2] = {0};
    if (!efs_pressure_total(m->io, &total[0]) || !efs_pressure_total(m->cpu, &total[1])) {
        m->at_ns = m->free_ns = 0;
        m->known = false;
        m->missing = true;
        return false;
    }
    m->missing = false;
    for (unsigned i = 0; i < 2 && m->at_ns && passed_ns; i++) {
        share[i] = total[i] > m->total[i] ? 1000 * (double)(total[i] - m->total[i]) / (double)passed_ns : 0;
        share[i] = share[i] > 1 ? 1 : share[i];
    }
    bool free = m->free_ns != 0, cpu_idle = share[1] < EFS_MACHINE_CPU_SHARE;
    bool measured = !free && m->at_ns && passed_ns;
    if (measured || (free && !cpu_idle))
        memcpy(m->share, share, sizeof(share));
    m->known = m->known || measured;
    if (measured)
        m->free_ns = cpu_idle && share[0] < EFS_MACHINE_IO_SHARE ? now_ns + EFS_MACHINE_FREE_NS : 0;
    else if (!cpu_idle || now_ns >= m->free_ns)
        m->free_ns = 0;
    memcpy(m->total, total, sizeof(total));
    m->at_ns = now_ns;
    return m->free_ns != 0;
}
