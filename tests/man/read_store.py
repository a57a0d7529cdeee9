# SPDX-License-Identifier: Apache-2.0
"""read_store.py STORE DIR: restores the files of a store below DIR, in plain Python.

Written only from expertfs-store(5), and slow: it proves that the page is complete. It checks every rule that the page
gives to readers. zstd, LZ4 and XXH3 come from the C libraries, which every machine that runs expertfs has.
"""
import ctypes
import ctypes.util
import os
import struct
import sys

PAGE = 4096
STEP = 64  # alignment of chunks and tables
PLACES = 16  # for tables
BLOCK = 8192
SPAN = 4 * BLOCK
SHORT_BLOCK = 1024
NONE = 2**32 - 1

SUPERBLOCK = "<8sIIQQQQQII"
TABLE = "<QQQII"
RECORDS = {  # table, record
    "STRINGS": "<B",
    "FILES": "<IIQIIQ",
    "EXTENTS": "<QQQII",
    "TENSORS": "<IIHBBIQQ8Q",
    "GROUPS": "<IIIIIIII",
    "OBJECTS": "<IIQQIIII",
    "SHARDS": "<QQQQQIIII",
    "REPORT": "<B",
    "PARTS": "<QQIIQ",
}
ELEMENT_BYTES = {0: 1, 1: 2, 2: 2, 3: 4, 4: 1, 5: 1}
CASCADE, ZSTD, LZ4 = 1, 2, 3
EXPERT, BLOB = 0, 2


class Damaged(Exception):
    pass


class Unsupported(Exception):
    pass


def need(good, what):
    if not good:
        raise Damaged(what)


