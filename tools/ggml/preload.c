/* SPDX-License-Identifier: Apache-2.0 */
/*
 * preload.c - loads the backend into programs whose ggml has the CPU backend linked in and does not search for
 * backends. With this library in LD_PRELOAD, its ggml_backend_reg_count() is called in place of ggml's; the first call
 * loads the backend. Without LD_PRELOAD the function is not called.
 */
#include "plugin.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define EFSG_API __attribute__((visibility("default")))

EFSG_API size_t ggml_backend_reg_count(void); /* replaces the function of ggml-backend.h */

/* Looks up a function in the library that contains the address `caller` and its dependencies, skipping this library's
 * ggml_backend_reg_count(). NULL: not found. */
static void *call_beside(const void *caller, const char *name)
{
    Dl_info info;
    void *library = dladdr(caller, &info) && info.dli_fname ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *call = library ? dlsym(library, name) : NULL;
    if (!call || call == (void *)ggml_backend_reg_count)
        call = dlsym(RTLD_NEXT, name);
    if (library)
        dlclose(library);
    return call;
}

/* In programs that are linked with ggml the version is reported when they start, not when they load a model. */
__attribute__((constructor)) static void warn_at_start(void)
{
    efsg_host_warn();
}

size_t ggml_backend_reg_count(void)
{
    static _Atomic bool looked;
    const void *caller = __builtin_return_address(0);
    size_t (*count)(void);
    void *call = call_beside(caller, "ggml_backend_reg_count");
    if (!call)
        return 0;
    memcpy(&count, &call, sizeof(count));
    if (!atomic_exchange(&looked, true)) {
        ggml_backend_reg_t (*load)(const char *path);
        Dl_info own;
        if (count() == 0) { /* no backend is linked in: load those that are files first */
            void (*load_all)(void);
            call = call_beside(caller, "ggml_backend_load_all");
            memcpy(&load_all, &call, sizeof(load_all));
            if (load_all)
                load_all();
        }
        call = call_beside(caller, "ggml_backend_load");
        memcpy(&load, &call, sizeof(load));
        if (load && dladdr((void *)ggml_backend_reg_count, &own) && own.dli_fname)
            load(own.dli_fname);
    }
    return count();
}
