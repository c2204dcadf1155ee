//! Reads of keys, write transactions under a guard, and the parts that every other transaction is put together from.
//!
//! Compares and operations have their length in front, so that a transaction joins them.

use crate::codec::protobuf::{bytes, number, sized};

/// What of a key is compared with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The revision of its creation; 0 when it is absent.
    Created,
    /// The revision of its last write; 0 when it is absent.
    Written,
    /// Its lease; 0 for none.
    Lease,
}

/// One compare, and the read of the same key that tells afterwards whether it held.
#[derive(Clone, Copy, Debug)]
pub struct Condition<'a> {
    /// What is compared.
    pub target: Target,
    /// What stands between the root and the key.
    pub folder: &'a str,
    /// The key.
    pub key: &'a str,
    /// With what it is compared.
    pub operand: u64,
    /// Greater than the operand, not equal to it.
    pub greater: bool,
    /// Every key below this one is compared, instead of the key.
    pub below: bool,
}

/// One operation of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Overwrite a key that may exist, on a lease (0 for none), and read when it was created.
    Put(&'a str, &'a [u8], u64),
    /// Create a key that does not exist, on a lease (0 for none).
    Create(&'a str, &'a [u8], u64),
    /// Delete a key.
    Delete(&'a str),
}

/// The guard of a transaction: its key, its revision, and its write and its read as encoded operations.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// Where it is.
    pub key: &'a [u8],
    /// As last known.
    pub revision: u64,
    /// The operation that overwrites it.
    pub write: &'a [u8],
    /// The operation that reads it.
    pub read: &'a [u8],
}

/// A `RangeRequest` for one key. O(bytes).
pub fn get(root: &[u8], key: &str, serializable: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(root.len() + key.len() + 12);
    joined(&mut out, 0x0a, &[root, key.as_bytes()]);
    if serializable {
        out.extend_from_slice(&[0x38, 1]);
    }
    out
}

/// A `TxnRequest` that reads several keys and nothing else. O(bytes).
pub fn get_many(root: &[u8], keys: &[&str], serializable: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(keys.iter().map(|key| root.len() + key.len() + 20).sum());
    for key in keys {
        out.push(0x12);
        request(&mut out, 0x0a, |out| out.extend_from_slice(&get(root, key, serializable)));
    }
    out
}

/// A `TxnRequest`; keys are below `root`. O(bytes).
pub fn transaction(root: &[u8], guard: &Guard<'_>, conditions: &[Condition<'_>], ops: &[Operation<'_>]) -> Vec<u8> {
    let values: usize = ops.iter().map(|op| size_of(op) + 2 * root.len()).sum();
    let each = |condition: &Condition<'_>| 4 * (root.len() + condition.folder.len() + condition.key.len() + 16);
    let compares: usize = conditions.iter().map(each).sum();
    let mut out = Vec::with_capacity(64 + 3 * guard.key.len() + values + compares);
    out.push(0x0a);
    compare(&mut out, Target::Written, &[guard.key], &[], guard.revision, false);
    for one in conditions {
        out.push(0x0a);
        let (key, end) = range_of(root, one);
        compare(&mut out, one.target, &key, &end, one.operand, one.greater);
    }
    out.push(0x12);
    out.extend_from_slice(guard.write);
    for op in ops {
        operation(&mut out, root, op);
    }
    out.push(0x1a);
    out.extend_from_slice(guard.read);
    for one in conditions {
        out.push(0x1a);
        let (key, end) = range_of(root, one);
        peek(&mut out, &key, &end);
    }
    out
}

/// A `TxnRequest` of encoded compares, operations if they hold, and operations if not. O(bytes).
pub fn joined_transaction(parts: [Vec<impl AsRef<[u8]>>; 3]) -> Vec<u8> {
    let size = parts.iter().flatten().map(|one| one.as_ref().len() + 1).sum();
    let mut out = Vec::with_capacity(size);
    for (tag, some) in [0x0a, 0x12, 0x1a].into_iter().zip(parts) {
        for one in some {
            out.push(tag);
            out.extend_from_slice(one.as_ref());
        }
    }
    out
}

