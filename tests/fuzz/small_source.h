/* SPDX-License-Identifier: Apache-2.0 */
/* small_source.h - for fuzzers that pack a store: a checkpoint of two experts and a norm, about 10 KiB. */
#ifndef EFS_SMALL_SOURCE_H
#define EFS_SMALL_SOURCE_H

#include "fuzz.h"

#include <string.h>
#include <sys/stat.h>

#define SMALL_EXPERTS 2u

static inline void write_file(const char *path, const void *data, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

static inline void make_weights(const char *path)
{
    static const char header[] =
        "{\"model.layers.0.mlp.experts.0.up_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[40,64],\"data_offsets\":[0,"
        "5120]},"
        "\"model.layers.0.mlp.experts.1.up_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[40,64],\"data_offsets\":[5120,"
        "10240]},"
        "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[65],\"data_offsets\":[10240,10500]}}";
    static uint8_t file[8 + sizeof(header) - 1 + 10500];
    uint64_t length = sizeof(header) - 1, state = 9;
    memcpy(file, &length, 8);
    memcpy(file + 8, header, sizeof(header) - 1);
    for (size_t i = 8 + sizeof(header) - 1; i < sizeof(file); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        file[i] = i % 2 ? (uint8_t)(0x3c + (state >> 60) % 4) : (uint8_t)(state >> 40);
    }
    write_file(path, file, sizeof(file));
}

/* Creates the checkpoint as folder/src and returns its path in source. */
static inline void make_source(const char *folder, char *source, size_t room)
{
    char path[128];
    CHECK(snprintf(source, room, "%s/src", folder) < (int)room && mkdir(source, 0700) == 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", source);
    make_weights(path);
    snprintf(path, sizeof(path), "%s/config.json", source);
    write_file(path, "{\"model_type\": \"qwen3_moe\"}\n", 28);
}

#endif