def parts(number, size):
    """ceil(number / size)"""
    return -(-number // size)


# ---- the C libraries -------------------------------------------------------------------------------------------------

def library(name):
    found = ctypes.util.find_library(name)
    if not found:
        raise ImportError(f"lib{name} is not installed")
    return ctypes.CDLL(found)


_xxhash = library("xxhash")
_xxhash.XXH3_64bits.restype = ctypes.c_uint64
_xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def checksum(data):
    return _xxhash.XXH3_64bits(bytes(data), len(data))


def zstd(data, count):
    lib = library("zstd")
    lib.ZSTD_decompress.restype = ctypes.c_size_t
    lib.ZSTD_decompress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    out = ctypes.create_string_buffer(count)
    need(lib.ZSTD_decompress(out, count, data, len(data)) == count, "a zstd chunk does not decode")
    return out.raw


def lz4(data, count):
    out = ctypes.create_string_buffer(count)
    need(library("lz4").LZ4_decompress_safe(data, out, len(data), count) == count, "an LZ4 chunk does not decode")
    return out.raw


def most_bytes(count):
    """The maximum size of an E-chunk of count elements."""
    lib = library("zstd")
    lib.ZSTD_compressBound.restype = ctypes.c_size_t
    lib.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    return max(count + 36 * parts(count, SPAN) + 80, count + 3 * parts(count, 4096) + 96, lib.ZSTD_compressBound(count),
               library("lz4").LZ4_compressBound(count))


# ---- operations on many bytes ----------------------------------------------------------------------------------------

def each(function):
    """A table for bytes.translate()."""
    return bytes(function(value) & 0xff for value in range(256))


def either(a, b):
    """Bitwise or of two byte strings of equal length."""
    return (int.from_bytes(a, "little") | int.from_bytes(b, "little")).to_bytes(len(a), "little")


def planes(data, count, bits):
    """The count values of `bits` bits in plane streams, one byte each."""
    mask = (1 << bits) - 1
    values = b"".join(data.translate(each(lambda byte: byte >> shift & mask)) for shift in range(0, 8, bits))
    return values[:count]


def shifted(values, bits):
    return values.translate(each(lambda value: value << bits))


# ---- the cascade -----------------------------------------------------------------------------------------------------

def cascade_span(header, code, count):
    levels, escapes, entries, symbols = header[20], struct.unpack_from("<5H", header, 4), \
        struct.unpack_from("<3H", header, 14), header[21:36]
    need(levels <= 5, "a span's header is wrong")
    need(not any(escapes[levels:]) and not any(symbols[3 * levels:]), "a span has numbers of levels that it lacks")
    inputs = (count,) + escapes[:levels]
    entries = (0,) + entries + (inputs[1] if levels else 0,)
    sizes = [max(0, min(BLOCK, count - b * BLOCK)) if levels else 0 for b in range(4)]
    need(all(0 <= entries[b + 1] - entries[b] <= sizes[b] for b in range(4)), "a span's entries are wrong")
    return span_symbols(levels, inputs, symbols, list(zip(sizes, entries)), code)


def span_symbols(levels, inputs, symbols, blocks, code):
    """The symbols of a span. inputs: symbols that enter each level, and the rest; blocks of level 1: (symbols, those of
    the blocks before it that escape)."""
    need(all(more >= fewer for more, fewer in zip(inputs, inputs[1:])), "more escapes than symbols")
    decoded, at = code[:inputs[levels]], inputs[levels]
    need(len(decoded) == inputs[levels], "a span ends in its rest")
    for level in reversed(range(levels)):
        codes = b""
        for size, entry in [(inputs[level], 0)] if level else blocks:
            need(level or len(blocks) == 1 or codes.count(3) == entry, "a block has other escapes than it says")
            need(len(code) >= at + parts(size, 4), "a span ends in its planes")
            codes += planes(code[at:at + parts(size, 4)], size, 2)
            at += parts(size, 4)
        need(codes.count(3) == inputs[level + 1], "a level has other escapes than it says")
        table = symbols[3 * level:3 * level + 3] + bytes(253)
        out = bytearray(codes.translate(table))
        place = -1
        for symbol in decoded:
            place = codes.index(3, place + 1)
            out[place] = symbol
        decoded = bytes(out)
    need(len(code) == at, "a span is not as long as it says")
    return decoded


def short_span(shared, data, count):
    need(len(data) > 0, "a span is empty")
    levels, own = data[0] & 127, data[0] >> 7
    need(levels <= 5 and (levels or not own), "a span's header is wrong")
    head = 1 + (5 if own else 2) * levels
    need(len(data) >= head, "a span ends in its header")
    escapes = list(struct.unpack_from(f"<{levels}H", data, 1))
    symbols = data[1 + 2 * levels:head] if own else shared[:3 * levels]
    return span_symbols(levels, [count] + escapes, symbols, [(count, escapes[0] if levels else 0)], data[head:])


def short_spans(chunk, count):
    """A cascade with short spans."""
    need(len(chunk) >= 96, "a cascade chunk is too short")
    symbols, spans, end, log2 = struct.unpack_from("<IIII", chunk)
    need(log2 in (12, 13) and symbols == count and spans == parts(count, 1 << log2) and end <= len(chunk) - 64 and
         chunk[31] == 0 and 32 + 2 * spans <= end, "a cascade chunk's header is wrong")
    out, at = b"", 32 + 2 * spans
    for s, size in enumerate(struct.unpack_from(f"<{spans}H", chunk, 32)):
        need(at + size <= end, "a span lies outside the code")
        out += short_span(chunk[16:31], chunk[at:at + size], min(1 << log2, count - (s << log2)))
        at += size
    need(at == end, "the code is longer than its spans")
    return out


def is_short(chunk):
    return len(chunk) >= 16 and any(chunk[12:16])


def cascade(chunk, count):
    if is_short(chunk):
        return short_spans(chunk, count)
    need(len(chunk) >= 80, "a cascade chunk is too short")
    symbols, spans, end, zero = struct.unpack_from("<IIII", chunk)
    need(symbols == count and spans == parts(count, SPAN) and end <= len(chunk) - 64 and zero == 0,
         "a cascade chunk's header is wrong")
    need(16 + 36 * spans <= end, "a cascade chunk ends in its spans' headers")
    headers = [chunk[16 + 36 * s:52 + 36 * s] for s in range(spans)]
    begins = [struct.unpack_from("<I", header)[0] for header in headers] + [end]
    need(begins[0] >= 16 + 36 * spans and begins == sorted(begins), "a span's offset is wrong")
    return b"".join(cascade_span(headers[s], chunk[begins[s]:begins[s + 1]], min(SPAN, count - s * SPAN))
                    for s in range(spans))


# ---- formats ---------------------------------------------------------------------------------------------------------

def sm_block_bytes(form, m):
    return {0: 0, 1: m, 2: m + parts(m, 4) + parts(m, 8), 3: 3 * m, 4: parts(m, 2), 5: parts(m, 4) + parts(m, 8)}[form]


def sm_bytes(form, count):
    return count // BLOCK * sm_block_bytes(form, BLOCK) + sm_block_bytes(form, count % BLOCK)


def top_bytes(e, sm):
    """The two high bytes of a BF16 or F32: 1 sign, 8 exponent, 7 mantissa bits."""
    low = either(shifted(e, 7), sm.translate(each(lambda byte: byte & 0x7f)))
    high = either(e.translate(each(lambda byte: byte >> 1)), sm.translate(each(lambda byte: byte & 0x80)))
    return low, high


def e5_bytes(e, sm, m):
    """1 sign, 5 exponent, 2 mantissa bits: an E5M2, or the high byte of an F16."""
    mantissas, signs = planes(sm[:parts(m, 4)], m, 2), planes(sm[parts(m, 4):], m, 1)
    return either(shifted(signs, 7), either(shifted(e, 2), mantissas))


def merge_block(form, e, sm):
    m = len(e)
    out = bytearray(m * ELEMENT_BYTES[form])
    if form == 1:
        out[0::2], out[1::2] = top_bytes(e, sm)
    elif form == 2:
        out[0::2], out[1::2] = sm[:m], e5_bytes(e, sm[m:], m)
    elif form == 3:
        out[0::4], out[1::4] = sm[m::2], sm[m + 1::2]
        out[2::4], out[3::4] = top_bytes(e, sm[:m])
    elif form == 4:
        values = planes(sm, m, 4)
        out[:] = either(either(values.translate(each(lambda v: (v & 8) << 4)), shifted(e, 3)),
                        values.translate(each(lambda v: v & 7)))
    elif form == 5:
        out[:] = e5_bytes(e, sm, m)
    return bytes(out)


def merge(form, e, sm, block):
    step = sm_block_bytes(form, block)
    return b"".join(merge_block(form, e[at:at + block], sm[at // block * step:][:step]) for at in range(0, len(e), block))


# ---- the store -------------------------------------------------------------------------------------------------------

class Store:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.check_superblock()
        self.check_objects()
        self.check_groups()
        self.check_tensors()
        self.check_files()

    def check_superblock(self):
        need(len(self.data) >= PAGE and self.data[:8] == b"expertfs", "not a store")
        (_, version, size, incompat, compat, store_bytes, self.source_bytes, content_hash, self.shard_elements,
         block) = struct.unpack_from(SUPERBLOCK, self.data)
        if version not in (2, 3):
            raise Unsupported(f"version {version}")
        need(size == PAGE and checksum(self.data[:4088]) == int.from_bytes(self.data[4088:4096], "little"), "superblock")
        if incompat & ~1 or (incompat and version == 2):
            raise Unsupported(f"features {incompat:#x}")
        need(store_bytes == len(self.data) and block == BLOCK, "superblock")
        need(self.shard_elements % BLOCK == 0 and BLOCK <= self.shard_elements <= 4194304, "elements of a shard")
        end, hashes = PAGE, b""
        for number, (name, record) in enumerate(RECORDS.items()):
            offset, size, wanted, record_bytes, count = struct.unpack_from(TABLE, self.data, 64 + 32 * number)
            need(record_bytes == struct.calcsize(record) and size == record_bytes * count, f"table {name}: sizes")
            need(offset % (STEP if number else PAGE) == 0 and offset >= end and offset + size <= len(self.data), f"table {name}: place")
            table = self.data[offset:offset + size]
            need(checksum(table) == wanted, f"table {name}: checksum")
            setattr(self, name.lower(), table if record == "<B" else list(struct.iter_unpack(record, table)))
            if number == 0:
                self.chunks_end = offset
            end, hashes = offset + size, hashes + wanted.to_bytes(8, "little")
        need(checksum(hashes) == content_hash, "checksum of the tables' checksums")
        self.has_checks = incompat & 1
        self.strict = compat == 0  # otherwise reserved fields may be in use
        self.unused(*self.data[64 + 32 * len(RECORDS):64 + 32 * PLACES], *self.data[64 + 32 * PLACES:PAGE - 8])
        need(len(self.parts) == 1, "parts")
        address, size, name_offset, name_bytes, reserved = self.parts[0]
        self.string(name_offset, name_bytes)
        need(address == 0 and size == store_bytes and name_bytes == 0, "the part is not the file")
        self.unused(reserved)

    def unused(self, *fields):
        need(not self.strict or not any(fields), "a field is used that no feature bit names")

    def string(self, offset, size):
        need(offset + size <= len(self.strings), "a string lies outside STRINGS")
        return self.strings[offset:offset + size]

    def check_files(self):
        paths, next_extent = [], 0
        for path_offset, path_bytes, size, extent_first, extent_count, reserved in self.files:
            self.unused(reserved)
            path = self.string(path_offset, path_bytes)
            need(1 <= len(path) <= 1023 and b"\0" not in path, "a path is empty, too long or holds NUL")
            need(all(1 <= len(part) <= 255 and part not in (b".", b"..") for part in path.split(b"/")), "a path's part")
            need(extent_first == next_extent and extent_first + extent_count <= len(self.extents), "a file's extents")
            need(size < 2**63, "a file's size")
            next_extent, at = next_extent + extent_count, 0
            for file_offset, count, object_offset, number, reserved in self.extents[extent_first:next_extent]:
                self.unused(reserved)
                need(file_offset == at and count > 0 and number < len(self.objects), "an extent is out of place")
                need(object_offset + count <= self.objects[number][3], "an extent reaches past its object")
                at += count
            need(at == size, "extents do not cover their file")
            paths.append(path)
        need(all(a < b for a, b in zip(paths, paths[1:])), "paths are not in order")
        names = set(paths)
        need(not any(path[:at] in names for path in paths for at in range(len(path)) if path[at] == ord("/")),
             "a file is a directory")
        need(sum(file[2] for file in self.files) == self.source_bytes, "the files' sizes")

    def check_tensors(self):
        for name_offset, name_bytes, dtype, dims, expert_dim, file, file_offset, size, *shape in self.tensors:
            self.string(name_offset, name_bytes)
            need(not any(shape[dims:]), "a dimension too many")
            need(name_bytes <= 65535 and dims <= 8 and file < len(self.files), "a tensor")
            need(expert_dim == 0 or (expert_dim == 1 and dims >= 1 and shape[0] > 0), "a fused tensor's shape")
            need(1 <= dtype <= 22 or dtype >= 256, "a tensor's type")
            need(file_offset + size <= self.files[file][2], "a tensor reaches past its file")

    def check_groups(self):
        next_object, before = 0, None
        for number, (kind, stack_offset, stack_bytes, layer, expert, first, count, reserved) in enumerate(self.groups):
            self.unused(reserved)
            stack = self.string(stack_offset, stack_bytes)
            need(kind <= 2 and len(stack) <= 32 and b"/" not in stack and b"\0" not in stack, "a group")
            place = (kind, stack, layer, expert) if kind == EXPERT else (kind,)
            need(before is None or before < place or (before == place and kind != EXPERT), "groups are not in order")
            need(first == next_object and first + count <= len(self.objects), "a group's objects")
            need(all(self.objects[o][1] == number for o in range(first, first + count)), "an object's group")
            next_object, before = first + count, place
        need(next_object == len(self.objects), "groups do not name all objects")

    def check_objects(self):
        next_shard = 0
        for tensor, group, tensor_offset, size, first, count, form, reserved in self.objects:
            self.unused(reserved)
            need(form in ELEMENT_BYTES and size > 0 and size % ELEMENT_BYTES[form] == 0, "an object's size")
            elements = size // ELEMENT_BYTES[form]
            need(first == next_shard and count == parts(elements, self.shard_elements) and
                 first + count <= len(self.shards), "an object's shards")
            need(group < len(self.groups) and (tensor == NONE) == (self.groups[group][0] == BLOB), "an object's group")
            need(tensor == NONE or (tensor < len(self.tensors) and tensor_offset + size <= self.tensors[tensor][7]),
                 "an object's tensor")
            for shard in range(first, first + count):
                left = elements - (shard - first) * self.shard_elements
                self.check_shard(form, min(left, self.shard_elements), self.shards[shard], self.groups[group][0])
            next_shard += count
        need(next_shard == len(self.shards), "objects do not name all shards")

    def check_shard(self, form, elements, shard, kind):
        e_offset, sm_offset, e_hash, sm_hash, _, e_size, sm_size, codec, checks = shard
        need(codec <= 3, "a shard's codec")
        if codec == 0:
            need(form == 0 and e_size == 0 and sm_size == elements, "a shard that is not coded")
        else:
            need(0 < e_size <= most_bytes(elements) and sm_size == sm_bytes(form, elements), "a shard's sizes")
        for offset, size, wanted in ((e_offset, e_size, e_hash), (sm_offset, sm_size, sm_hash)):
            good = offset % STEP == 0 and PAGE <= offset and offset + size <= self.chunks_end
            need(good if size else offset == 0 and wanted == 0, "a chunk's place")
        if checks:
            pages, at = self.page_checks(shard)
            need(self.has_checks and kind != EXPERT and codec in (0, CASCADE), "a shard has page checksums")
            need(at + 64 * parts(len(pages), 15) <= self.chunks_end, "page checksums lie outside the chunks")

    def page_checks(self, shard):
        """The pages of both chunks, as ranges of the store, and where their checksums are."""
        e_offset, sm_offset, _, _, _, e_size, sm_size, _, checks = shard
        pages = []
        for offset, end in ((e_offset, e_offset + e_size), (sm_offset, sm_offset + sm_size)):
            while offset < end:
                after = min(end, offset // PAGE * PAGE + PAGE)
                pages.append((offset, after))
                offset = after
        return pages, (sm_offset if sm_size else e_offset) + 64 * checks

    def check_pages(self, shard):
        pages, at = self.page_checks(shard)
        for first in range(0, len(pages), 15):
            words = [checksum(self.data[begin:end]) & NONE for begin, end in pages[first:first + 15]]
            block = struct.pack("<15I", *words, *[0] * (15 - len(words)))
            need(self.data[at:at + 64] == block + struct.pack("<I", checksum(block) & NONE), f"page checksums at {at}")
            at += 64

    def shard(self, form, elements, number):
        e_offset, sm_offset, e_hash, sm_hash, raw_hash, e_size, sm_size, codec, checks = self.shards[number]
        e, sm = self.data[e_offset:e_offset + e_size], self.data[sm_offset:sm_offset + sm_size]
        need(not e_size or checksum(e) == e_hash, f"E-chunk at {e_offset}: checksum")
        need(not sm_size or checksum(sm) == sm_hash, f"SM-chunk at {sm_offset}: checksum")
        if checks:
            self.check_pages(self.shards[number])
        if codec == 0:
            raw = sm
        else:
            block = SHORT_BLOCK if codec == CASCADE and is_short(e) else BLOCK
            need(block == BLOCK or checks, "a chunk with short spans, without page checksums")
            e = {CASCADE: cascade, ZSTD: zstd, LZ4: lz4}[codec](e, elements)
            raw = e if form == 0 else merge(form, e, sm, block)
        need(checksum(raw) == raw_hash, f"shard {number}: checksum of the decoded bytes")
        return raw

    def object(self, number):
        _, _, _, size, first, count, form, _ = self.objects[number]
        elements = size // ELEMENT_BYTES[form]
        return b"".join(self.shard(form, min(elements - i * self.shard_elements, self.shard_elements), first + i)
                        for i in range(count))

    def unpack(self, directory):
        for path_offset, path_bytes, _, extent_first, extent_count, _ in self.files:
            path = os.path.join(os.fsencode(directory), self.string(path_offset, path_bytes))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as out:
                for _, count, object_offset, number, _ in self.extents[extent_first:extent_first + extent_count]:
                    out.write(self.object(number)[object_offset:object_offset + count])


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: read_store.py STORE DIR")
    try:
        Store(sys.argv[1]).unpack(sys.argv[2])
    except (Damaged, Unsupported) as why:
        sys.exit(f"{sys.argv[1]}: {type(why).__name__.lower()}: {why}")


if __name__ == "__main__":
    main()
