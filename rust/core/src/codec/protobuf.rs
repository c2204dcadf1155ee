//! Protobuf's wire format: numbers of variable length, and fields that begin with their number and length.

use std::fmt;

/// The bytes are no protobuf message. Contains the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the bytes are no protobuf message: {}", self.0)
    }
}

/// The content of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    /// Eight or four bytes, which messages of etcd do not use.
    Fixed,
}

/// Reads the fields of a message one after the other.
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns a reader of the fields of a message.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the number and the content of the next field, or None at the end.
    ///
    /// # Errors
    /// [`Malformed`] if the rest of the message is not a field.
    #[inline]
    pub fn read_next(&mut self) -> Result<Option<(u32, Value<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.number()?;
        let field = u32::try_from(tag).unwrap_or(0) >> 3;
        if field == 0 {
            return Err(Malformed("a field has no valid number"));
        }
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let size = self.number()?;
                Value::Bytes(self.take(usize::try_from(size).unwrap_or(usize::MAX))?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed("a field is of no known type")),
        };
        Ok(Some((field, value)))
    }

    #[inline]
    fn number(&mut self) -> Result<u64, Malformed> {
        let mut found = 0;
        for (at, &byte) in self.rest.iter().enumerate().take(10) {
            found |= u64::from(byte & 127) << (7 * at);
            if byte < 128 {
                self.rest = &self.rest[at + 1..];
                return Ok(found);
            }
        }
        Err(Malformed(if self.rest.len() < 10 { "a number is cut off" } else { "a number is too long" }))
    }

    #[inline]
    fn take(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(Malformed("a field is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Appends a field that contains a number.
#[inline]
pub fn number_field(out: &mut Vec<u8>, field: u32, value: u64) {
    append_tag(out, field, 0);
    append_number(out, value);
}

/// Appends a field that contains bytes, which are the concatenation of `parts`.
#[inline]
pub fn bytes_field(out: &mut Vec<u8>, field: u32, parts: &[&[u8]]) {
    append_tag(out, field, 2);
    append_number(out, parts.iter().map(|part| part.len() as u64).sum());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a field that contains a message. `body` appends the fields of that message.
#[inline]
pub fn message_field(out: &mut Vec<u8>, field: u32, body: impl FnOnce(&mut Vec<u8>)) {
    append_tag(out, field, 2);
    let start = out.len();
    out.push(0); // enough for the length of a small message
    body(out);
    let length = out.len() - start - 1;
    match u8::try_from(length) {
        Ok(short) if short < 128 => out[start] = short,
        _ => {
            let mut encoded = Vec::with_capacity(10);
            append_number(&mut encoded, length as u64);
            out.splice(start..=start, encoded);
        }
    }
}

#[inline]
fn append_tag(out: &mut Vec<u8>, field: u32, wire_type: u64) {
    append_number(out, u64::from(field) << 3 | wire_type);
}

#[inline]
fn append_number(out: &mut Vec<u8>, mut value: u64) {
    while value > 127 {
        out.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    out.push((value & 127) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
        let (mut fields, mut found) = (Fields::of(message), Vec::new());
        while let Some(field) = fields.read_next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_come_back_as_they_were_written() {
        for size in [0, 1, 127, 128, 16_383, 16_384] {
            let mut message = Vec::new();
            message_field(&mut message, 1, |out| out.resize(out.len() + size, 7));
            number_field(&mut message, 3, u64::MAX - size as u64);
            let expected = vec![7; size];
            assert_eq!(
                all(&message),
                Ok(vec![(1, Value::Bytes(&expected)), (3, Value::Number(u64::MAX - size as u64))])
            );
        }
    }

    #[test]
    fn every_beginning_of_a_message_is_read_or_refused() {
        let mut message = vec![0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x15, 1, 2, 3, 4, 0x18, 0xff, 0x7f];
        bytes_field(&mut message, 4, &[b"val", b"ue"]);
        let whole = (0..=message.len()).filter(|&end| all(&message[..end]).is_ok()).collect::<Vec<_>>();
        assert_eq!(whole, [0, 9, 14, 17, message.len()]);
    }

    #[test]
    fn what_is_no_field_is_refused() {
        for message in
            [&[0x00, 0x01][..], &[0x0b], &[0x80; 11], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]
        {
            assert!(all(message).is_err(), "{message:?}");
        }
    }
}
