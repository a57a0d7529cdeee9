/* source_gguf.c - placeholder */
#include "source.h"
#include <errno.h>
errint_t efs_source_gguf(const struct efs_source_input *in, struct efs_source_list *list, struct efs_error *err)
{
    (void)list;
    return efs_fail(err, -ENOTSUP, "%s: GGUF is not read yet", in->path);
}
