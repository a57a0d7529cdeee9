/* SPDX-License-Identifier: Apache-2.0 */
/*
 * charge.h - memory of open files and of the texts of open control files. Its size depends on the programs that open
 * them, so it is charged to the budget as it grows, in steps.
 */
#ifndef EFSD_CHARGE_H
#define EFSD_CHARGE_H

#include <stdatomic.h>
#include <stddef.h>

#include "expertfs.h"

struct efsd;

#define EFSD_CHARGED_BYTES (128u << 10) /* charged at the mount, as part of its fixed memory */
/* Not charged: the budget counts 6 MiB for a process, of which 2 to 3 are used otherwise. So the texts that a person
 * needs open also while programs hold all memory. */
#define EFSD_UNCHARGED_BYTES (2u << 20)

struct efsd_charge {
    _Atomic size_t used_bytes, charged_bytes;
};

void efsd_charge_init(struct efsd_charge *charge);
/* -ENFILE: the budget has no room for these bytes. Both: any thread, without lock. */
errint_t efsd_charge(struct efsd *daemon, size_t bytes);
void efsd_uncharge(struct efsd *daemon, size_t bytes);

#endif
