#!/usr/bin/env python3
"""Prints the webhooks of an archive directory as JSON lines, in the order of the queue, each once.

    ops/archive/read.py DIRECTORY [--cell ID] [--key-file FILE]

It is written from docs/archive-format.md alone, and uses Python's standard library, the command `zstd`, and, for
encrypted objects, the package `cryptography`. Every checksum is checked. An object or a pack that cannot be read
is reported on standard error, and the exit status is 1.
"""

import argparse
import base64
import datetime
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import sys
import zlib

NAME = re.compile(r"(\d+)-(\d+)_(\d+)-(\d+)_(\d+)_([0-9a-f]{8})(?:_([1-9]))?\.spwa")
CELL = re.compile(r"[0-9a-f]{8}")
TRAILER_BYTES = 52
FRAME_BYTES = 20
INDEX_NONCE = 2**64 - 1
RAW_BYTES_MAX = 160 << 20


class Bad(Exception):
    """Bytes that are not as the format says."""


class Input:
    """Reads bytes from front to back."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise Bad("it ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def numbers(self, layout):
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def number(self):
        """A number of variable length (LEB128)."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise Bad("a number is too long")

    def bytes(self):
        return self.take(self.number())


def check(is_right, problem):
    if not is_right:
        raise Bad(problem)


def read_header(data):
    """Returns cell, the entry before the first one, and the wrapped key."""
    check(data[:4] == b"SPWA", "magic of the header")
    check(zlib.crc32(data[:-4]) == struct.unpack("<I", data[-4:])[0], "checksum of the header")
    header = Input(data[4:-4])
    version, flags, length, cell, ms, seq = header.numbers("BBHIQQ")
    check(version == 1 and flags in (0, 1) and length == len(data), "header")
    if not flags:
        return cell, (ms, seq), None
    key_id = header.take(header.take(1)[0]).decode()
    return cell, (ms, seq), (key_id, header.take(12), header.take(48))


def read_index(data):
    """Returns entry, length, webhooks, whether it is corrupt, and CRC of each pack."""
    index = Input(data)
    index.take(16)
    packs, ms = [], 0
    for _ in range(index.number()):
        ms += index.number()
        seq, length, webhooks = index.number(), index.number(), index.number()
        packs.append(((ms, seq), length, webhooks >> 1, webhooks & 1, index.numbers("I")[0]))
    for _ in ("shops", "topics"):
        index.take(1)
        for _ in range(index.number()):
            index.bytes()
            index.number()
    index.bytes()
    index.bytes()
    check(index.at == len(data), "bytes after the index")
    return packs


class Opener:
    """Decrypts what is encrypted."""

    def __init__(self, key_file):
        lines = pathlib.Path(key_file).read_text().split("\n") if key_file else []
        self.keys = {key_id: base64.b64decode(key) for key_id, key in map(str.split, filter(str.strip, lines))}

    def unwrap(self, wrapped):
        """Returns a function that decrypts the part with a number, of one object."""
        if wrapped is None:
            return lambda _number, _beside, stored: stored
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        def decrypt(key, nonce, stored, beside, part):
            try:
                return AESGCM(key).decrypt(nonce, stored, beside)
            except InvalidTag:
                raise Bad(f"{part} does not decrypt") from None

        key_id, nonce, sealed = wrapped
        check(key_id in self.keys, f"the key {key_id} is not in --key-file")
        key = decrypt(self.keys[key_id], nonce, sealed, key_id.encode(), "the key of the object")
        return lambda number, beside, stored: decrypt(
            key, struct.pack("<IQ", 0, number), stored, beside, "the index" if number == INDEX_NONCE else "a pack"
        )


