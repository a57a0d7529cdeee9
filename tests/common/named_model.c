/* SPDX-License-Identifier: Apache-2.0 */
/* named_model.c - see named_model.h. */
#include "named_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void named_model_add_shape(struct named_model *model, const char *name, unsigned dims, const uint64_t *shape)
{
    char text[256];
    size_t bytes = 1;

    snprintf(text, sizeof(text), "%s\"%s\":{\"dtype\":\"U8\",\"shape\":[", model->header.count ? "," : "{", name);
    sf_put(&model->header, text, strlen(text));
    for (unsigned i = 0; i < dims; i++) {
        snprintf(text, sizeof(text), "%s%llu", i ? "," : "", (unsigned long long)shape[i]);
        sf_put(&model->header, text, strlen(text));
        bytes *= shape[i];
    }
    snprintf(text, sizeof(text), "],\"data_offsets\":[%zu,%zu]}", model->data_bytes, model->data_bytes + bytes);
    sf_put(&model->header, text, strlen(text));
    model->data_bytes += bytes;
}

void named_model_add(struct named_model *model, uint64_t first, const char *format, ...)
{
    const uint64_t shape[] = {first, 2, 3};
    char name[200];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof(name), format, args);
    va_end(args);
    named_model_add_shape(model, name, 3, shape);
}

/* Returns the model as a safetensors file and resets *model. */
static struct sf_bytes end_model(struct named_model *model)
{
    struct sf_bytes file = {0};

    sf_put(&model->header, "}", 1);
    sf_safetensors(&file, (const char *)model->header.data, model->header.count, model->data_bytes);
    free(model->header.data);
    *model = (struct named_model){0};
    return file;
}

void named_model_write(struct named_model *model, const char *dir, const char *name)
{
    struct sf_bytes file = end_model(model);

    sf_write(dir, name, file.data, file.count);
    free(file.data);
}

void named_model_read(struct named_model *model, struct efs_catalog *catalog)
{
    struct sf_bytes file = end_model(model);

    sf_read("model.safetensors", &file, catalog);
}

void expect_expert(const struct efs_catalog *catalog, size_t index, const char *stack, uint32_t layer, uint32_t expert)
{
    assert_true(index < catalog->expert_count);
    assert_string_equal(catalog->experts[index].stack, stack);
    assert_int_equal(catalog->experts[index].layer, layer);
    assert_int_equal(catalog->experts[index].expert, expert);
}

void expect_tensor(const struct efs_catalog *catalog, const char *name, enum efs_tensor_class tensor_class,
                   const char *stack, uint32_t layer, uint32_t expert)
{
    const struct efs_source_tensor *tensor = sf_tensor(catalog, name);

    if (tensor->tensor_class != tensor_class)
        fail_msg("%s is of class %d, not %d", name, tensor->tensor_class, tensor_class);
    if (tensor_class != EFS_CLASS_DENSE)
        expect_expert(catalog, tensor->expert_first, stack, layer, expert);
}

size_t count_class(const struct efs_catalog *catalog, enum efs_tensor_class tensor_class)
{
    size_t count = 0;

    for (size_t i = 0; i < catalog->tensor_count; i++)
        count += catalog->tensors[i].tensor_class == tensor_class;
    return count;
}
