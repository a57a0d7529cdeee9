/* SPDX-License-Identifier: Apache-2.0 */
/* charge.c - see charge.h. */
#include "charge.h"

#include <errno.h>

#include "daemon.h"
#include "expertfs-private.h"

#define STEP_BYTES EFSD_CHARGED_BYTES
/* This much stays charged: a program that opens a large file of .expertfs every second must not cost a segment of the
 * chunk pool each time. */
#define KEPT_BYTES (4u << 20)

void efsd_charge_init(struct efsd_charge *charge)
{
    atomic_init(&charge->used_bytes, 0);
    atomic_init(&charge->charged_bytes, EFSD_UNCHARGED_BYTES + EFSD_CHARGED_BYTES);
}

/* Charges what is used and not charged yet. */
static errint_t charge_raise(struct efsd *daemon)
{
    struct efsd_charge *c = &daemon->charge;
    for (size_t used, charged; (used = atomic_load(&c->used_bytes)) > (charged = atomic_load(&c->charged_bytes));) {
        const size_t more = (used - charged + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
        if (efs_charge(daemon->fs, more))
            return -ENFILE;
        atomic_fetch_add(&c->charged_bytes, more);
    }
    return 0;
}

errint_t efsd_charge(struct efsd *daemon, size_t bytes)
{
    atomic_fetch_add(&daemon->charge.used_bytes, bytes);
    errint_t rc = charge_raise(daemon);
    if (rc)
        atomic_fetch_sub(&daemon->charge.used_bytes, bytes);
    return rc;
}

void efsd_uncharge(struct efsd *daemon, size_t bytes)
{
    struct efsd_charge *c = &daemon->charge;
    const size_t least = atomic_fetch_sub(&c->used_bytes, bytes) - bytes + KEPT_BYTES;
    size_t charged = atomic_load(&c->charged_bytes);
    if (charged < least + STEP_BYTES)
        return;
    const size_t less = (charged - least) / STEP_BYTES * STEP_BYTES;
    if (!atomic_compare_exchange_strong(&c->charged_bytes, &charged, charged - less))
        return; /* another thread has just changed it */
    efs_uncharge(daemon->fs, less);
    charge_raise(daemon); /* for a thread that has used them before the exchange */
}
