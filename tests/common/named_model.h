/* SPDX-License-Identifier: Apache-2.0 */
/* named_model.h - for tests: a checkpoint of U8 tensors by name and shape, written as one safetensors file, and what
 * its catalogue has. A failure fails the running cmocka test. */
#ifndef NAMED_MODEL_H
#define NAMED_MODEL_H

#include "source_files.h"

/* Initialise it to zero. named_model_write() and named_model_read() reset it. */
struct named_model {
    struct sf_bytes header;
    size_t data_bytes;
};

void named_model_add_shape(struct named_model *model, const char *name, unsigned dims, const uint64_t *shape);
/* Adds a tensor of shape [first, 2, 3]; its name is formatted as by printf(3). */
void named_model_add(struct named_model *model, uint64_t first, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Writes the model to directory/name. */
void named_model_write(struct named_model *model, const char *directory, const char *name);
/* Reads a directory that contains only the model. */
void named_model_read(struct named_model *model, struct efs_catalog *catalog);

void expect_expert(const struct efs_catalog *catalog, size_t index, const char *stack, uint32_t layer, uint32_t expert);
/* Fails unless the tensor has this class and its (first) expert is (stack, layer, expert). */
void expect_tensor(const struct efs_catalog *catalog, const char *name, enum efs_tensor_class tensor_class,
                   const char *stack, uint32_t layer, uint32_t expert);
size_t count_class(const struct efs_catalog *catalog, enum efs_tensor_class tensor_class);

#endif
