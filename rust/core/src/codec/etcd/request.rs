//! Encoders of etcd requests: reads of keys, and write transactions with a guard.

use super::fields::{compare, delete, operation, put, range, txn};
use crate::codec::protobuf::{bytes_field, message_field, number_field};

/// The number of a key that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The revision of its creation; 0 when it is absent.
    Created,
    /// The revision of its last write; 0 when it is absent.
    Written,
    /// Its lease; 0 for none.
    Lease,
}

/// A compare. When the transaction is refused, a read of the same key shows whether it held.
#[derive(Clone, Copy, Debug)]
pub struct Condition<'a> {
    /// The compared number of the key.
    pub target: Target,
    /// The text between the root and the key.
    pub folder: &'a str,
    /// The key.
    pub key: &'a str,
    /// The number to compare with.
    pub operand: u64,
    /// The number must be greater than the operand instead of equal.
    pub greater: bool,
    /// All keys below this one are compared instead of the key itself.
    pub below: bool,
}

/// One operation of a transaction.
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Overwrites a key that may exist, on a lease (0 for none), and reads when it was created.
    Put(&'a str, &'a [u8], u64),
    /// Creates a key that does not exist, on a lease (0 for none).
    Create(&'a str, &'a [u8], u64),
    /// Deletes a key.
    Delete(&'a str),
}

/// The guard of a transaction: a key that the transaction compares and overwrites.
#[derive(Clone, Copy, Debug)]
pub struct Guard<'a> {
    /// The whole key.
    pub key: &'a [u8],
    /// The revision of its last write, as last known; 0 when it does not exist.
    pub revision: u64,
    /// The lease that it is on.
    pub lease: u64,
}

/// The value of a guard that a transaction has overwritten.
const WRITTEN: &[u8] = b"w";

/// Encodes a `RangeRequest` for one key. O(bytes).
pub fn get(root: &[u8], key: &str, serializable: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(root.len() + key.len() + 12);
    append_get(&mut out, root, key, serializable);
    out
}

/// Encodes a `TxnRequest` that reads several keys and nothing else. O(bytes).
pub fn get_many(root: &[u8], keys: &[&str], serializable: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(keys.iter().map(|key| root.len() + key.len() + 20).sum());
    for key in keys {
        message_field(&mut out, txn::SUCCESS, |out| {
            message_field(out, operation::RANGE, |out| append_get(out, root, key, serializable));
        });
    }
    out
}

/// Encodes a `TxnRequest` with a guard, conditions and operations. The keys are relative to `root`. O(bytes).
///
/// With `nests_puts`, each put and the read that belongs to it form a nested transaction, so that they count as one
/// operation.
pub fn transaction(
    root: &[u8],
    guard: &Guard<'_>,
    conditions: &[Condition<'_>],
    ops: &[Operation<'_>],
    nests_puts: bool,
) -> Vec<u8> {
    let values: usize = ops.iter().map(|op| size_of(op) + 2 * root.len()).sum();
    let each = |condition: &Condition<'_>| 4 * (root.len() + condition.folder.len() + condition.key.len() + 16);
    let compares: usize = conditions.iter().map(each).sum();
    let mut out = Vec::with_capacity(64 + 3 * guard.key.len() + values + compares);
    append_compare(&mut out, Target::Written, &[guard.key], &[], guard.revision, false);
    for one in conditions {
        let (key, end) = range_of(root, one);
        append_compare(&mut out, one.target, &key, &end, one.operand, one.greater);
    }
    append_put(&mut out, &[guard.key], WRITTEN, guard.lease);
    for op in ops {
        match op {
            Operation::Put(..) if nests_puts => message_field(&mut out, txn::SUCCESS, |out| {
                message_field(out, operation::TXN, |out| append_operation(out, root, op));
            }),
            _ => append_operation(&mut out, root, op),
        }
    }
    message_field(&mut out, txn::FAILURE, |out| {
        message_field(out, operation::RANGE, |out| bytes_field(out, range::KEY, &[guard.key]));
    });
    for one in conditions {
        let (key, end) = range_of(root, one);
        append_peek(&mut out, txn::FAILURE, &key, &end);
    }
    out
}

/// Returns the approximate number of bytes of an encoded operation.
fn size_of(op: &Operation<'_>) -> usize {
    match op {
        Operation::Put(key, value, _) => 2 * key.len() + value.len() + 72,
        Operation::Create(key, value, _) => key.len() + value.len() + 36,
        Operation::Delete(key) => key.len() + 16,
    }
}

/// Returns the key of a condition as parts, with an empty end; or the start and the end of the range of all keys below
/// it (`0` follows `/`).
fn range_of<'a>(root: &'a [u8], condition: &Condition<'a>) -> ([&'a [u8]; 4], Vec<&'a [u8]>) {
    let (folder, key) = (condition.folder.as_bytes(), condition.key.as_bytes());
    if condition.below {
        ([root, folder, key, b"/"], vec![root, folder, key, b"0"])
    } else {
        ([root, folder, key, b""], Vec::new())
    }
}

