/* SPDX-License-Identifier: Apache-2.0 */
/* image.c - links the kernels into the library, see driver.h. The Makefile defines EFS_GPU_IMAGE, the path of the
 * image, if it was built. */
#include "driver.h"

#ifdef EFS_GPU_IMAGE
#define EFS_GPU_BYTES ".incbin \"" EFS_GPU_IMAGE "\"\n"
#else
#define EFS_GPU_BYTES ""
#endif

__asm__(".section .rodata.efs_gpu_image, \"a\", %progbits\n"
        ".balign 64\n"
        ".globl efs_gpu_image, efs_gpu_image_bytes\n"
        ".hidden efs_gpu_image, efs_gpu_image_bytes\n"
        "efs_gpu_image:\n" EFS_GPU_BYTES "1:\n"
        ".balign 8\n"
        "efs_gpu_image_bytes: .quad 1b - efs_gpu_image\n"
        ".previous\n");
