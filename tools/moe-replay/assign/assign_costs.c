/* SPDX-License-Identifier: Apache-2.0 */
/* assign_costs.c - times of an expert on a processor and on a graphics processor, from files and tables. */
#include "assign_command.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What kernels reach of the data sheets: some 0.8 of the memory's rate, half of the products, 0.8 of the link. */
static const struct replay_gpu known[] = {
    {"rtx3090", 24.0 * (1 << 30), 750e9, 35e12, 15, 25e9},
    {"l40s", 48.0 * (1 << 30), 690e9, 180e12, 15, 25e9},
    {"h100", 80.0 * (1 << 30), 2700e9, 500e12, 15, 50e9},
};

/* ---- files of lines ------------------------------------------------------------------------------------------- */

#define WORDS_MAX 4u

/* What is no file may never end, or have no writer. */
static errint_t open_file(const char *path, FILE **in, struct efs_error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    errint_t rc = fd < 0 || fstat(fd, &st) != 0 ? efs_fail(err, -errno, "%s: %s", path, strerror(errno)) : 0;
    if (rc == 0 && !S_ISREG(st.st_mode))
        rc = efs_fail(err, -EINVAL, "%s: not a regular file", path);
    if (rc == 0 && !(*in = fdopen(fd, "r")))
        rc = efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    if (rc < 0 && fd >= 0)
        close(fd);
    return rc;
}

/* Each line's words to take; -EINVAL of it is told with file and line. */
static errint_t read_lines(const char *path, const char *(*take)(void *arg, char *const *words, unsigned count),
                           void *arg, struct efs_error *err)
{
    char line[256];
    FILE *in = NULL;
    errint_t rc = open_file(path, &in, err);
    if (rc < 0)
        return rc;
    for (unsigned number = 1; rc == 0 && fgets(line, sizeof(line), in); number++) {
        char *words[WORDS_MAX + 1], *rest = line;
        unsigned count = 0;
        if (strlen(line) == sizeof(line) - 1 && line[sizeof(line) - 2] != '\n') {
            rc = efs_fail(err, -EINVAL, "%s:%u: a line of more than %zu characters", path, number, sizeof(line) - 2);
            break;
        }
        line[strcspn(line, "#\n")] = '\0';
        for (char *word; count <= WORDS_MAX && (word = strtok_r(rest, " \t\r", &rest));)
            words[count++] = word;
        const char *wrong = count ? take(arg, words, count) : NULL;
        if (wrong)
            rc = efs_fail(err, -EINVAL, "%s:%u: %s", path, number, wrong);
    }
    if (rc == 0 && ferror(in))
        rc = efs_fail(err, -EIO, "%s: reading failed", path);
    fclose(in);
    return rc;
}

static bool parse_positive(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*value) && *value > 0 && *value < 1e18;
}

/* ---- the processor -------------------------------------------------------------------------------------------- */

static const char *take_cpu_line(void *arg, char *const *words, unsigned count)
{
    struct replay_cpu *cpu = arg;
    double tokens, plain_us, coded_us;
    if (strcmp(words[0], "expert_bytes") == 0) {
        double bytes;
        if (count != 2 || !parse_positive(words[1], &bytes) || bytes < 1)
            return "expert_bytes: a number, 1 or more";
        cpu->expert_bytes = (uint64_t)bytes;
        return NULL;
    }
    if (strcmp(words[0], "tokens") != 0 || count != 4)
        return "neither \"expert_bytes N\" nor \"tokens N PLAIN_US CODED_US\"";
    if (!parse_positive(words[1], &tokens) || tokens > 1e6 || tokens != floor(tokens) ||
        !parse_positive(words[2], &plain_us) || !parse_positive(words[3], &coded_us) || plain_us > 1e9 ||
        coded_us > 1e9)
        return "tokens: a whole number and two times in microseconds";
    if (cpu->points == REPLAY_CPU_POINTS)
        return "more numbers of tokens than are kept";
    if (cpu->points && tokens <= cpu->point[cpu->points - 1].tokens)
        return "tokens: not in rising order";
    cpu->point[cpu->points].tokens = (uint32_t)tokens;
    cpu->point[cpu->points].plain_ns = plain_us * 1e3;
    cpu->point[cpu->points++].coded_ns = coded_us * 1e3;
    return NULL;
}

