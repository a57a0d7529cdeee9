/* SPDX-License-Identifier: Apache-2.0 */
/* assign_costs.c - times of an expert on the CPU and on a GPU. */
#include "assign_command.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NS_MAX 1e12 /* limit of an expert's time in the file */

const struct replay_gpu replay_gpus[REPLAY_GPUS] = {
    {"rtx3090", 24.0 * (1 << 30), 750e9, 35e12, 15, 25e9},
    {"l40s", 48.0 * (1 << 30), 690e9, 180e12, 15, 25e9},
    {"h100", 80.0 * (1 << 30), 2700e9, 500e12, 15, 50e9},
};

/* ---- the processor -------------------------------------------------------------------------------------------- */

/* Parses [[tokens, ns], ...]. false: not of this form, out of bounds, or tokens not ascending. */
static bool take_points(const json_t *points, struct replay_cpu *cpu)
{
    for (size_t i = 0; i < json_array_size(points); i++) {
        json_int_t tokens;
        double ns;
        if (i == REPLAY_CPU_POINTS || json_unpack(json_array_get(points, i), "[I,F]", &tokens, &ns) != 0 ||
            tokens < 1 || tokens > 1000000 || !(ns > 0 && ns <= NS_MAX) ||
            (i > 0 && tokens <= cpu->point[i - 1].tokens))
            return false;
        cpu->point[i].tokens = (uint32_t)tokens;
        cpu->point[i].ns = ns;
        cpu->points++;
    }
    return cpu->points > 0;
}

errint_t replay_cpu_read(const char *path, struct replay_cpu *cpu, struct efs_error *err)
{
    struct stat st;
    json_error_t json_err = {.text = "not a regular file"};
    json_t *root = NULL, *points = NULL;
    json_int_t bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *cpu = (struct replay_cpu){0};
    errint_t rc = fd < 0 || fstat(fd, &st) != 0 ? efs_fail(err, -errno, "%s: %s", path, strerror(errno)) : 0;
    if (rc == 0 && S_ISREG(st.st_mode))
        root = json_loadfd(fd, 0, &json_err);
    if (rc == 0 && !root)
        rc = efs_fail(err, -EINVAL, "%s: %s", path, json_err.text);
    if (rc == 0 && (json_unpack(root, "{s:I, s:o}", "expert_bytes", &bytes, "points", &points) != 0 || bytes < 1 ||
                    bytes > (INT64_C(1) << 40) || !take_points(points, cpu)))
        rc = efs_fail(err, -EINVAL, "%s: not {\"expert_bytes\": N, \"points\": [[TOKENS, NS], ...]} by rising tokens",
                      path);
    cpu->expert_bytes = (uint64_t)bytes;
    json_decref(root);
    if (fd >= 0)
        close(fd);
    return rc;
}

errint_t replay_cpu_write(const char *path, const struct replay_cpu *cpu, struct efs_error *err)
{
    json_t *points = json_array();
    for (uint32_t i = 0; i < cpu->points; i++)
        json_array_append_new(points, json_pack("[I,f]", (json_int_t)cpu->point[i].tokens, cpu->point[i].ns));
    json_t *root = json_pack("{s:I, s:o}", "expert_bytes", (json_int_t)cpu->expert_bytes, "points", points);
    bool written = root && json_dump_file(root, path, JSON_REAL_PRECISION(12)) == 0;
    json_decref(root);
    return written ? 0 : efs_fail(err, -EIO, "%s: cannot be written", path);
}

double replay_cpu_ns(const struct replay_cpu *cpu, uint32_t tokens)
{
    uint32_t i = 0;
    if (tokens == 0)
        return 0;
    while (i + 1 < cpu->points && cpu->point[i + 1].tokens < tokens)
        i++;
    if (cpu->points == 1)
        return cpu->point[0].ns * tokens / cpu->point[0].tokens;
    uint32_t next = i + 1 < cpu->points ? i + 1 : i, before = next - 1; /* past the last point: extrapolate */
    double slope =
        (cpu->point[next].ns - cpu->point[before].ns) / (cpu->point[next].tokens - cpu->point[before].tokens);
    double ns = cpu->point[i].ns + slope * ((double)tokens - cpu->point[i].tokens);
    return ns > 1 ? ns : 1;
}

/* ---- the graphics processor ------------------------------------------------------------------------------------ */

/* The larger of reading the weights once and computing: two operations per weight (2 bytes of BF16) and token. */
double replay_gpu_compute_ns(const struct replay_gpu *gpu, uint64_t expert_bytes, uint32_t tokens)
{
    double read_s = (double)expert_bytes / gpu->bytes_per_second, run_s = (double)expert_bytes * tokens / gpu->flops;
    return tokens ? (read_s > run_s ? read_s : run_s) * 1e9 + gpu->launch_us * 1e3 : 0;
}

double replay_gpu_transfer_ns(const struct replay_gpu *gpu, uint64_t expert_bytes)
{
    return (double)expert_bytes / gpu->link_bytes_per_second * 1e9;
}