/// Appends the fields of a `RangeRequest` for one key.
fn append_get(out: &mut Vec<u8>, root: &[u8], key: &str, serializable: bool) {
    bytes_field(out, range::KEY, &[root, key.as_bytes()]);
    if serializable {
        number_field(out, range::SERIALIZABLE, 1);
    }
}

/// Appends a compare of a key, or of all keys of a range if there is an end.
fn append_compare(out: &mut Vec<u8>, target: Target, key: &[&[u8]], end: &[&[u8]], operand: u64, greater: bool) {
    let (kind, field) = match target {
        Target::Created => (compare::IS_CREATED, compare::CREATED),
        Target::Written => (compare::IS_WRITTEN, compare::WRITTEN),
        Target::Lease => (compare::IS_LEASE, compare::LEASE),
    };
    message_field(out, txn::COMPARE, |out| {
        if greater {
            number_field(out, compare::RESULT, compare::IS_GREATER);
        }
        number_field(out, compare::TARGET, kind);
        bytes_field(out, compare::KEY, key);
        number_field(out, field, operand);
        if !end.is_empty() {
            bytes_field(out, compare::END, end);
        }
    });
}

/// Appends an operation that etcd applies if all compares hold.
fn append_operation(out: &mut Vec<u8>, root: &[u8], op: &Operation<'_>) {
    match *op {
        Operation::Put(key, value, lease) => {
            let key = [root, key.as_bytes()];
            append_put(out, &key, value, lease);
            append_peek(out, txn::SUCCESS, &key, &[]);
        }
        Operation::Create(key, value, lease) => append_put(out, &[root, key.as_bytes()], value, lease),
        Operation::Delete(key) => message_field(out, txn::SUCCESS, |out| {
            message_field(out, operation::DELETE, |out| bytes_field(out, delete::KEY, &[root, key.as_bytes()]));
        }),
    }
}

/// Appends a put request. The key is bound to the lease unless that is 0.
fn append_put(out: &mut Vec<u8>, key: &[&[u8]], value: &[u8], lease: u64) {
    message_field(out, txn::SUCCESS, |out| {
        message_field(out, operation::PUT, |out| {
            bytes_field(out, put::KEY, key);
            bytes_field(out, put::VALUE, &[value]);
            if lease != 0 {
                number_field(out, put::LEASE, lease);
            }
        });
    });
}

/// Appends a read without the value, of a key, or of the first key of a range if there is an end.
fn append_peek(out: &mut Vec<u8>, branch: u32, key: &[&[u8]], end: &[&[u8]]) {
    message_field(out, branch, |out| {
        message_field(out, operation::RANGE, |out| {
            bytes_field(out, range::KEY, key);
            if !end.is_empty() {
                bytes_field(out, range::END, end);
            }
            number_field(out, range::LIMIT, 1);
            number_field(out, range::KEYS_ONLY, 1);
        });
    });
}