errint_t replay_cpu_read(const char *path, struct replay_cpu *cpu, struct efs_error *err)
{
    *cpu = (struct replay_cpu){0};
    errint_t rc = read_lines(path, take_cpu_line, cpu, err);
    if (rc == 0 && (cpu->expert_bytes == 0 || cpu->points == 0))
        rc = efs_fail(err, -EINVAL, "%s: no %s", path, cpu->points ? "expert_bytes" : "line of tokens");
    return rc;
}

errint_t replay_cpu_write(const char *path, const struct replay_cpu *cpu, struct efs_error *err)
{
    FILE *out = fopen(path, "we");
    if (!out)
        return efs_fail(err, -errno, "%s: %s", path, strerror(errno));
    fprintf(out,
            "# an expert on this processor, from memory: tokens, microseconds plain and from the coded form\n"
            "expert_bytes %llu\n",
            (unsigned long long)cpu->expert_bytes);
    for (uint32_t i = 0; i < cpu->points; i++)
        fprintf(out, "tokens %u %.1f %.1f\n", cpu->point[i].tokens, cpu->point[i].plain_ns / 1e3,
                cpu->point[i].coded_ns / 1e3);
    bool bad = ferror(out);
    return fclose(out) != 0 || bad ? efs_fail(err, -EIO, "%s: writing failed", path) : 0;
}

double replay_cpu_ns(const struct replay_cpu *cpu, uint32_t tokens, bool coded)
{
    uint32_t i = 0;
    if (tokens == 0)
        return 0;
    while (i + 1 < cpu->points && cpu->point[i + 1].tokens < tokens)
        i++;
    double at = coded ? cpu->point[i].coded_ns : cpu->point[i].plain_ns;
    if (cpu->points == 1)
        return at * tokens / cpu->point[0].tokens;
    uint32_t next = i + 1 < cpu->points ? i + 1 : i, before = next - 1; /* beyond the last: its slope goes on */
    double slope = ((coded ? cpu->point[next].coded_ns : cpu->point[next].plain_ns) -
                    (coded ? cpu->point[before].coded_ns : cpu->point[before].plain_ns)) /
                   (cpu->point[next].tokens - cpu->point[before].tokens);
    double ns = at + slope * ((double)tokens - cpu->point[i].tokens);
    return ns > 1 ? ns : 1;
}

/* ---- the graphics processor ------------------------------------------------------------------------------------ */

static const char *take_gpu_line(void *arg, char *const *words, unsigned count)
{
    struct replay_gpu *gpu = arg;
    double value;
    if (count != 2 || !parse_positive(words[1], &value))
        return "not a name and a number above 0";
#define TAKE(field)                                                                                                    \
    if (strcmp(words[0], #field) == 0) {                                                                               \
        gpu->field = value;                                                                                            \
        return NULL;                                                                                                   \
    }
    REPLAY_GPU_NUMBERS(TAKE)
#undef TAKE
    return "no number of a graphics processor has that name";
}

errint_t replay_gpu_read(const char *name, struct replay_gpu *gpu, struct efs_error *err)
{
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++)
        if (strcmp(known[k].name, name) == 0) {
            *gpu = known[k];
            return 0;
        }
    *gpu = (struct replay_gpu){0};
    snprintf(gpu->name, sizeof(gpu->name), "%s", name);
    errint_t rc = read_lines(name, take_gpu_line, gpu, err);
#define CHECK(field)                                                                                                   \
    if (rc == 0 && gpu->field <= 0)                                                                                    \
        rc = efs_fail(err, -EINVAL, "%s: no " #field, name);
    REPLAY_GPU_NUMBERS(CHECK)
#undef CHECK
    return rc;
}

/* The weights are read once, and each takes two operations a token (2 bytes of BF16 each). */
double replay_gpu_compute_ns(const struct replay_gpu *gpu, uint64_t expert_bytes, uint32_t tokens)
{
    double read_s = (double)expert_bytes / gpu->bytes_per_second, run_s = (double)expert_bytes * tokens / gpu->flops;
    return tokens ? (read_s > run_s ? read_s : run_s) * 1e9 + gpu->launch_us * 1e3 : 0;
}

double replay_gpu_transfer_ns(const struct replay_gpu *gpu, uint64_t expert_bytes)
{
    return (double)expert_bytes / gpu->link_bytes_per_second * 1e9;
}
