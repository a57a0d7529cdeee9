/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the small files beside the weights. */
#include <stdlib.h>

#include "checkpoint.h"

/* Takes over the value; its text, as transformers writes it, becomes a file. */
static int add_json(struct mk_files *files, const char *name, json_t *value)
{
    char *dump = value ? json_dumps(value, JSON_INDENT(2)) : NULL, *text = NULL;
    json_decref(value);
    if (dump && asprintf(&text, "%s\n", dump) < 0)
        text = NULL;
    free(dump);
    return mk_files_text(files, name, text);
}

static json_t *full_config(const struct mk_model *model, const struct mk_tokenizer *tokenizer)
{
    json_t *config = model->family->config(model);
    if (!config)
        return NULL;
    int end = (int)(tokenizer->special + MK_END_OF_TEXT);
    json_t *more = json_pack("{s:i, s:i, s:i, s:s, s:s, s:i, s:{s:s, s:s, s:I}}", "bos_token_id", end, "eos_token_id",
                             end, "pad_token_id", end, "torch_dtype", mk_dtype_torch(model->dtype),
                             "transformers_version", "4.57.0", "vocab_size", (int)model->vocab, "mkmodel", "version",
                             EFS_VERSION_STRING, "family", model->family->name, "seed", (json_int_t)model->seed);
    if (model->dtype == MK_FP8)
        json_object_set_new(more, "quantization_config",
                            json_pack("{s:s, s:s, s:s, s:[ii]}", "activation_scheme", "dynamic", "fmt", "e4m3",
                                      "quant_method", "fp8", "weight_block_size", 128, 128));
    if (json_object_get(config, "decoder_start_token_id"))
        json_object_set_new(more, "decoder_start_token_id", json_integer(end));
    if (!more || json_object_update(config, more)) {
        json_decref(config);
        config = NULL;
    }
    json_decref(more);
    return config;
}

int mk_config_files(const struct mk_model *model, const struct mk_tokenizer *tokenizer, struct mk_files *files)
{
    int end = (int)(tokenizer->special + MK_END_OF_TEXT);
    json_t *generation = json_pack("{s:b, s:i, s:i, s:i, s:s}", "do_sample", 0, "bos_token_id", end, "eos_token_id",
                                   end, "pad_token_id", end, "transformers_version", "4.57.0");
    if (generation && model->family == &mk_family_switch)
        json_object_set_new(generation, "decoder_start_token_id", json_integer(end));
    int rc = add_json(files, "config.json", full_config(model, tokenizer));
    if (rc) {
        json_decref(generation);
        return rc;
    }
    rc = add_json(files, "generation_config.json", generation);
    if (!rc)
        rc = add_json(files, "tokenizer.json", mk_tokenizer_json(tokenizer));
    if (!rc)
        rc = add_json(files, "tokenizer_config.json", mk_tokenizer_config(tokenizer, model->context));
    return rc;
}
