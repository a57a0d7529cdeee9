/*
 * replay_reader_mount.c - the experts' files of a mount: said what is needed, opened, mapped, closed.
 *
 * Where the mount has .expertfs/want, a layer is asked for as a whole by a line there before its files are opened. An
 * open waits until its expert is ready, so each has a thread; what is open first is computed first. What was used is
 * unmapped and closed by the same threads. It is closed last: of a file that the kernel serves by itself the mount
 * keeps what is open, but does not hear of mappings.
 */
#include "replay_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define OPENERS_MAX 32u
#define STAT_BYTES 16384u
#define WANT_BYTES 4096u /* what the mount takes */

struct file { /* one expert of the request */
    const struct replay_expert *expert;
    uint32_t tokens;
    int fd;
    void *map; /* NULL: neither */
    errint_t error;
};

enum job_kind { JOB_OPEN, JOB_CLOSE, JOB_END };
struct job {
    enum job_kind kind;
    uint32_t file; /* JOB_OPEN: number in files */
    int fd;        /* JOB_CLOSE */
    void *map;
    uint64_t bytes;
};

struct mount_reader {
    struct replay_reader reader;
    const struct replay_model *model;
    int root, want; /* directory; .expertfs/want, or -1 */
    uint32_t request_max, count, given;
    struct file *files;
    pthread_t openers[OPENERS_MAX];
    uint32_t opener_count;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t more, done;
    struct job *jobs; /* a ring of job_room */
    uint32_t job_room, job_first, job_count;
    uint32_t *ready; /* numbers of files, in the order in which they became so */
    uint32_t ready_count;
};

/* ---- openers ------------------------------------------------------------------------------------------------ */

/* With the mutex held. There is room for all files of two requests. */
static void add_job(struct mount_reader *r, struct job job)
{
    r->jobs[(r->job_first + r->job_count++) % r->job_room] = job;
}

static void open_file(const struct mount_reader *r, struct file *file)
{
    int fd = openat(r->root, file->expert->path, O_RDONLY | O_CLOEXEC);
    file->map = NULL;
    file->error = fd < 0 ? -errno : 0;
    if (fd < 0)
        return;
    void *map = mmap(NULL, file->expert->file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        file->error = -errno;
    else
        file->map = map;
    if (file->error)
        close(fd);
    else
        file->fd = fd;
}

static void *opener(void *arg)
{
    struct mount_reader *r = arg;
    for (;;) {
        pthread_mutex_lock(&r->mutex);
        while (r->job_count == 0)
            pthread_cond_wait(&r->more, &r->mutex);
        struct job job = r->jobs[r->job_first];
        r->job_first = (r->job_first + 1) % r->job_room;
        r->job_count--;
        pthread_mutex_unlock(&r->mutex);
        if (job.kind == JOB_END)
            return NULL;
        if (job.kind == JOB_CLOSE) {
            munmap(job.map, job.bytes);
            close(job.fd);
            continue;
        }
        open_file(r, &r->files[job.file]);
        pthread_mutex_lock(&r->mutex);
        r->ready[r->ready_count++] = job.file;
        pthread_cond_signal(&r->done);
        pthread_mutex_unlock(&r->mutex);
    }
}

/* ---- a request ---------------------------------------------------------------------------------------------- */

/* "3: 17*12 4 9*2": layer, experts, tokens of each. */
static errint_t say_wanted(const struct mount_reader *r, uint32_t layer, struct efs_error *err)
{
    char line[WANT_BYTES];
    size_t used = (size_t)snprintf(line, sizeof(line), "%s:", r->model->layer_name[layer]);
    for (uint32_t i = 0; i < r->count; i++) {
        used += (size_t)snprintf(line + used, sizeof(line) - used, " %u*%u", r->files[i].expert->number,
                                 r->files[i].tokens);
        if (used + 1 >= sizeof(line))
            return efs_fail(err, -E2BIG, "a request of %u experts is too long a line", r->count);
    }
    line[used++] = '\n';
    ssize_t written = pwrite(r->want, line, used, 0);
    if (written < 0)
        return efs_fail(err, -errno, ".expertfs/want refuses '%.*s': %s", (int)(used < 81 ? used - 1 : 80), line,
                        strerror(errno));
    return 0;
}

static errint_t request(struct replay_reader *reader, uint32_t layer, const uint32_t *experts, const uint32_t *tokens,
                        uint32_t count, struct efs_error *err)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    if (count > r->request_max)
        return efs_fail(err, -EINVAL, "a request of %u experts", count);
    for (uint32_t i = 0; i < count; i++)
        r->files[i] = (struct file){.expert = replay_model_expert(r->model, layer, experts[i]), .tokens = tokens[i]};
    r->count = count;
    r->given = 0;
    errint_t rc = r->want >= 0 ? say_wanted(r, layer, err) : 0;
    if (rc < 0) {
        r->count = 0;
        return rc;
    }
    pthread_mutex_lock(&r->mutex);
    r->ready_count = 0;
    for (uint32_t i = 0; i < count; i++)
        add_job(r, (struct job){.kind = JOB_OPEN, .file = i});
    pthread_cond_broadcast(&r->more);
    pthread_mutex_unlock(&r->mutex);
    return 0;
}

/* With the mutex held: what was given is not used any more. */
static void put_away(struct mount_reader *r, struct file *file)
{
    if (file->map)
        add_job(r,
                (struct job){.kind = JOB_CLOSE, .fd = file->fd, .map = file->map, .bytes = file->expert->file_bytes});
    file->map = NULL;
}

