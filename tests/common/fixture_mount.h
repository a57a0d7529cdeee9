/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture_mount.h - a directory with the files of a mount, for tests of clients without FUSE. A failure ends the test
 * (cmocka).
 */
#ifndef EFS_FIXTURE_MOUNT_H
#define EFS_FIXTURE_MOUNT_H

#include "fixture.h"

#include <sys/types.h>

struct fixture_mount {
    char directory[320]; /* below the model's directory and removed with it */
    uint32_t experts;
    uint8_t **files; /* contents of each expert's file */
    size_t *file_bytes;
    pid_t server; /* of its socket: expert_server.h */
};

/* Create the control files that a client opens, and the files of the packed model's experts, and serve these. */
void fixture_mount_begin(struct fixture_mount *mount, const struct fixture *model);
void fixture_mount_end(struct fixture_mount *mount);
/* The same for a small mixture model, which this function creates and packs. */
void fixture_mount_begin_moe(struct fixture_mount *mount, struct fixture *model, unsigned layers, unsigned experts);
void fixture_mount_end_moe(struct fixture_mount *mount, struct fixture *model);
/* Open a client of the mount or store at path. */
struct efs_client *fixture_client(const char *path, const struct efs_client_options *options);
/* The first submits a request for experts of a layer. The second requests one expert and waits for it. */
struct efs_client_request *fixture_request(struct efs_client *client, uint32_t layer, const struct efs_need *needs,
                                           uint32_t count, enum efs_form form);
struct efs_client_request *fixture_request_one(struct efs_client *client, uint32_t layer, uint32_t expert,
                                               enum efs_form form);
/* Write a file of the mount and create the missing directories of name. */
void fixture_mount_file(const struct fixture_mount *mount, const char *name, const void *data, size_t bytes);
/* Fail unless the three BF16 tensors equal the last bytes of the expert's file, in this order. */
void fixture_mount_check(const struct fixture_mount *mount, uint32_t expert, const struct efs_tensor *tensors,
                         uint32_t count);

#endif
