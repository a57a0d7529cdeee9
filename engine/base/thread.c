/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "thread.h"

#include "sys.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

uint64_t efs_thread_number(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t number;
    if (!number)
        number = atomic_fetch_add(&last, 1) + 1;
    return number;
}

errint_t efs_thread_start(void *(*run)(void *), void *arg, const char *name, unsigned long *thread)
{
    pthread_attr_t attr;
    pthread_t id;
    sigset_t all, before;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, EFS_STACK_BYTES + EFS_STACK_SANITIZER_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = efs_sys_thread(&id, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc < 0)
        return rc;
    pthread_setname_np(id, name);
    *thread = id;
    return 0;
}
