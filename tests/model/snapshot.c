/* SPDX-License-Identifier: Apache-2.0 */
/* snapshot.c - see snapshot.h. */
#include "snapshot.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096u
#define HEAP_BYTES ((size_t)256 << 20)
#define PAGES_MAX 4096u /* that are written */
/* Of what is allocated while writes are tracked: a stale pointer on a stack of which a byte was overwritten still
 * points into the same block. */
#define ALIGNMENT 256u
#define CLASSES 40u /* sizes of blocks: powers of two and 1.5 times these, from 64 bytes on */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);

/* At the start of the heap: saved and restored with it. */
struct heap {
    size_t used; /* bytes from the start that were given out once */
    struct heap_block *free[CLASSES];
    struct heap_block *live;
    uint64_t tag; /* of the next block */
};

static struct heap *heap;
static bool enabled, tracking;
static size_t used_before; /* snapshot_begin() */

/* Pages that were written since snapshot_begin(), and their content before. */
static uint32_t written[PAGES_MAX];
static uint8_t (*original)[PAGE];
static unsigned written_count;

static uint8_t *page_at(uint32_t page)
{
    return (uint8_t *)heap + (size_t)page * PAGE;
}

/* ---- heap ---- */

bool heap_contains(const void *address)
{
    return (uintptr_t)address - (uintptr_t)heap < HEAP_BYTES;
}

