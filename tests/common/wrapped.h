/* SPDX-License-Identifier: Apache-2.0 */
/* wrapped.h - functions that the linker puts in the place of others: --wrap=NAME. */
#ifndef EFS_WRAPPED_H
#define EFS_WRAPPED_H

/* The function that calls of `name` get; __real_name() is the original. */
#define WRAPPED(type, name, parameters)                                                                                \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters

#endif
