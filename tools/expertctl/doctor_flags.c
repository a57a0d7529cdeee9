/* SPDX-License-Identifier: Apache-2.0 */
/* doctor_flags.c - see doctor_flags.h. */
#include "doctor_flags.h"

#include "llama_flags.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WORDS_MAX 4096

struct process {
    const char *pid;
    char *text; /* its arguments, each ended by 0 */
    char *words[WORDS_MAX];
    size_t count;
};

/* A file of /proc/PID, ended by 0; NULL: it cannot be read, or is empty. For free(). */
static char *process_file(const char *pid, const char *name, size_t *bytes)
{
    char path[64], *text = NULL;
    size_t room = 0;
    snprintf(path, sizeof(path), "/proc/%.20s/%s", pid, name);
    FILE *f = fopen(path, "re");
    FILE *to = f ? open_memstream(&text, &room) : NULL;
    char piece[4096];
    for (size_t n; to && (n = fread(piece, 1, sizeof(piece), f)) > 0;)
        fwrite(piece, 1, n, to);
    if (f)
        fclose(f);
    if (to && (fclose(to) != 0 || room == 0)) {
        free(text);
        return NULL;
    }
    *bytes = room;
    return text;
}

static bool process_read(struct process *p, const char *pid)
{
    size_t bytes = 0;
    p->pid = pid;
    p->count = 0;
    p->text = process_file(pid, "cmdline", &bytes);
    for (size_t at = 0; p->text && at < bytes && p->count < WORDS_MAX; at += strlen(p->text + at) + 1)
        p->words[p->count++] = p->text + at;
    return p->count > 0;
}

static const char *process_name(const struct process *p)
{
    const char *slash = strrchr(p->words[0], '/');
    return slash ? slash + 1 : p->words[0];
}

/* Was it begun by `expertctl run` on this? */
static bool process_was_told(const struct process *p, const char *path)
{
    char mount[4128], store[4128];
    size_t bytes = 0;
    char *text = process_file(p->pid, "environ", &bytes);
    bool told = false;
    snprintf(mount, sizeof(mount), "EXPERTFS_MOUNT=%s", path);
    snprintf(store, sizeof(store), "EXPERTFS_STORE=%s", path);
    for (size_t at = 0; text && at < bytes && !told; at += strlen(text + at) + 1)
        told = strcmp(text + at, mount) == 0 || strcmp(text + at, store) == 0;
    free(text);
    return told;
}

/* Does it name a file that is on this device? */
static bool process_names(const struct process *p, dev_t device)
{
    for (size_t i = 1; i < p->count; i++) {
        char path[4200];
        struct stat st;
        if (p->words[i][0] == '/')
            snprintf(path, sizeof(path), "%.4100s", p->words[i]);
        else
            snprintf(path, sizeof(path), "/proc/%.20s/cwd/%.4100s", p->pid, p->words[i]);
        if (p->words[i][0] && p->words[i][0] != '-' && stat(path, &st) == 0 && st.st_dev == device)
            return true;
    }
    return false;
}

struct telling {
    const struct process *process;
    void (*tell)(void *arg, const char *program, const char *flag, const char *text);
    void *arg;
};

static void process_tell(void *arg, const char *flag, const char *text)
{
    const struct telling *t = arg;
    char program[300];
    snprintf(program, sizeof(program), "%.255s (%.20s)", process_name(t->process), t->process->pid);
    t->tell(t->arg, program, flag, text);
}

void ctl_doctor_flags(const char *path,
                      void (*tell)(void *arg, const char *program, const char *flag, const char *text), void *arg)
{
    struct process *p = calloc(1, sizeof(*p));
    DIR *folder = p ? opendir("/proc") : NULL;
    char *real = realpath(path, NULL);
    struct stat st;
    bool mount = real && stat(real, &st) == 0 && S_ISDIR(st.st_mode);
    for (struct dirent *entry; folder && real && (entry = readdir(folder));) {
        if (!isdigit((unsigned char)entry->d_name[0]) || !process_read(p, entry->d_name))
            continue;
        bool ours = strcmp(process_name(p), "expertctl") == 0 || strcmp(process_name(p), "expertfs") == 0;
        if (!ours && (process_was_told(p, real) || (mount && process_names(p, st.st_dev))))
            ctl_llama_flags(p->words, p->count, process_tell, &(struct telling){p, tell, arg});
        free(p->text);
        p->text = NULL;
    }
    if (folder)
        closedir(folder);
    free(real);
    free(p);
}
