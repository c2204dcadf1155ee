//! Decoders of etcd's answers to reads and write transactions. The results borrow from the message.

use super::fields::{key_value, operation, response};
use crate::codec::protobuf::{Fields, Malformed, Value};

/// A key and its value as they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The whole key.
    pub key: &'a [u8],
    /// Its value; empty when only keys were asked for.
    pub value: &'a [u8],
    /// The revision of its creation.
    pub created: i64,
    /// The revision of its last write.
    pub written: i64,
    /// Its lease; 0 for none.
    pub lease: i64,
}

impl<'a> KeyValue<'a> {
    /// Decodes a `KeyValue` message. O(fields).
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a protobuf message.
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::default());
        while let Some(field) = fields.read_next()? {
            match field {
                (key_value::KEY, Value::Bytes(key)) => found.key = key,
                (key_value::CREATED, Value::Number(revision)) => found.created = signed(revision),
                (key_value::WRITTEN, Value::Number(revision)) => found.written = signed(revision),
                (key_value::VALUE, Value::Bytes(value)) => found.value = value,
                (key_value::LEASE, Value::Number(lease)) => found.lease = signed(lease),
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The answer to a range request.
#[derive(Clone, Debug, Default)]
pub struct Range<'a> {
    /// The store's revision.
    pub revision: i64,
    /// The keys, still encoded.
    pub keys: Vec<&'a [u8]>,
    /// Whether there are more keys than were asked for.
    pub more: bool,
}

impl<'a> Range<'a> {
    /// Decodes a `RangeResponse` message, but not the keys in it. O(keys).
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a protobuf message.
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::default());
        while let Some(field) = fields.read_next()? {
            match field {
                (response::HEADER, Value::Bytes(header)) => revision(header, &mut found.revision)?,
                (response::RANGE_KVS, Value::Bytes(key)) => found.keys.push(key),
                (response::RANGE_MORE, Value::Number(more)) => found.more = more != 0,
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The answer to one operation of a transaction that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done<'a> {
    /// The answer to a read, still encoded.
    Read(&'a [u8]),
    /// The number of keys that a deletion deleted.
    Deleted(i64),
    /// The answer to a nested transaction, still encoded.
    Nested(&'a [u8]),
    /// The answer to another operation.
    Other,
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default)]
pub struct Transaction<'a> {
    /// The revision of the store: that of the transaction itself if it wrote.
    pub revision: i64,
    /// Whether all compares held.
    pub succeeded: bool,
    /// The answer to each operation.
    pub answers: Vec<Done<'a>>,
}

impl<'a> Transaction<'a> {
    /// Decodes a `TxnResponse` message. O(operations).
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a protobuf message.
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::default());
        while let Some(field) = fields.read_next()? {
            match field {
                (response::HEADER, Value::Bytes(header)) => revision(header, &mut found.revision)?,
                (response::TXN_SUCCEEDED, Value::Number(succeeded)) => found.succeeded = succeeded != 0,
                (response::TXN_RESPONSES, Value::Bytes(answer)) => found.answers.push(Done::read(answer)?),
                _ => {}
            }
        }
        Ok(found)
    }
}

impl<'a> Done<'a> {
    fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::Other);
        while let Some((number, value)) = fields.read_next()? {
            if let Value::Bytes(answer) = value {
                found = match number {
                    operation::RANGE => Self::Read(answer),
                    operation::DELETE => Self::Deleted(deleted(answer)?),
                    operation::TXN => Self::Nested(answer),
                    _ => Self::Other,
                };
            }
        }
        Ok(found)
    }
}

fn revision(header: &[u8], found: &mut i64) -> Result<(), Malformed> {
    let mut fields = Fields::of(header);
    while let Some(field) = fields.read_next()? {
        if let (response::HEADER_REVISION, Value::Number(revision)) = field {
            *found = signed(revision);
        }
    }
    Ok(())
}

fn deleted(answer: &[u8]) -> Result<i64, Malformed> {
    let (mut fields, mut found) = (Fields::of(answer), 0);
    while let Some(field) = fields.read_next()? {
        if let (response::DELETED, Value::Number(count)) = field {
            found = signed(count);
        }
    }
    Ok(found)
}

/// Converts the number of a protobuf field to type `int64`.
#[allow(clippy::cast_possible_wrap)] // the wire format has negative numbers as large ones
fn signed(number: u64) -> i64 {
    number as i64
}
