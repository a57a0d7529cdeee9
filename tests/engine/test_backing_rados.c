/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backing of a pool of Ceph (engine/remote/backing_rados.c) on the fake librados of tests/e2e, whose threads report
 * the ends of reads in any order with the queue. The linker (--wrap, see Makefile) stops such a thread before it wakes
 * the I/O thread, which something else wakes.
 */
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"
#include "expertfs-packing-private.h"
#include "layout.h"
#include "fixture.h"
#include "queue.h"
#include "rados.h"
#include "stats.h"
#include "wrapped.h"

#define ADDRESS "rados:pool/model"

static struct fixture model;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int fd;      /* a thread of librados stops before it writes to it; -1: none does */
    bool stands; /* it has stopped, ... */
    bool go;
    bool waits; /* ... and the I/O thread waits for a lock, ... */
    bool ended; /* ... or the read has ended */
} late = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .fd = -1};

/* Those that it has created, as threads of librados, have its name, too. */
static bool is_io_thread(void)
{
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return strcmp(name, "efs-disk") == 0;
}

int __real_pthread_mutex_lock(pthread_mutex_t *lock);

static void late_set(bool *what)
{
    __real_pthread_mutex_lock(&late.lock);
    *what = true;
    pthread_cond_broadcast(&late.changed);
    pthread_mutex_unlock(&late.lock);
}

WRAPPED(int, pthread_mutex_lock, (pthread_mutex_t * lock))
{
    if (pthread_mutex_trylock(lock) == 0)
        return 0;
    if (is_io_thread())
        late_set(&late.waits);
    return __real_pthread_mutex_lock(lock);
}

WRAPPED(ssize_t, write, (int fd, const void *data, size_t bytes))
{
    __real_pthread_mutex_lock(&late.lock);
    if (fd == late.fd && is_io_thread()) {
        late.fd = -1;
        late.waits = false;
        late.stands = true;
        pthread_cond_broadcast(&late.changed);
        while (!late.go)
            pthread_cond_wait(&late.changed, &late.lock);
    }
    pthread_mutex_unlock(&late.lock);
    return __real_write(fd, data, bytes);
}

static void read_ended(struct efs_io *io, errint_t error)
{
    assert_int_equal(error, 0);
    late_set(&late.ended);
    sem_post(io->owner);
}

/* Once a read has ended, no thread of librados uses the backing or the queue's descriptor. */
TEST(a_read_ends_after_its_thread_has_woken_the_queue)
{
    struct efs_stats_counters stats = {0};
    struct efs_error err = {""};
    struct efs_io_queue *queue;
    struct efs_backing *backing;
    struct efs_rados_head head;
    uint8_t bytes[4096];
    sem_t ended;
    sem_init(&ended, 0, 0);
    assert_int_equal(efs_rados_open(ADDRESS, &backing, &head, &err), 0);
    const struct efs_io_options options = {.backing = backing, .stats = &stats};
    assert_int_equal(efs_io_queue_start(&options, &queue), 0);
    struct efs_io io = {
        .bytes = sizeof(bytes), .data = bytes, .segment = EFS_NONE, .complete = read_ended, .owner = &ended};
    late.fd = backing->wake_fd;
    efs_io_submit(queue, &io);
    __real_pthread_mutex_lock(&late.lock);
    while (!late.stands)
        pthread_cond_wait(&late.changed, &late.lock);
    pthread_mutex_unlock(&late.lock);
    efs_io_wake(queue);
    __real_pthread_mutex_lock(&late.lock);
    while (!late.waits && !late.ended)
        pthread_cond_wait(&late.changed, &late.lock);
    bool early = late.ended;
    pthread_mutex_unlock(&late.lock);
    late_set(&late.go);
    while (sem_wait(&ended) < 0)
        continue;
    efs_io_queue_stop(queue);
    efs_io_queue_free(queue);
    sem_destroy(&ended);
    assert_false(early);
}

static int setup(void **state)
{
    char program[4096] = "", fake[4200], pool[400];
    uint64_t bytes;
    struct efs_error err = {""};
    *state = &model;
    fixture_store(&model, 1, 1, 64, 64);
    snprintf(pool, sizeof(pool), "%s/pool", model.directory);
    assert_int_equal(mkdir(pool, 0700), 0);
    assert_true(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    snprintf(fake, sizeof(fake), "%.*s/../e2e/libfake-rados.so", (int)(strrchr(program, '/') - program), program);
    setenv("EXPERTFS_RADOS", fake, 1);
    setenv("FAKE_RADOS", model.directory, 1);
    assert_int_equal(efs_store_copy(model.store, ADDRESS, false, NULL, NULL, &bytes, &err), 0);
    return 0;
}

TEST_MAIN(setup, fixture_teardown)