def read_object(data, opener):
    """Returns the cell, and entry, CRC and bytes of each pack, with whether it is corrupt."""
    check(len(data) > TRAILER_BYTES and data[-4:] == b"SPWA", "it is cut off, or no object")
    trailer = Input(data[-TRAILER_BYTES:])
    sha256 = trailer.take(32)
    index_bytes, index_crc, header_bytes, version, zero, crc = trailer.numbers("IIHBBI")
    check(version == 1 and zero == 0, "version of the trailer")
    index_at = len(data) - TRAILER_BYTES - header_bytes - index_bytes
    check(index_at > 0, "lengths of the trailer")
    header = data[index_at + index_bytes : -TRAILER_BYTES]
    check(zlib.crc32(data[index_at + index_bytes : -8]) == crc, "checksum of the trailer")
    stored = data[index_at : index_at + index_bytes]
    check(zlib.crc32(stored) == index_crc, "checksum of the index")
    check(hashlib.sha256(data[:index_at]).digest() == sha256, "checksum of the packs")
    check(data[:header_bytes] == header, "the two headers differ")
    cell, _after, wrapped = read_header(header)
    open_part = opener.unwrap(wrapped)
    rows = read_index(open_part(INDEX_NONCE, header, stored))
    packs, at = [], header_bytes
    for number, (entry, length, webhooks, is_corrupt, pack_crc) in enumerate(rows):
        frame = data[at : at + FRAME_BYTES]
        ms, seq, size = struct.unpack("<QQI", frame)
        check((ms, seq) == entry, "order of the packs")
        at += FRAME_BYTES + size
        pack = open_part(number, frame, data[at - size : at])
        check(len(pack) == length and zlib.crc32(pack) == pack_crc, "checksum of a pack")
        packs.append((entry, pack_crc, pack, webhooks, is_corrupt))
    check(at == index_at, "bytes between packs and index")
    return cell, packs


def decompress(packs):
    """Returns the records of packs: one call of zstd for all of them."""
    parts = []
    for pack in packs:
        check(len(pack) >= 20 and pack[:4] == b"SPWY", "magic of a pack")
        crc, version, codec, _zero, count, raw_bytes = struct.unpack("<IBBHII", pack[4:20])
        check(zlib.crc32(pack[8:]) == crc, "checksum of a pack")
        check(version == 1 and codec in (0, 1) and raw_bytes <= RAW_BYTES_MAX, "version of a pack")
        parts.append((codec, count, raw_bytes, pack[20:]))
    compressed = b"".join(payload for codec, _, _, payload in parts if codec == 1)
    raw = b""
    if compressed:
        raw = subprocess.run(["zstd", "-dcq"], input=compressed, stdout=subprocess.PIPE, check=True).stdout
    at = 0
    for codec, count, raw_bytes, payload in parts:
        if codec == 0:
            yield count, payload
        else:
            yield count, raw[at : at + raw_bytes]
            at += raw_bytes
    check(at == len(raw), "size of the packs")


def records(count, raw):
    """Returns time, target, headers and body of each webhook of a pack."""
    record = Input(raw)
    for _ in range(count):
        received, target, headers, body, header_count = record.numbers("QIIIH")
        target = record.take(target)
        end = record.at + headers
        pairs = []
        for _ in range(header_count):
            name, value = record.numbers("HI")
            pairs.append((record.take(name), record.take(value)))
        check(record.at == end, "headers of a webhook")
        yield received, target, pairs, record.take(body)
    check(record.at == len(raw), "bytes after the last webhook")


def text(data):
    return data.decode(errors="replace")