/// Appends a `Compare`, of every key in a range when there is an end. O(bytes), as are the next ones.
pub fn compare(out: &mut Vec<u8>, target: Target, key: &[&[u8]], end: &[&[u8]], operand: u64, greater: bool) {
    let (kind, introduced) = match target {
        Target::Created => (1, 0x28),
        Target::Written => (2, 0x30),
        Target::Lease => (4, 0x40),
    };
    sized(out, |out| {
        if greater {
            out.extend_from_slice(&[0x08, 1]);
        }
        out.extend_from_slice(&[0x10, kind]);
        joined(out, 0x1a, key);
        out.push(introduced);
        number(out, operand);
        if !end.is_empty() {
            out.push(0x82);
            joined(out, 0x04, end);
        }
    });
}

/// Appends a `RequestOp` that puts, on a lease unless that is 0, or on the one that the key has.
pub fn put(out: &mut Vec<u8>, key: &[&[u8]], value: &[u8], lease: u64, ignore_lease: bool) {
    request(out, 0x12, |out| {
        joined(out, 0x0a, key);
        out.push(0x12);
        bytes(out, value);
        if lease != 0 {
            out.push(0x18);
            number(out, lease);
        }
        if ignore_lease {
            out.extend_from_slice(&[0x30, 1]);
        }
    });
}

/// Appends a `RequestOp` that deletes a key, or a range when there is an end.
pub fn delete(out: &mut Vec<u8>, key: &[&[u8]], end: &[&[u8]]) {
    request(out, 0x1a, |out| range(out, key, end));
}

/// Appends a `RequestOp` that reads a key.
pub fn read(out: &mut Vec<u8>, key: &[&[u8]]) {
    request(out, 0x0a, |out| range(out, key, &[]));
}

/// Appends a `RequestOp` that reads a key without its value, or the first of a range.
pub fn peek(out: &mut Vec<u8>, key: &[&[u8]], end: &[&[u8]]) {
    request(out, 0x0a, |out| {
        range(out, key, end);
        out.extend_from_slice(&[0x18, 1, 0x40, 1]);
    });
}

/// Appends a `RequestOp` that is an encoded transaction.
pub fn nested(out: &mut Vec<u8>, transaction: &[u8]) {
    request(out, 0x22, |out| out.extend_from_slice(transaction));
}

fn size_of(op: &Operation<'_>) -> usize {
    match op {
        Operation::Put(key, value, _) => 2 * key.len() + value.len() + 60,
        Operation::Create(key, value, _) => key.len() + value.len() + 36,
        Operation::Delete(key) => key.len() + 16,
    }
}

/// The key that is compared, or the range of all keys below it: `0` follows `/`.
fn range_of<'a>(root: &'a [u8], condition: &Condition<'a>) -> ([&'a [u8]; 4], Vec<&'a [u8]>) {
    let (folder, key) = (condition.folder.as_bytes(), condition.key.as_bytes());
    if condition.below {
        ([root, folder, key, b"/"], vec![root, folder, key, b"0"])
    } else {
        ([root, folder, key, b""], Vec::new())
    }
}

fn operation(out: &mut Vec<u8>, root: &[u8], op: &Operation<'_>) {
    out.push(0x12);
    match *op {
        Operation::Put(key, value, lease) => {
            let key = [root, key.as_bytes()];
            put(out, &key, value, lease, false);
            out.push(0x12);
            peek(out, &key, &[]);
        }
        Operation::Create(key, value, lease) => put(out, &[root, key.as_bytes()], value, lease, false),
        Operation::Delete(key) => delete(out, &[root, key.as_bytes()], &[]),
    }
}

/// What is read or deleted: one key, or all up to an end.
fn range(out: &mut Vec<u8>, key: &[&[u8]], end: &[&[u8]]) {
    joined(out, 0x0a, key);
    if !end.is_empty() {
        joined(out, 0x12, end);
    }
}

/// A `RequestOp` of a kind, its length in front.
fn request(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    sized(out, |out| {
        out.push(kind);
        sized(out, body);
    });
}

/// A field of bytes that come in parts.
fn joined(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    out.push(tag);
    number(out, parts.iter().map(|part| part.len() as u64).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
}
