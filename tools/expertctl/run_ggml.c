/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_ggml.c - see run_ggml.h. The dynamic loader lists the program's libraries, as ldd(1) does; a child opens libggml
 * from that list and calls its ggml_backend_load().
 */
#include "run_ggml.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS_MAX 10
#define LIST_BYTES 32768u /* of the libraries of a program */

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

/* Starts a child with its standard output in *out. Returns as fork(2) does; the child has SECONDS_MAX seconds. */
static pid_t child_start(int *out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        alarm(SECONDS_MAX);
        dup2(ends[1], STDOUT_FILENO);
        if (null >= 0)
            dup2(null, STDERR_FILENO);
        return 0;
    }
    close(ends[1]);
    *out = ends[0];
    if (child < 0)
        close(ends[0]);
    return child;
}

/* Reads the child's output, up to room - 1 bytes, and waits for its end. Whether it exited with 0. */
static bool child_end(pid_t child, int out, char *text, size_t room)
{
    size_t used = 0;
    ssize_t n;
    int status = 0;
    while ((n = read(out, text + used, room - 1 - used)) > 0 || (n < 0 && errno == EINTR))
        used += n > 0 ? (size_t)n : 0;
    text[used] = '\0';
    close(out);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
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

/* The path of a library with which the loader would start the program. false: not known. */
static bool program_library(const char *program, const char *name, char *library, size_t room)
{
    char path[4096], *list = malloc(LIST_BYTES);
    int out;
    pid_t child = list && ctl_find_program(program, path, sizeof(path)) && can_list(path) ? child_start(&out) : -1;
    if (child == 0) {
        setenv("LD_TRACE_LOADED_OBJECTS", "1", 1);
        execl(path, program, (char *)NULL);
        _exit(1);
    }
    bool found = child > 0 && child_end(child, out, list, LIST_BYTES) && find_library(list, name, library, room);
    free(list);
    return found;
}

/* In the child: prints the version of ggml if it refuses the plugin, nothing if it takes it or cannot load any. */
static void try_load(const char *library, const char *plugin)
{
    void *(*load)(const char *path);
    const char *(*version)(void);
    void *handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    void *call = handle ? dlsym(handle, "ggml_backend_load") : NULL;
    memcpy(&load, &call, sizeof(load));
    call = handle ? dlsym(handle, "ggml_version") : NULL;
    memcpy(&version, &call, sizeof(version));
    if (load && !load(plugin)) {
        const char *text = version ? version() : "of an unknown version";
        if (write(STDOUT_FILENO, text, strlen(text)) < 0)
            _exit(1);
    }
    _exit(0);
}

errint_t ctl_run_check_ggml(const char *program, const char *plugin, bool mounted, struct efs_error *err)
{
    char library[4096], version[64] = "";
    int out;
    if (!program_library(program, "libggml.so", library, sizeof(library)))
        return 0;
    pid_t child = child_start(&out);
    if (child == 0)
        try_load(library, plugin);
    if (child < 0 || !child_end(child, out, version, sizeof(version)) || !version[0])
        return 0;
    efs_fail(err, -EPROTONOSUPPORT,
             "%s: its ggml %s refuses libggml-expertfs.so%s\nhint: expertfs-ggml(7) lists the versions%s", program,
             version,
             mounted ? ": llama.cpp reads experts from the mount's files" : ", which opens the store in the program",
             mounted ? "" : "; with {}/NAME in an argument the store is mounted instead");
    if (!mounted)
        return -EPROTONOSUPPORT;
    fprintf(stderr, "expertctl: warning: %s\n", err->text);
    err->text[0] = '\0';
    return 0;
}