static errint_t next(struct replay_reader *reader, struct replay_view *view, struct efs_error *err)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    pthread_mutex_lock(&r->mutex);
    if (r->given > 0) {
        put_away(r, &r->files[r->ready[r->given - 1]]);
        pthread_cond_signal(&r->more);
    }
    while (r->ready_count == r->given)
        pthread_cond_wait(&r->done, &r->mutex);
    const struct file *file = &r->files[r->ready[r->given++]];
    pthread_mutex_unlock(&r->mutex);
    if (file->error)
        return efs_fail(err, file->error, "%s in the mount: %s", file->expert->path, strerror(-file->error));
    view->expert = file->expert;
    view->tokens = file->tokens;
    for (uint32_t t = 0; t < file->expert->count; t++)
        view->data[t] = (const uint8_t *)file->map + file->expert->tensors[t].at;
    return 0;
}

static void release(struct replay_reader *reader)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < r->ready_count; i++)
        put_away(r, &r->files[r->ready[i]]);
    pthread_cond_broadcast(&r->more);
    while (r->ready_count < r->count) /* after an error */
        pthread_cond_wait(&r->done, &r->mutex);
    for (uint32_t i = 0; i < r->count; i++)
        put_away(r, &r->files[i]);
    r->count = 0;
    pthread_cond_broadcast(&r->more);
    pthread_mutex_unlock(&r->mutex);
}

/* ---- what the mount counts ---------------------------------------------------------------------------------- */

/* The number behind "name: "; false: there is no such line. */
static bool value_of(const char *text, const char *name, uint64_t *value)
{
    size_t bytes = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (strncmp(line, name, bytes) == 0 && line[bytes] == ':') {
            *value = strtoull(line + bytes + 1, NULL, 10);
            return true;
        }
    return false;
}

static errint_t count(struct replay_reader *reader, struct replay_counters *c, struct efs_error *err)
{
    static const char *const states[REPLAY_STATES] = {"requests_f", "requests_c", "requests_s", "requests_e",
                                                      "requests_m"};
    static const char *const leases[REPLAY_STATES] = {"leases_f", "leases_c", NULL, NULL, "leases_m"};
    const struct mount_reader *r = (const struct mount_reader *)reader;
    char text[STAT_BYTES];
    uint64_t parts;
    *c = (struct replay_counters){0};
    int fd = openat(r->root, ".expertfs/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
    int rc = got < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        return efs_fail(err, rc, ".expertfs/stat of the mount: %s", strerror(-rc));
    text[got] = '\0';
    bool by_request = strstr(text, "\nrequests_m: ") != NULL;
    for (unsigned s = 0; s < REPLAY_STATES; s++)
        if (by_request || leases[s])
            value_of(text, by_request ? states[s] : leases[s], &c->hits[s]);
    if (value_of(text, "requests_p", &parts)) /* something of them had to be read, too */
        c->hits[REPLAY_STATES - 1] += parts;
    value_of(text, "disk_bytes", &c->read_bytes);
    value_of(text, "disk_ns", &c->io_ns);
    value_of(text, "decode_ns", &c->decode_ns);
    value_of(text, "policy_ns", &c->policy_ns);
    value_of(text, "recoded_bytes", &c->recoded_bytes);
    value_of(text, "schedules", &c->schedules);
    value_of(text, "schedule_ns", &c->schedule_ns);
    return 0;
}

/* ---- begin and end ------------------------------------------------------------------------------------------ */

static void close_reader(struct replay_reader *reader)
{
    struct mount_reader *r = (struct mount_reader *)reader;
    pthread_mutex_lock(&r->mutex);
    for (uint32_t i = 0; i < r->opener_count; i++)
        add_job(r, (struct job){.kind = JOB_END});
    pthread_cond_broadcast(&r->more);
    pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->opener_count; i++)
        pthread_join(r->openers[i], NULL);
    if (r->want >= 0)
        close(r->want);
    if (r->root >= 0)
        close(r->root);
    free(r->files);
    free(r->jobs);
    free(r->ready);
    free(r);
}

errint_t replay_reader_mount(const struct replay_model *model, const char *mountpoint, uint32_t request_max,
                             struct replay_reader **reader, struct efs_error *err)
{
    struct mount_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return efs_fail(err, -ENOMEM, "no memory");
    *r = (struct mount_reader){.reader = {request, next, release, NULL, count, close_reader, 0},
                               .model = model,
                               .root = open(mountpoint, O_PATH | O_DIRECTORY | O_CLOEXEC),
                               .want = -1,
                               .request_max = request_max,
                               .job_room = 2 * request_max + OPENERS_MAX,
                               .mutex = PTHREAD_MUTEX_INITIALIZER,
                               .more = PTHREAD_COND_INITIALIZER,
                               .done = PTHREAD_COND_INITIALIZER};
    errint_t rc = r->root < 0 ? efs_fail(err, -errno, "%s: %s", mountpoint, strerror(errno)) : 0;
    r->files = calloc(request_max, sizeof(*r->files));
    r->ready = calloc(request_max, sizeof(*r->ready));
    r->jobs = calloc(r->job_room, sizeof(*r->jobs));
    if (rc == 0 && (!r->files || !r->ready || !r->jobs))
        rc = efs_fail(err, -ENOMEM, "no memory");
    if (rc == 0)
        r->want = openat(r->root, ".expertfs/want", O_WRONLY | O_CLOEXEC);
    while (rc == 0 && r->opener_count < OPENERS_MAX && r->opener_count < 2 * request_max) {
        int failed = pthread_create(&r->openers[r->opener_count], NULL, opener, r);
        if (failed && r->opener_count == 0)
            rc = efs_fail(err, -failed, "no thread: %s", strerror(failed));
        if (failed)
            break;
        r->opener_count++;
    }
    if (rc < 0)
        close_reader(&r->reader);
    else
        *reader = &r->reader;
    return rc;
}