void heap_begin(void)
{
    if (!heap) {
        heap = mmap(NULL, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (heap == MAP_FAILED)
            abort();
    }
    tracking = false; /* also after a test that failed */
    if (mprotect(heap, HEAP_BYTES, PROT_READ | PROT_WRITE) < 0 || madvise(heap, HEAP_BYTES, MADV_DONTNEED) < 0)
        abort();
    heap->used = (sizeof(*heap) + 63) / 64 * 64;
    enabled = true;
}

void heap_enable(bool on)
{
    enabled = on;
}

void heap_tag(uint32_t actor)
{
    heap->tag = (uint64_t)actor << 32;
}

uint64_t heap_tag_get(void)
{
    return heap->tag;
}

void heap_tag_set(uint64_t tag)
{
    heap->tag = tag;
}

const struct heap_block *heap_live(void)
{
    return heap->live;
}

static size_t class_bytes(uint32_t size_class)
{
    return (size_t)(size_class % 2 ? 96 : 64) << size_class / 2;
}

static void *heap_alloc(size_t bytes)
{
    uint32_t size_class = 0;
    size_t need = bytes + sizeof(struct heap_block);
    while (size_class < CLASSES && class_bytes(size_class) < need)
        size_class++;
    if (size_class == CLASSES || bytes > UINT32_MAX)
        abort();
    struct heap_block *block = tracking ? NULL : heap->free[size_class];
    if (block) {
        heap->free[size_class] = block->next;
    } else {
        if (tracking)
            heap->used = (heap->used + sizeof(*block) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - sizeof(*block);
        block = (struct heap_block *)(void *)((uint8_t *)heap + heap->used);
        heap->used += class_bytes(size_class);
        if (heap->used > HEAP_BYTES)
            abort();
    }
    *block = (struct heap_block){.size_class = size_class, .bytes = (uint32_t)bytes, .tag = heap->tag};
    if (heap->tag) {
        heap->tag++;
        block->next = heap->live;
        if (block->next)
            block->next->link = &block->next;
        block->link = &heap->live;
        heap->live = block;
    }
    return block + 1;
}

static void heap_free(void *memory)
{
    struct heap_block *block = (struct heap_block *)memory - 1;
    if (block->tag) {
        *block->link = block->next;
        if (block->next)
            block->next->link = block->link;
    }
    if (tracking) /* not reused: a stale pointer to it is in no other block */
        return;
    block->next = heap->free[block->size_class];
    heap->free[block->size_class] = block;
}

const struct heap_block *heap_block_at(const void *address)
{
    const struct heap_block *block = (const uint8_t *)address < (const uint8_t *)heap + used_before ? NULL : heap->live;
    while (block && (uintptr_t)address - (uintptr_t)(block + 1) >= block->bytes)
        block = block->next;
    return block;
}

bool heap_is_free(const void *address)
{
    return heap_contains(address) && (const uint8_t *)address >= (const uint8_t *)heap + used_before &&
           !heap_block_at(address);
}

bool heap_is_half(uint32_t half)
{
    uint32_t first = (uint32_t)(uintptr_t)((const uint8_t *)heap + used_before);
    return half - first < (uint32_t)(heap->used - used_before);
}

void *__wrap_malloc(size_t bytes)
{
    return enabled ? heap_alloc(bytes) : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    size_t all;
    if (!enabled)
        return __real_calloc(count, bytes);
    if (__builtin_mul_overflow(count, bytes, &all))
        return NULL;
    return memset(heap_alloc(all), 0, all);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    if (!old)
        return __wrap_malloc(bytes);
    if (!heap_contains(old))
        return __real_realloc(old, bytes);
    const struct heap_block *block = (struct heap_block *)old - 1;
    void *memory = heap_alloc(bytes);
    memcpy(memory, old, block->bytes < bytes ? block->bytes : bytes);
    heap_free(old);
    return memory;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    if (!enabled)
        return __real_aligned_alloc(alignment, bytes);
    /* never freed before the heap ends: only buffers of codecs are aligned */
    heap->used = (heap->used + sizeof(struct heap_block) + alignment - 1) / alignment * alignment;
    struct heap_block *block = (struct heap_block *)(void *)((uint8_t *)heap + heap->used) - 1;
    heap->used += (bytes + 63) / 64 * 64;
    *block = (struct heap_block){.size_class = CLASSES - 1, .bytes = (uint32_t)bytes};
    return block + 1;
}

void __wrap_free(void *memory)
{
    if (!memory)
        return;
    if (heap && heap_contains(memory))
        heap_free(memory);
    else
        __real_free(memory);
}

/* ---- snapshots ---- */

static void page_written(uint32_t page)
{
    if (written_count == PAGES_MAX)
        abort();
    memcpy(original[written_count], page_at(page), PAGE);
    written[written_count++] = page;
    if (mprotect(page_at(page), PAGE, PROT_READ | PROT_WRITE) < 0)
        abort();
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    (void)signal_number;
    if (!tracking || !heap_contains(info->si_addr))
        abort();
    page_written((uint32_t)((size_t)((uint8_t *)info->si_addr - (uint8_t *)heap) / PAGE));
}

void snapshot_begin(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK, .sa_sigaction = on_fault};
    if (!original)
        original =
            mmap(NULL, PAGES_MAX * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    static uint8_t stack[64 << 10]; /* a page of the current stack may be the one that is written */
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof(stack)};
    if (original == MAP_FAILED || sigaltstack(&alternate, NULL) < 0 || sigaction(SIGSEGV, &action, NULL) < 0)
        abort();
    written_count = 0;
    used_before = heap->used;
    tracking = true;
    heap_tag(1);
    if (mprotect(heap, HEAP_BYTES, PROT_READ) < 0)
        abort();
}

void snapshot_end(void)
{
    if (mprotect(heap, HEAP_BYTES, PROT_READ | PROT_WRITE) < 0)
        abort();
    tracking = false;
    heap->tag = 0;
}

unsigned snapshot_pages(void)
{
    return written_count;
}

void snapshot_save(struct snapshot *s)
{
    if (s->capacity < written_count) {
        if (s->data)
            munmap(s->data, (size_t)s->capacity * PAGE);
        s->capacity = written_count + 16;
        s->data = mmap(NULL, (size_t)s->capacity * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s->data == MAP_FAILED)
            abort();
    }
    s->pages = written_count;
    for (unsigned i = 0; i < s->pages; i++)
        memcpy(s->data + (size_t)i * PAGE, page_at(written[i]), PAGE);
}

void snapshot_restore(const struct snapshot *s)
{
    for (unsigned i = 0; i < s->pages; i++)
        memcpy(page_at(written[i]), s->data + (size_t)i * PAGE, PAGE);
    for (unsigned i = s->pages; i < written_count; i++)
        memcpy(page_at(written[i]), original[i], PAGE);
}
