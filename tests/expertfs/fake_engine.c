/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_engine.c - the serving half of expertfs.h over a directory of plain files, for tests of the daemon: every
 * reply can be late, can fail, or can come from inside the call. Linked into tests/expertfs/expertfs-fake.
 *
 * "STORE" is a directory. Files below experts/ whose name ends in .safetensors are experts. The environment injects:
 *   EFS_FAKE_SYNC=1      reads are answered from inside efs_read()
 *   EFS_FAKE_DELAY_US=N  every other reply comes N microseconds late
 *   EFS_FAKE_LATE_AT=N, EFS_FAKE_LATE_US=N  reads of the byte at N are answered so late
 *   EFS_FAKE_ROOM=N      only N experts can be leased at a time
 *   EFS_FAKE_LEASE_ERRNO=N  every lease fails with errno N
 *   EFS_FAKE_DIE=1       the daemon is killed while it opens the store
 *   EFS_FAKE_BACKING_ERRNO=N  every other registering of a backing file fails with errno N, but for the probe
 *   EFS_FAKE_GAPS_US=N   before and after two in three answers to opens and registerings nothing goes on for so long:
 *                        what comes meanwhile (a release, another open, the end of who opens) overtakes them
 * Settings are texts that are kept; "bad" is refused, a budget of 1 is below the floor, one of 2 is held back. A text
 * that wants is taken if it begins with a digit.
 * In a file whose name contains "damaged", reads that touch [64 KiB, 128 KiB) fail with -EUCLEAN, and so do leases.
 */
#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expertfs-private.h"
#include "real_call.h"

#define WORKERS 2
#define FILES 65536u

struct file {
    char *path; /* absolute */
    struct efs_file_info info;
};

struct job {
    struct job *next;
    uint32_t file;
    uint64_t offset;
    uint8_t *dst; /* NULL: a lease */
    size_t len;
    efs_done_fn *done;
    efs_leased_fn *leased;
    void *arg;
};

struct efs_lease {
    struct efs *fs;
    struct efs_lease *before, *after; /* of all that are held: efs_close() frees them */
    int fd;
    void *data;
    size_t bytes;
};

struct efs {
    pthread_mutex_t lock; /* guards all below but files */
    pthread_cond_t wake;
    struct job *first, **last;
    pthread_t workers[WORKERS];
    struct efs_lease *leases;
    unsigned leased, room;
    bool stop;
    struct efs_stats stats;
    struct file *files;
    uint32_t file_count, expert_count;
    unsigned delay_us, late_us, late_at, lease_errno;
    bool sync;
    char root[4096];
    char settings[6][128]; /* by setting_names */
    char pins[FILES];      /* by expert; 0: not pinned */
};

static const char *const setting_names[] = {"budget", "pools", "plan", "policy", "goal", "prefetch"};
static const char *const setting_defaults[] = {"auto", "FCSE", "auto", "zipmoe", "io", "off"};

struct efs_store {
    struct efs fs;
};

static struct efs *scanning; /* nftw() has no argument */

static unsigned env_number(const char *name, unsigned otherwise)
{
    const char *value = getenv(name);
    return value ? (unsigned)strtoul(value, NULL, 10) : otherwise;
}

static int scan(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    struct efs *fs = scanning;
    if (type != FTW_F || fs->file_count == FILES)
        return 0;
    struct file *file = &fs->files[fs->file_count++];
    file->path = strdup(path);
    snprintf(file->info.path, sizeof(file->info.path), "%s", path + strlen(fs->root) + 1);
    file->info.bytes = (uint64_t)st->st_size;
    file->info.expert = efs_id(UINT32_MAX);
    size_t n = strlen(path);
    if (strncmp(file->info.path, "experts/", 8) == 0 && n > 12 && strcmp(path + n - 12, ".safetensors") == 0) {
        file->info.kind = EFS_FILE_EXPERT;
        file->info.expert = efs_id(fs->expert_count++);
    }
    return 0;
}

