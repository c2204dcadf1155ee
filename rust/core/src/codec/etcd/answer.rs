//! What etcd answers to reads and to write transactions, borrowed where it lies.

use crate::codec::protobuf::{Fields, Malformed, Value};

/// A key as it was read.
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
    /// Reads the message. O(fields).
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::default());
        while let Some(field) = fields.read_next()? {
            match field {
                (1, Value::Bytes(key)) => found.key = key,
                (2, Value::Number(revision)) => found.created = revision as i64,
                (3, Value::Number(revision)) => found.written = revision as i64,
                (5, Value::Bytes(value)) => found.value = value,
                (6, Value::Number(lease)) => found.lease = lease as i64,
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
    /// There are more than were asked for.
    pub more: bool,
}

impl<'a> Range<'a> {
    /// Reads the message, but not its keys. O(keys).
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::default());
        while let Some(field) = fields.read_next()? {
            match field {
                (1, Value::Bytes(header)) => revision(header, &mut found.revision)?,
                (2, Value::Bytes(key)) => found.keys.push(key),
                (3, Value::Number(more)) => found.more = more != 0,
                _ => {}
            }
        }
        Ok(found)
    }
}

/// The answer to one operation of a transaction that was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done<'a> {
    /// A read: the message of its answer.
    Read(&'a [u8]),
    /// A deletion: of how many keys.
    Deleted(i64),
    /// Anything else.
    Other,
}

/// The answer to a transaction.
#[derive(Clone, Debug, Default)]
pub struct Transaction<'a> {
    /// The store's revision: the transaction's own when it wrote.
    pub revision: i64,
    /// All compares held.
    pub succeeded: bool,
    /// One for each operation.
    pub answers: Vec<Done<'a>>,
}

impl<'a> Transaction<'a> {
    /// Reads the message. O(operations).
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Self::default());
        while let Some(field) = fields.read_next()? {
            match field {
                (1, Value::Bytes(header)) => revision(header, &mut found.revision)?,
                (2, Value::Number(succeeded)) => found.succeeded = succeeded != 0,
                (3, Value::Bytes(answer)) => found.answers.push(Done::read(answer)?),
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
                    1 => Self::Read(answer),
                    3 => Self::Deleted(deleted(answer)?),
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
        if let (3, Value::Number(revision)) = field {
            *found = revision as i64;
        }
    }
    Ok(())
}

fn deleted(answer: &[u8]) -> Result<i64, Malformed> {
    let (mut fields, mut found) = (Fields::of(answer), 0);
    while let Some(field) = fields.read_next()? {
        if let (2, Value::Number(count)) = field {
            found = count as i64;
        }
    }
    Ok(found)
}
