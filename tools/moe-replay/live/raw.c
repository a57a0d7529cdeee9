/* SPDX-License-Identifier: Apache-2.0 */
/* raw.c - where a raw checkpoint has the tensors of a model's experts; its pages out of the page cache. */
#include "model.h"
#include "raw.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX (UINT64_C(100) << 20)
#define SUFFIX ".safetensors"
#define LOOK_BYTES (UINT64_C(1) << 30) /* of a file, at once */

/* ---- headers ------------------------------------------------------------------------------------------------ */

/* The header of a safetensors file, as JSON, and where its data begins. */
static errint_t read_header(const char *path, json_t **header, uint64_t *base, uint64_t *file_bytes)
{
    uint8_t word[8];
    uint64_t length = 0;
    struct stat st;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = fd < 0 ? -errno : 0;
    if (rc == 0 && fstat(fd, &st) != 0)
        rc = -errno;
    if (rc == 0 && (!S_ISREG(st.st_mode) || st.st_size < 8))
        rc = -EUCLEAN;
    if (rc == 0)
        rc = pread(fd, word, sizeof(word), 0) == (ssize_t)sizeof(word) ? 0 : -EUCLEAN;
    for (unsigned i = 0; rc == 0 && i < 8; i++)
        length |= (uint64_t)word[i] << (8 * i);
    if (rc == 0 && (length > HEADER_MAX || length > (uint64_t)st.st_size - 8))
        rc = -EUCLEAN;
    if (rc == 0 && !(text = malloc(length + 1)))
        rc = -ENOMEM;
    if (rc == 0 && pread(fd, text, length, 8) != (ssize_t)length)
        rc = -EUCLEAN;
    if (rc == 0) {
        *header = json_loadb(text, length, 0, NULL);
        *base = 8 + length;
        *file_bytes = (uint64_t)st.st_size;
        rc = json_is_object(*header) ? 0 : -EUCLEAN;
    }
    free(text);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Put the tensors of a file into all: name -> [file, first byte, bytes]. */
static errint_t raw_add_file(json_t *all, const char *path, uint32_t file)
{
    json_t *header = NULL, *entry;
    uint64_t base = 0, file_bytes = 0;
    const char *name;
    errint_t rc = read_header(path, &header, &base, &file_bytes);
    if (rc == 0) {
        json_object_foreach(header, name, entry)
        {
            json_int_t begin, end;
            if (rc < 0 || strcmp(name, "__metadata__") == 0)
                continue;
            if (json_unpack(entry, "{s:[I,I]}", "data_offsets", &begin, &end) != 0 || begin < 0 || end < begin ||
                (uint64_t)end > file_bytes - base)
                rc = -EUCLEAN;
            else if (json_object_set_new(
                         all, name, json_pack("[I,I,I]", (json_int_t)file, (json_int_t)base + begin, end - begin)) != 0)
                rc = -ENOMEM;
        }
    }
    json_decref(header);
    return rc;
}

/* ---- the experts in it -------------------------------------------------------------------------------------- */

/* A tensor is there by itself, or as a slice of one that has those of all experts. */
static errint_t raw_locate(const json_t *all, uint32_t number, struct replay_tensor *t)
{
    json_int_t file, at, bytes;
    json_t *entry = json_object_get(all, t->name);
    if (!entry)
        return -ENOENT;
    if (json_unpack(entry, "[I,I,I]", &file, &at, &bytes) != 0)
        return -ENOMEM;
    t->raw_file = (uint32_t)file;
    t->raw_at = (uint64_t)at;
    if ((uint64_t)bytes == t->bytes)
        return 0;
    if (t->bytes == 0 || (uint64_t)bytes % t->bytes != 0 || number >= (uint64_t)bytes / t->bytes)
        return -EUCLEAN;
    t->raw_at += number * t->bytes;
    return 0;
}

static int is_safetensors(const struct dirent *entry)
{
    size_t bytes = strlen(entry->d_name);
    return bytes > strlen(SUFFIX) && strcmp(entry->d_name + bytes - strlen(SUFFIX), SUFFIX) == 0;
}

static errint_t list_files(struct replay_model *m, const char *directory, struct efs_error *err)
{
    struct dirent **found = NULL;
    int count = scandir(directory, &found, is_safetensors, alphasort);
    if (count < 0)
        return efs_fail(err, -errno, "%s: %s", directory, strerror(errno));
    m->raw_paths = calloc((size_t)count + 1, sizeof(*m->raw_paths));
    for (int i = 0; i < count; i++) {
        if (m->raw_paths && asprintf(&m->raw_paths[m->raw_count], "%s/%s", directory, found[i]->d_name) > 0)
            m->raw_count++;
        free(found[i]);
    }
    free(found);
    if (m->raw_count != (uint32_t)count)
        return efs_fail(err, -ENOMEM, "no memory");
    return count > 0 ? 0 : efs_fail(err, -ENOENT, "%s: no safetensors files", directory);
}

errint_t replay_model_find_raw(struct replay_model *m, const char *directory, struct efs_error *err)
{
    json_t *all = json_object();
    errint_t rc = all ? list_files(m, directory, err) : efs_fail(err, -ENOMEM, "no memory");
    for (uint32_t i = 0; rc == 0 && i < m->raw_count; i++) {
        rc = raw_add_file(all, m->raw_paths[i], i);
        if (rc < 0)
            efs_fail(err, rc, "%s: no safetensors header, or a damaged one: %s", m->raw_paths[i], strerror(-rc));
    }
    for (uint32_t i = 0; rc == 0 && i < m->layers * m->experts; i++)
        for (uint32_t t = 0; rc == 0 && t < m->all[i].count; t++) {
            rc = raw_locate(all, m->all[i].number, &m->all[i].tensors[t]);
            if (rc < 0)
                efs_fail(err, rc, "%s: tensor %s is %s", directory, m->all[i].tensors[t].name,
                         rc == -ENOENT ? "missing" : "of another size than in the store");
        }
    json_decref(all);
    return rc;
}

/* ---- the page cache ----------------------------------------------------------------------------------------- */

/* Bytes of an open file that are in the page cache. */
static uint64_t resident_bytes(int fd, uint64_t file_bytes)
{
    uint64_t resident = 0, page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = malloc(LOOK_BYTES / page);
    for (uint64_t at = 0; pages && at < file_bytes; at += LOOK_BYTES) {
        uint64_t bytes = file_bytes - at < LOOK_BYTES ? file_bytes - at : LOOK_BYTES;
        void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, (off_t)at);
        if (map == MAP_FAILED)
            break;
        if (mincore(map, bytes, pages) == 0)
            for (uint64_t i = 0; i < (bytes + page - 1) / page; i++)
                resident += pages[i] & 1 ? page : 0;
        munmap(map, bytes);
    }
    free(pages);
    return resident;
}

uint64_t replay_drop_cache(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return 0;
    uint64_t left = 0;
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        (void)fsync(fd); /* what is dirty would stay */
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        left = resident_bytes(fd, (uint64_t)st.st_size);
    }
    close(fd);
    return left;
}
