/* SPDX-License-Identifier: Apache-2.0 */
/* stage.c - see stage.h. */
#include "stage.h"

#include "interrupt.h"

#include "clock.h"
#include "unmount.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_SECONDS 120
#define STOP_SECONDS 20
#define POLL_NS 2000000L
#define WARDEN_NS 6000000000u

static void pause_shortly(void)
{
    const struct timespec t = {.tv_nsec = POLL_NS};
    nanosleep(&t, NULL);
}

/* ---- taking away -------------------------------------------------------------------------------------------- */

/* Remove the files of a folder that is ours. */
static void directory_empty(const char *folder)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        (void)unlinkat(dirfd(dir), entry->d_name, 0); /* not "." and "..": they are directories */
    if (dir)
        closedir(dir);
}

static void directory_remove(const struct replay_stage *stage)
{
    tools_unmount_fuse(stage->mountpoint);
    directory_empty(stage->state);
    (void)rmdir(stage->state);
    replay_cgroup_remove(&stage->cgroup);
    (void)rmdir(stage->mountpoint);
    (void)unlink(stage->log);
    (void)rmdir(stage->folder);
}

/* Until the other end of the pipe is closed, by us or by our death. */
static void stage_watch(const struct replay_stage *stage, int fd)
{
    char byte;
    ssize_t got;
    setsid();
    for (int i = 1; i < NSIG; i++)
        signal(i, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    do
        got = read(fd, &byte, 1);
    while (got > 0 || (got < 0 && errno == EINTR));
    uint64_t end = tools_now_ns() + WARDEN_NS; /* a daemon that ends just now may still save what it counted */
    for (directory_remove(stage); access(stage->folder, F_OK) == 0 && tools_now_ns() < end; directory_remove(stage))
        pause_shortly();
    _exit(0);
}

/* ---- folder, warden, cgroup --------------------------------------------------------------------------------- */

errint_t replay_stage_open(struct replay_stage *stage, struct efs_error *err)
{
    const char *base = getenv("TMPDIR");
    int pipe_fds[2];
    *stage = (struct replay_stage){.alive_fd = -1};
    snprintf(stage->folder, sizeof(stage->folder), "%s/moe-replay-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(stage->folder))
        return efs_fail(err, -errno, "%s: %s", stage->folder, strerror(errno));
    snprintf(stage->mountpoint, sizeof(stage->mountpoint), "%s/mnt", stage->folder);
    snprintf(stage->log, sizeof(stage->log), "%s/log", stage->folder);
    snprintf(stage->state, sizeof(stage->state), "%s/state", stage->folder);
    errint_t rc = mkdir(stage->mountpoint, 0700) == 0 && mkdir(stage->state, 0700) == 0 ? 0 : -errno;
    if (replay_cgroup_place(&stage->cgroup, &stage->no_cgroup) == 0 &&
        replay_cgroup_make(&stage->cgroup, UINT64_C(1) << 30, &stage->no_cgroup) < 0)
        stage->cgroup.path[0] = '\0';
    replay_cgroup_remove(&stage->cgroup);
    if (rc == 0 && pipe2(pipe_fds, O_CLOEXEC) != 0)
        rc = -errno;
    if (rc == 0) {
        stage->warden = fork();
        if (stage->warden == 0) {
            close(pipe_fds[1]);
            stage_watch(stage, pipe_fds[0]);
        }
        rc = stage->warden < 0 ? -errno : 0;
        close(pipe_fds[0]);
        stage->alive_fd = pipe_fds[1];
    }
    if (rc < 0) {
        replay_stage_close(stage);
        return efs_fail(err, rc, "%s: %s", stage->folder, strerror(-rc));
    }
    return 0;
}

void replay_stage_close(struct replay_stage *stage)
{
    struct efs_error ignored = {""};
    if (!stage->folder[0])
        return;
    (void)replay_stage_unmount(stage, &ignored);
    directory_remove(stage);
    if (stage->alive_fd >= 0)
        close(stage->alive_fd);
    if (stage->warden > 0)
        waitpid(stage->warden, NULL, 0);
    *stage = (struct replay_stage){.alive_fd = -1};
}

uint64_t replay_stage_limit(struct replay_stage *stage, uint64_t limit_bytes)
{
    struct efs_error err = {""};
    if (!stage->cgroup.path[0])
        return 0;
    replay_cgroup_remove(&stage->cgroup);
    if (replay_cgroup_make(&stage->cgroup, limit_bytes, &err) == 0)
        return limit_bytes;
    stage->no_cgroup = err;
    return 0;
}

errint_t replay_stage_forget(struct replay_stage *stage, const struct efs_profile *profile, struct efs_error *err)
{
    char path[512];
    char *json = efs_profile_json(profile);
    directory_empty(stage->state);
    snprintf(path, sizeof(path), "%s/profile-%016llx.json", stage->state, (unsigned long long)profile->content_hash);
    FILE *out = json ? fopen(path, "we") : NULL;
    bool written = out && fputs(json, out) >= 0;
    written = out && fclose(out) == 0 && written;
    free(json);
    return written ? 0 : efs_fail(err, -EIO, "%s cannot be written: %s", path, strerror(errno));
}

/* ---- the daemon --------------------------------------------------------------------------------------------- */

static void run_daemon(const struct replay_stage *stage, bool limited, const char *program, const char *store,
                       const char *options)
{
    int log = open(stage->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setsid(); /* Ctrl-C is for the process that started it */
    if (log >= 0)
        dup2(log, STDERR_FILENO);
    if (limited && replay_cgroup_enter(&stage->cgroup) < 0)
        _exit(125);
    setenv("EXPERTFS_STATE", stage->state, 1);
    execlp(program, program, "-f", store, stage->mountpoint, "-o", options, (char *)NULL);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    _exit(127);
}

/* The last line that the daemon said, without its end. */
static void last_words(const struct replay_stage *stage, char *line, size_t room)
{
    char text[1024];
    line[0] = '\0';
    FILE *in = fopen(stage->log, "re");
    while (in && fgets(text, sizeof(text), in)) {
        text[strcspn(text, "\n")] = '\0';
        if (text[0])
            snprintf(line, room, "%s", text);
    }
    if (in)
        fclose(in);
}

/* Has it ended by itself? Then it is gone. */
static bool has_ended(struct replay_stage *stage, int *status)
{
    if (waitpid(stage->daemon, status, WNOHANG) != stage->daemon)
        return false;
    stage->daemon = 0;
    return true;
}

static errint_t tell_end(const struct replay_stage *stage, int status, struct efs_error *err)
{
    char words[1024];
    last_words(stage, words, sizeof(words));
    if (replay_cgroup_kills(&stage->cgroup) > 0)
        return efs_fail(err, -ENOMEM, "the daemon was ended: it needed more than its memory cgroup allows");
    if (WIFSIGNALED(status))
        return efs_fail(err, -EIO, "the daemon was ended by signal %d (%s)%s%s", WTERMSIG(status),
                        strsignal(WTERMSIG(status)), words[0] ? "; it said: " : "", words);
    return efs_fail(err, -EIO, "the daemon ended: %s", words[0] ? words : "without a word");
}

errint_t replay_stage_mount(struct replay_stage *stage, const char *program, const char *store, const char *options,
                            struct efs_error *err)
{
    char version[300];
    int status;
    bool limited = stage->cgroup.path[0] && access(stage->cgroup.path, F_OK) == 0;
    snprintf(version, sizeof(version), "%s/.expertfs/version", stage->mountpoint);
    stage->daemon = fork();
    if (stage->daemon == 0)
        run_daemon(stage, limited, program, store, options);
    if (stage->daemon < 0) {
        stage->daemon = 0;
        return efs_fail(err, -errno, "fork: %s", strerror(errno));
    }
    for (time_t end = time(NULL) + START_SECONDS; time(NULL) < end; pause_shortly()) {
        if (tools_is_fuse(stage->mountpoint) && access(version, R_OK) == 0)
            return 0;
        if (has_ended(stage, &status))
            return tell_end(stage, status, err);
        if (tools_interrupted())
            return efs_fail(err, -ECANCELED, "cancelled");
    }
    return efs_fail(err, -ETIMEDOUT, "%s does not serve %s after %d seconds", program, store, START_SECONDS);
}

errint_t replay_stage_unmount(struct replay_stage *stage, struct efs_error *err)
{
    int status = 0;
    if (stage->daemon <= 0)
        return 0;
    if (has_ended(stage, &status)) {
        tools_unmount_fuse(stage->mountpoint);
        return tell_end(stage, status, err);
    }
    kill(stage->daemon, SIGTERM);
    for (time_t end = time(NULL) + STOP_SECONDS; stage->daemon > 0 && !has_ended(stage, &status); pause_shortly())
        if (time(NULL) >= end) {
            tools_unmount_fuse(stage->mountpoint);
            kill(stage->daemon, SIGKILL);
        }
    tools_unmount_fuse(stage->mountpoint);
    return 0;
}

/* ---- the program -------------------------------------------------------------------------------------------- */

void replay_stage_program(char *path, size_t room)
{
    char own[3900];
    ssize_t bytes = readlink("/proc/self/exe", own, sizeof(own) - 1);
    own[bytes > 0 ? bytes : 0] = '\0';
    char *slash = strrchr(own, '/');
    if (slash) {
        *slash = '\0';
        snprintf(path, room, "%s/expertfs", own);
        if (access(path, X_OK) == 0)
            return;
    }
    snprintf(path, room, "expertfs");
}

bool replay_stage_knows(const char *program, const char *name)
{
    char line[1024];
    size_t bytes = strlen(name);
    bool known = false;
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDOUT_FILENO);
        execlp(program, program, "--help", (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    FILE *in = fdopen(fds[0], "r");
    while (in && fgets(line, sizeof(line), in)) {
        const char *word = line + strspn(line, " ");
        known = known || (strncmp(word, name, bytes) == 0 && (word[bytes] == '=' || word[bytes] == ' '));
    }
    if (in)
        fclose(in);
    else
        close(fds[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return known;
}