def webhook(cell, entry, index, record):
    """Returns a webhook as JSON: the fields of `spillway archive show -o json`, without the resource."""
    received, target, headers, body = record
    first = {}
    for name, value in headers:
        first.setdefault(text(name), text(value))
    is_event = "shopify-hmac-sha256" in first

    def shopify(name):
        classic, event = first.get("x-shopify-" + name), first.get("shopify-" + name)
        chosen = (event, classic) if is_event else (classic, event)
        return chosen[0] if chosen[0] is not None else chosen[1] or ""

    topic = shopify("topic")
    if is_event and topic and shopify("action"):
        topic += "/" + shopify("action")
    moment = datetime.datetime.fromtimestamp(received // 1000, datetime.timezone.utc)
    found = {
        "spillway_id": f"{cell:08x}-{entry[0]:013}-{entry[1]:010}-{index:05}",
        "received_at": moment.strftime("%Y-%m-%dT%H:%M:%S") + f".{received % 1000:03}Z",
        "shop": shopify("shop-domain"),
        "topic": topic,
        "webhook_id": shopify("webhook-id"),
        "target": text(target),
        "headers": [[text(name), text(value)] for name, value in headers],
    }
    try:
        found["body"] = body.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode()
    return found


class Reader:
    """Prints webhooks, and counts what cannot be read."""

    def __init__(self, opener):
        self.opener, self.problems = opener, 0

    def problem(self, place, error):
        self.problems += 1
        print(f"read.py: {place}: {error}", file=sys.stderr)

    def listed(self, directory):
        """Returns what a directory holds, sorted."""
        try:
            return sorted(directory.iterdir()) if directory.is_dir() else []
        except OSError as error:
            self.problem(directory, error)
            return []

    def group(self, files):
        """Prints the webhooks of objects whose entries overlap: a pack with one entry, length and CRC once."""
        packs = {}
        for file in files:
            try:
                cell, found = read_object(file.read_bytes(), self.opener)
            except (Bad, OSError, ValueError, struct.error) as error:
                self.problem(file, error)
                continue
            for entry, crc, pack, webhooks, is_corrupt in found:
                packs.setdefault((entry, crc, len(pack)), (cell, pack, webhooks, is_corrupt))
        chosen = []
        for (entry, _, _), (cell, pack, webhooks, is_corrupt) in sorted(packs.items(), key=lambda one: one[0]):
            if is_corrupt:
                self.problem(f"entry {entry[0]}-{entry[1]}", "the pack could not be decoded in the queue either")
            else:
                chosen.append((cell, entry, webhooks, pack))
        decoded = decompress(pack for _, _, _, pack in chosen)
        of_entry = []
        for (cell, entry, webhooks, _), (count, raw) in zip(chosen, decoded, strict=True):
            check(count == webhooks, "webhooks of a pack")
            if of_entry and of_entry[0][:2] != (cell, entry):
                show(of_entry)
                of_entry = []
            of_entry.append((cell, entry, list(records(count, raw))))
        show(of_entry)


def is_erased(record):
    """True if only the place and the time of a webhook are left."""
    return not any(record[1:])


def united(one, other):
    """Returns a pack without what is erased in either, or None if they differ in more than that."""

    def same(a, b):
        return a[0] == b[0] and (is_erased(a) or is_erased(b) or a == b)

    if len(one) != len(other) or not all(map(same, one, other)):
        return None
    return [b if is_erased(b) else a for a, b in zip(one, other, strict=True)]


def show(packs):
    """Prints the webhooks of the packs of one entry. An erasure that was cut off leaves two that are one."""
    kept = []
    for cell, entry, found in packs:
        for number, (_, _, other) in enumerate(kept):
            both = united(other, found)
            if both is not None:
                kept[number] = (cell, entry, both)
                break
        else:
            kept.append((cell, entry, found))
    for cell, entry, found in kept:
        for index, record in enumerate(found):
            if not is_erased(record):
                print(json.dumps(webhook(cell, entry, index, record), ensure_ascii=False))


def groups(files):
    """Yields lists of objects with entries in common, in the order of the queue."""
    named = []
    last_of_name = {}
    for file in sorted(files):
        found = NAME.fullmatch(file.name)
        if found:
            # A damaged object that could not be written over is in the archive again, under the next name.
            name, generation = found.groups()[:6], int(found[7] or 0)
            last_of_name[name] = max(last_of_name.get(name, (0, file)), (generation, file))
    for name, (_, file) in last_of_name.items():
        numbers = [int(number) for number in name[:4]]
        named.append((tuple(numbers[:2]), tuple(numbers[2:]), file))
    group, last = [], None
    for first, end, file in sorted(named):
        if group and first > last:
            yield group
            group, last = [], None
        group.append(file)
        last = end if last is None else max(last, end)
    if group:
        yield group


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--cell", default="*", help="id of one cell; default: all")
    parser.add_argument("--key-file", help="the file of ARCHIVE_KEY_FILE")
    arguments = parser.parse_args()
    reader = Reader(Opener(arguments.key_file))
    for cell in sorted(arguments.directory.glob(arguments.cell)):
        if not CELL.fullmatch(cell.name):
            continue
        for day in reader.listed(cell):
            for group in groups(reader.listed(day)):
                try:
                    reader.group(group)
                except (Bad, struct.error, subprocess.CalledProcessError) as error:
                    reader.problem(group[0], error)
    return 1 if reader.problems else 0


if __name__ == "__main__":
    sys.exit(main())
