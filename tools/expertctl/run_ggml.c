/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_ggml.c - see run_ggml.h. The dynamic loader lists the program's libraries, as ldd(1) does; a child opens libggml
 * from that list and calls its ggml_backend_load().
 */
#include "run_ggml.h"

#include "child.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MS_MAX 10000

bool ctl_find_program(const char *program, char *path, size_t room)
{
    const char *folders = getenv("PATH");
    if (strchr(program, '/'))
        return (size_t)snprintf(path, room, "%s", program) < room;
    for (const char *at = folders ? folders : "/bin:/usr/bin"; *at;) {
        size_t bytes = strcspn(at, ":");
        if ((size_t)snprintf(path, room, "%.*s/%s", (int)bytes, at, program) < room && access(path, X_OK) == 0)
            return true;
        at += bytes + (at[bytes] == ':');
    }
    return false;
}

/* Whether the loader can list the libraries of a file without running it: a dynamically linked program of this machine,
 * not setuid or setgid. */
static bool can_list(const char *path)
{
    Elf64_Ehdr head;
    Elf64_Phdr part;
    struct stat st;
    bool interpreted = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool good = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && !(st.st_mode & (S_ISUID | S_ISGID)) &&
                pread(fd, &head, sizeof(head), 0) == (ssize_t)sizeof(head) &&
                memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_ident[EI_CLASS] == ELFCLASS64 &&
                head.e_phentsize == sizeof(part);
    for (unsigned i = 0; good && i < head.e_phnum && !interpreted; i++)
        interpreted =
            pread(fd, &part, sizeof(part), (off_t)(head.e_phoff + i * sizeof(part))) == (ssize_t)sizeof(part) &&
            part.p_type == PT_INTERP;
    if (fd >= 0)
        close(fd);
    return good && interpreted;
}

/* Copies the path of a library that the loader listed as "NAME... => PATH (0x...)". false: not listed, or not found. */
static bool find_library(const char *list, const char *name, char *path, size_t room)
{
    for (const char *line = list; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        line += strspn(line, "\t ");
        const char *arrow = strstr(line, " => "), *end = arrow ? strstr(arrow, " (0x") : NULL;
        if (strncmp(line, name, strlen(name)) != 0 || !end || memchr(line, '\n', (size_t)(end - line)))
            continue;
        arrow += strlen(" => ");
        return (size_t)snprintf(path, room, "%.*s", (int)(end - arrow), arrow) < room;
    }
    return false;
}

struct names {
    const char *first, *second;
};

/* Lists the libraries of a program, with its path first, name second. */
static int list_libraries(const void *arg)
{
    const struct names *of = arg;
    setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
    execl(of->first, of->second, (char *)NULL);
    return 1;
}

/* The path of a library with which the loader would start the program. false: not known. */
static bool program_library(const char *program, const char *name, char *library, size_t room)
{
    char path[4096], *list = NULL;
    bool found = ctl_find_program(program, path, sizeof(path)) && can_list(path) &&
                 ctl_child_run(list_libraries, &(struct names){path, program}, MS_MAX, &list, NULL) == 0 &&
                 find_library(list, name, library, room);
    free(list);
    return found;
}

/* Prints the version of ggml, of the library first, if it refuses the plugin, second; nothing if it takes it or cannot
 * load any. */
static int try_load(const void *arg)
{
    const struct names *of = arg;
    void *(*load)(const char *path);
    const char *(*version)(void);
    void *handle = dlopen(of->first, RTLD_NOW | RTLD_GLOBAL);
    void *call = handle ? dlsym(handle, "ggml_backend_load") : NULL;
    memcpy(&load, &call, sizeof(load));
    call = handle ? dlsym(handle, "ggml_version") : NULL;
    memcpy(&version, &call, sizeof(version));
    if (load && !load(of->second))
        dprintf(STDOUT_FILENO, "%.63s", version ? version() : "of an unknown version");
    return 0;
}

errint_t ctl_run_check_ggml(const char *program, const char *plugin, bool mounted, struct efs_error *err)
{
    char library[4096], *version = NULL;
    if (!program_library(program, "libggml.so", library, sizeof(library)) ||
        ctl_child_run(try_load, &(struct names){library, plugin}, MS_MAX, &version, NULL) != 0 || !*version) {
        free(version);
        return 0;
    }
    efs_fail(err, -EPROTONOSUPPORT,
             "%s: its ggml %s refuses libggml-expertfs.so%s\nhint: expertfs-ggml(7) lists the versions%s", program,
             version,
             mounted ? ": llama.cpp reads experts from the mount's files" : ", which opens the store in the program",
             mounted ? "" : "; with {}/NAME in an argument the store is mounted instead");
    free(version);
    if (!mounted)
        return -EPROTONOSUPPORT;
    fprintf(stderr, "expertctl: warning: %s\n", err->text);
    err->text[0] = '\0';
    return 0;
}
