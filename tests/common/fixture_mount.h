/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixture_mount.h - a folder with the files of a mount stands for one, for tests of its clients: no FUSE is needed.
 * Failures end the test (cmocka).
 */
#ifndef EFS_FIXTURE_MOUNT_H
#define EFS_FIXTURE_MOUNT_H

#include "fixture.h"

struct fixture_mount {
    char directory[320]; /* below the model's, and removed with it */
    uint32_t experts;
    uint8_t **files; /* what each expert's file is */
    size_t *file_bytes;
};

/* The control files that a client looks for, and the files of the packed model's experts. */
void fixture_mount_begin(struct fixture_mount *mount, const struct fixture *model);
void fixture_mount_end(struct fixture_mount *mount);
/* The same of a small mixture model, which is made and packed for it. */
void fixture_mount_begin_moe(struct fixture_mount *mount, struct fixture *model, unsigned layers, unsigned experts);
void fixture_mount_end_moe(struct fixture_mount *mount, struct fixture *model);
/* A client of the mount, or store, at path. */
struct efs_client *fixture_client(const char *path, const struct efs_client_options *options);
/* A request for experts of a layer, which begins; and for one, which has come. */
struct efs_client_request *fixture_ask(struct efs_client *client, uint32_t layer, const struct efs_need *needs,
                                       uint32_t count, enum efs_form form);
struct efs_client_request *fixture_ask_one(struct efs_client *client, uint32_t layer, uint32_t expert,
                                           enum efs_form form);
/* A file of the mount is this now (directories are made). */
void fixture_mount_file(const struct fixture_mount *mount, const char *name, const void *data, size_t bytes);
/* The three BF16 tensors are those of the expert's file: at its end, one after the other. */
void fixture_mount_check(const struct fixture_mount *mount, uint32_t expert, const struct efs_tensor *tensors,
                         uint32_t count);

#endif