static void run_read(struct efs *fs, const struct job *job)
{
    const struct file *file = &fs->files[job->file];
    if (strstr(file->path, "damaged") && job->offset < (128u << 10) && job->offset + job->len > (64u << 10)) {
        job->done(job->arg, -EUCLEAN, 0);
        return;
    }
    int fd = open(file->path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : pread(fd, job->dst, job->len, (off_t)job->offset);
    errint_t rc = n < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    job->done(job->arg, rc, n < 0 ? 0 : (size_t)n);
}

static errint_t fill(const struct file *file, struct efs_lease *lease)
{
    int from = open(file->path, O_RDONLY | O_CLOEXEC);
    lease->fd = memfd_create("fake-expert", MFD_CLOEXEC);
    if (from < 0 || lease->fd < 0 || ftruncate(lease->fd, (off_t)file->info.bytes))
        return -errno;
    lease->bytes = file->info.bytes;
    lease->data = mmap(NULL, lease->bytes + 1, PROT_READ | PROT_WRITE, MAP_SHARED, lease->fd, 0);
    errint_t rc = lease->data == MAP_FAILED ? -errno : 0;
    if (!rc && pread(from, lease->data, lease->bytes, 0) != (ssize_t)lease->bytes)
        rc = -EIO;
    close(from);
    return rc;
}

static void run_lease(struct efs *fs, const struct job *job)
{
    const struct file *file = &fs->files[job->file];
    struct efs_lease *lease = calloc(1, sizeof(*lease));
    errint_t rc = fs->lease_errno ? -(errint_t)fs->lease_errno : strstr(file->path, "damaged") ? -EUCLEAN : 0;
    lease->fs = fs;
    lease->fd = -1;
    pthread_mutex_lock(&fs->lock);
    lease->after = fs->leases;
    if (lease->after)
        lease->after->before = lease;
    fs->leases = lease;
    pthread_mutex_unlock(&fs->lock);
    if (!rc)
        rc = fill(file, lease);
    if (rc)
        efs_lease_release(lease);
    job->leased(job->arg, rc, rc ? NULL : lease);
}

/* ---- calls of the daemon, in the place of libfuse's and the C library's ---- */

static void gap(void)
{
    static _Atomic unsigned n;
    unsigned us = env_number("EFS_FAKE_GAPS_US", 0);
    if (us && atomic_fetch_add(&n, 1) % 3)
        usleep(us);
}

int fuse_reply_open(fuse_req_t req, const struct fuse_file_info *file)
{
    int (*reply)(fuse_req_t, const struct fuse_file_info *);
    *(void **)&reply = real_call("fuse_reply_open");
    gap();
    int rc = reply(req, file);
    gap();
    return rc;
}

/* Answers of the length of an open's: those that name a backing file. */
int fuse_reply_buf(fuse_req_t req, const char *data, size_t bytes)
{
    int (*reply)(fuse_req_t, const char *, size_t);
    *(void **)&reply = real_call("fuse_reply_buf");
    if (bytes == 16)
        gap();
    int rc = reply(req, data, bytes);
    if (bytes == 16)
        gap();
    return rc;
}

int ioctl(int fd, unsigned long what, ...)
{
    static _Atomic unsigned registered;
    va_list arguments;
    va_start(arguments, what);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    int (*call)(int, unsigned long, ...);
    *(void **)&call = real_call("ioctl");
    const bool backing = _IOC_TYPE(what) == 229 && _IOC_NR(what) == 1;
    unsigned error = env_number("EFS_FAKE_BACKING_ERRNO", 0);
    if (backing && error && atomic_fetch_add(&registered, 1) % 2) {
        errno = (int)error;
        return -1;
    }
    if (backing)
        gap();
    int rc = call(fd, what, argument);
    if (backing)
        gap();
    return rc;
}

static void *work(void *arg)
{
    struct efs *fs = arg;
    unsigned n = 0;
    pthread_mutex_lock(&fs->lock);
    for (;;) {
        while (!fs->first && !fs->stop)
            pthread_cond_wait(&fs->wake, &fs->lock);
        struct job *job = fs->first;
        if (!job)
            break;
        fs->first = job->next;
        if (!fs->first)
            fs->last = &fs->first;
        pthread_mutex_unlock(&fs->lock);
        if (fs->delay_us && n++ % 2 == 0)
            usleep(fs->delay_us);
        if (job->dst) {
            if (job->offset <= fs->late_at && fs->late_at - job->offset < job->len)
                usleep(fs->late_us);
            run_read(fs, job);
        } else {
            run_lease(fs, job);
        }
        free(job);
        pthread_mutex_lock(&fs->lock);
    }
    pthread_mutex_unlock(&fs->lock);
    return NULL;
}

static void queue(struct efs *fs, struct job *job)
{
    job->next = NULL;
    *fs->last = job;
    fs->last = &job->next;
    pthread_cond_signal(&fs->wake);
}

errint_t efs_open(const char *path, const struct efs_options *options, struct efs **out, struct efs_error *err)
{
    struct stat st;
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return efs_fail(err, -EUCLEAN, "%s: not a directory, which is what the fake engine serves", path);
    if (env_number("EFS_FAKE_DIE", 0))
        kill(getpid(), SIGKILL);
    struct efs *fs = calloc(1, sizeof(struct efs_store));
    fs->files = calloc(FILES, sizeof(*fs->files));
    (void)options;
    fs->last = &fs->first;
    fs->delay_us = env_number("EFS_FAKE_DELAY_US", 0);
    fs->late_us = env_number("EFS_FAKE_LATE_US", 0);
    fs->late_at = env_number("EFS_FAKE_LATE_AT", 0);
    fs->lease_errno = env_number("EFS_FAKE_LEASE_ERRNO", 0);
    fs->room = env_number("EFS_FAKE_ROOM", 1u << 30);
    fs->sync = env_number("EFS_FAKE_SYNC", 0);
    snprintf(fs->root, sizeof(fs->root), "%s", path);
    pthread_mutex_init(&fs->lock, NULL);
    pthread_cond_init(&fs->wake, NULL);
    for (size_t i = 0; i < 6; i++)
        snprintf(fs->settings[i], sizeof(fs->settings[i]), "%s", setting_defaults[i]);
    scanning = fs;
    nftw(path, scan, 16, FTW_PHYS);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_create(&fs->workers[i], NULL, work, fs);
    *out = fs;
    return 0;
}

static void lease_free(struct efs_lease *lease);

void efs_close(struct efs *fs)
{
    pthread_mutex_lock(&fs->lock);
    fs->stop = true;
    pthread_cond_broadcast(&fs->wake);
    pthread_mutex_unlock(&fs->lock);
    for (unsigned i = 0; i < WORKERS; i++)
        pthread_join(fs->workers[i], NULL);
    while (fs->leases) {
        struct efs_lease *lease = fs->leases;
        fs->leases = lease->after;
        lease_free(lease);
    }
    for (uint32_t i = 0; i < fs->file_count; i++)
        free(fs->files[i].path);
    free(fs->files);
    pthread_cond_destroy(&fs->wake);
    pthread_mutex_destroy(&fs->lock);
    free(fs);
}

errint_t efs_reserve(struct efs *fs, uint64_t bytes, struct efs_error *err)
{
    (void)fs, (void)bytes, (void)err;
    return 0;
}

const struct efs_store *efs_get_store(const struct efs *fs)
{
    return (const struct efs_store *)(const void *)fs;
}

void efs_store_info(const struct efs_store *store, struct efs_store_info *info)
{
    *info = (struct efs_store_info){.version = 1,
                                    .files = store->fs.file_count,
                                    .experts = store->fs.expert_count,
                                    .mode = 0444,
                                    .group = getegid()};
    struct stat st;
    if (stat(store->fs.root, &st) == 0)
        info->mtime = st.st_mtim;
    for (uint32_t i = 0; i < store->fs.file_count; i++)
        info->source_bytes += store->fs.files[i].info.bytes;
}

uint32_t efs_file_count(const struct efs *fs)
{
    return fs->file_count;
}

bool efs_file_holds_expert(const struct efs *fs, uint32_t file, uint64_t offset, uint64_t bytes)
{
    (void)fs;
    (void)file;
    (void)offset;
    (void)bytes;
    return false;
}

bool efs_view_hidden(const struct efs *fs)
{
    (void)fs;
    return false;
}

errint_t efs_file_info(const struct efs *fs, uint32_t file, struct efs_file_info *info)
{
    if (file >= fs->file_count)
        return -EINVAL;
    *info = fs->files[file].info;
    return 0;
}

struct efs_stream {
    uint32_t hints;
};

errint_t efs_stream_new(struct efs *fs, uint32_t hints, struct efs_stream **stream)
{
    (void)fs;
    *stream = calloc(1, sizeof(**stream));
    (*stream)->hints = hints;
    return 0;
}

void efs_stream_free(struct efs_stream *stream)
{
    free(stream);
}

void efs_read(struct efs *fs, uint32_t file, struct efs_stream *stream, uint64_t offset, void *dst, size_t len,
              efs_done_fn *done, void *arg)
{
    (void)stream; /* nothing is read ahead */
    struct job *job = calloc(1, sizeof(*job));
    *job = (struct job){.file = file, .offset = offset, .dst = dst, .len = len, .done = done, .arg = arg};
    if (fs->sync) {
        run_read(fs, job);
        free(job);
        return;
    }
    pthread_mutex_lock(&fs->lock);
    fs->stats.reads++;
    queue(fs, job);
    pthread_mutex_unlock(&fs->lock);
}

void efs_lease(struct efs *fs, uint32_t file, efs_leased_fn *done, void *arg)
{
    struct job *job = calloc(1, sizeof(*job));
    *job = (struct job){.file = file, .leased = done, .arg = arg};
    pthread_mutex_lock(&fs->lock);
    fs->stats.leases++;
    bool room = fs->leased < fs->room;
    fs->leased += room;
    if (room)
        queue(fs, job);
    pthread_mutex_unlock(&fs->lock);
    if (!room) {
        free(job);
        done(arg, -ENOMEM, NULL);
    }
}

/* Nothing is handed out: efs_request_submit() sees to it. */
bool efs_hands_out_coded(const struct efs *fs)
{
    (void)fs;
    return false;
}

enum efs_form efs_request_form(const struct efs_request *request, uint32_t index)
{
    (void)request, (void)index;
    return EFS_FORM_FULL;
}

errint_t efs_request_window(const struct efs_request *request, uint32_t index, struct efs_window *window)
{
    (void)request, (void)index, (void)window;
    return -EBUSY;
}

errint_t efs_request_places(const struct efs_request *request, uint32_t index, struct efs_export_place **places,
                            uint32_t *count)
{
    (void)request, (void)index, (void)places, (void)count;
    return -EOPNOTSUPP;
}

errint_t efs_request_open_window(const struct efs_request *request, uint32_t index, uint32_t number,
                                 struct efs_window *window)
{
    (void)request, (void)index, (void)number, (void)window;
    return -EOPNOTSUPP;
}

errint_t efs_request_layout(const struct efs_request *request, uint32_t index, struct efs_export_layout **layout,
                            size_t *bytes)
{
    (void)request, (void)index, (void)layout, (void)bytes;
    return -EOPNOTSUPP;
}

void efs_request_drop(struct efs_request *request, uint32_t index)
{
    (void)request, (void)index;
}

bool efs_requests_are_stuck(struct efs *fs, const struct efs_request_held *held, uint32_t count)
{
    (void)fs, (void)held, (void)count;
    return false;
}

void efs_request_forget(struct efs_request *request, uint32_t index)
{
    (void)request, (void)index;
}

errint_t efs_experts_find(const struct efs *fs, const char *stack, uint32_t layer, struct efs_need *needs,
                          uint32_t count, struct efs_error *err)
{
    (void)stack, (void)layer;
    for (uint32_t i = 0; i < count; i++)
        if (needs[i].expert >= fs->expert_count)
            return efs_fail(err, -ENOENT, "there is no expert %u", needs[i].expert);
    return 0;
}

int efs_lease_fd(const struct efs_lease *lease)
{
    return lease->fd;
}

const void *efs_lease_data(const struct efs_lease *lease)
{
    return lease->data;
}

static void lease_free(struct efs_lease *lease)
{
    if (lease->data && lease->data != MAP_FAILED)
        munmap(lease->data, lease->bytes + 1);
    if (lease->fd >= 0)
        close(lease->fd);
    free(lease);
}

void efs_lease_release(struct efs_lease *lease)
{
    struct efs *fs = lease->fs;
    pthread_mutex_lock(&fs->lock);
    *(lease->before ? &lease->before->after : &fs->leases) = lease->after;
    if (lease->after)
        lease->after->before = lease->before;
    fs->leased--;
    pthread_mutex_unlock(&fs->lock);
    lease_free(lease);
}

void efs_stats(struct efs *fs, struct efs_stats *stats)
{
    pthread_mutex_lock(&fs->lock);
    *stats = fs->stats;
    stats->leased_experts = fs->leased;
    pthread_mutex_unlock(&fs->lock);
}

uint32_t efs_expert_count(const struct efs *fs)
{
    return fs->expert_count;
}

errint_t efs_expert_info(struct efs *fs, struct efs_expert_id id, struct efs_expert_info *info)
{
    uint32_t expert = id.number;
    for (uint32_t i = 0; i < fs->file_count; i++) {
        if (fs->files[i].info.expert.number == expert) {
            *info = (struct efs_expert_info){.file = i, .expert = expert, .state = 'M'};
            info->raw_bytes = fs->files[i].info.bytes;
            info->kept = 'M';
            info->pin = fs->pins[expert] ? fs->pins[expert] : '-';
            snprintf(info->name, sizeof(info->name), "%.60s", fs->files[i].info.path);
            return 0;
        }
    }
    return -EINVAL;
}

uint64_t efs_auto_budget(void)
{
    return UINT64_C(1) << 40;
}

void efs_memory(struct efs_memory *memory)
{
    uint64_t all = 2 * efs_auto_budget();
    *memory = (struct efs_memory){.limit_bytes = all, .available_bytes = all, .free_bytes = all};
}

static size_t setting(const char *name)
{
    size_t i = 0;
    while (i < 6 && strcmp(setting_names[i], name) != 0)
        i++;
    return i;
}

errint_t efs_set(struct efs *fs, const char *name, const char *value, uint64_t *held_bytes, struct efs_error *err)
{
    size_t i = setting(name);
    if (i == 6)
        return -ENODATA;
    if (!*value || strstr(value, "bad"))
        return efs_fail(err, -EINVAL, "%s=%s: allowed is what is not bad", name, value);
    if (i == 0 && strcmp(value, "1") == 0)
        return efs_fail(err, -ENOMEM, "a budget of 1 is below the floor");
    *held_bytes = i == 0 && strcmp(value, "2") == 0 ? 4096 : 0;
    pthread_mutex_lock(&fs->lock);
    snprintf(fs->settings[i], sizeof(fs->settings[i]), "%s", value);
    pthread_mutex_unlock(&fs->lock);
    return 0;
}

errint_t efs_get(struct efs *fs, const char *name, char *value, size_t room)
{
    size_t i = setting(name);
    if (i == 6)
        return -ENODATA;
    pthread_mutex_lock(&fs->lock);
    snprintf(value, room, "%s", fs->settings[i]);
    pthread_mutex_unlock(&fs->lock);
    return 0;
}

/* The fake's layers are its folders. */
errint_t efs_pin(struct efs *fs, struct efs_expert_id id, bool whole_layer, char pool, struct efs_error *err)
{
    (void)err;
    uint32_t expert = id.number;
    const char *path = NULL;
    for (uint32_t i = 0; i < fs->file_count; i++)
        path = fs->files[i].info.expert.number == expert ? fs->files[i].path : path;
    for (uint32_t i = 0; path && i < fs->file_count; i++) {
        const struct file *file = &fs->files[i];
        size_t folder = (size_t)(strrchr(path, '/') - path);
        if (file->info.expert.number == expert ||
            (whole_layer && file->info.expert.number != UINT32_MAX && strncmp(file->path, path, folder + 1) == 0))
            fs->pins[file->info.expert.number] = pool;
    }
    return path ? 0 : -ENOENT;
}

errint_t efs_routing_take(struct efs *fs, uint32_t who, bool hint, const struct efs_routing *routing,
                          struct efs_error *err)
{
    (void)fs, (void)who, (void)hint, (void)routing, (void)err;
    return 0;
}

uint32_t efs_routing_observer(struct efs *fs)
{
    (void)fs;
    return 1;
}

void efs_routing_observer_end(struct efs *fs, uint32_t who)
{
    (void)fs, (void)who;
}

errint_t efs_describe(struct efs *fs, const char *what, char **text, size_t *bytes)
{
    (void)fs;
    *bytes = asprintf(text, "%s: none\n", what) < 0 ? 0 : strlen(*text);
    return *bytes ? 0 : -ENOMEM;
}

errint_t efs_pool_info(struct efs *fs, char pool, struct efs_pool_info *info)
{
    *info = (struct efs_pool_info){.experts = pool == 'M' ? fs->expert_count : 0};
    return 0;
}

uint32_t efs_experts_kept_full(struct efs *fs, uint32_t first, uint32_t end, uint32_t *numbers)
{
    (void)fs, (void)first, (void)end, (void)numbers;
    return 0;
}

errint_t efs_request_submit(struct efs *fs, const struct efs_need *needs, uint32_t count,
                            const struct efs_request_how *how, struct efs_request **request, struct efs_error *err)
{
    (void)fs, (void)needs, (void)count, (void)err;
    *request = NULL;
    return how->bring ? 0 : -ENOMEM; /* nothing is handed out */
}

const char *efs_version(void)
{
    return EFS_VERSION_STRING;
}

errint_t efs_fail(struct efs_error *err, errint_t code, const char *format, ...)
{
    if (err) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(err->text, sizeof(err->text), format, arguments);
        va_end(arguments);
    }
    return code;
}
