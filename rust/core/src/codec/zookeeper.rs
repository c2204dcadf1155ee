//! The multi-read of ZooKeeper in its wire format: big-endian numbers of four and eight bytes, and data that begin with
//! their length.

use std::fmt;

const GET_DATA: i32 = 4;
const END: [u8; 9] = [0xff, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff, 0xff];
const OWNER_CHARS: usize = 32;
const CREATED_CHARS: usize = 18;

/// The bytes are no answer to a multi-read. Contains the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the bytes are no answer to a multi-read of data: {}", self.0)
    }
}

/// A znode as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Znode<'a> {
    /// Its data; empty also if it has none.
    pub data: &'a [u8],
    /// The transaction that created it.
    pub created: i64,
    /// The transaction that last wrote its data.
    pub written: i64,
    /// How often its data were written since its creation.
    pub version: i32,
    /// How many children it has.
    pub children: i32,
    /// Whether it disappears with a session.
    pub ephemeral: bool,
}

/// The answer to one read of a multi-read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The znode that was read.
    Data(Znode<'a>),
    /// The error code of ZooKeeper for which nothing was read.
    Error(i32),
}

/// Reads the answers one after the other.
pub struct Answers<'a> {
    rest: &'a [u8],
}

impl<'a> Answers<'a> {
    /// Returns a reader of the answers in the body of a reply.
    pub fn of(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Returns the next answer, or None at the end.
    ///
    /// # Errors
    /// [`Malformed`] if the rest is not an answer to a read of data.
    #[inline]
    pub fn read_next(&mut self) -> Result<Option<Answer<'a>>, Malformed> {
        let kind = self.int()?;
        let done = self.take(1)?[0] != 0;
        self.int()?;
        if done {
            return Ok(None);
        }
        if kind == GET_DATA {
            return self.znode().map(Answer::Data).map(Some);
        }
        if kind == -1 {
            return self.int().map(Answer::Error).map(Some);
        }
        Err(Malformed("it answers what is no read of data"))
    }

    #[inline]
    fn znode(&mut self) -> Result<Znode<'a>, Malformed> {
        let size = usize::try_from(self.int()?).unwrap_or(0); // -1 stands for no data
        let data = self.take(size)?;
        let stat = self.take(68)?;
        let long = |at: usize| i64::from_be_bytes(array(&stat[at..at + 8]));
        let int = |at: usize| i32::from_be_bytes(array(&stat[at..at + 4]));
        let ephemeral = long(44) != 0;
        Ok(Znode { data, created: long(0), written: long(8), version: int(32), children: int(56), ephemeral })
    }

    #[inline]
    fn int(&mut self) -> Result<i32, Malformed> {
        Ok(i32::from_be_bytes(array(self.take(4)?)))
    }

    #[inline]
    fn take(&mut self, size: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(Malformed("it is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }
}

#[inline]
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut found = [0; N];
    found.copy_from_slice(bytes);
    found
}

/// The decoded data of the znode of a key.
#[derive(Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// The value that the caller stored.
    pub value: &'a [u8],
    /// The session that it is bound to.
    pub owner: Option<&'a str>,
    /// The transaction that created the key, if the data of a session-bound key contain it.
    pub created: Option<i64>,
}

/// Decodes the data of a znode into the value and its owner. Data that other programs wrote are returned unchanged: if
/// the znode is not ephemeral, or latchwork could not have written the data, an apparent owner is part of the value.
pub fn content(data: &[u8], ephemeral: bool) -> Content<'_> {
    if let [b'=', value @ ..] = data {
        return Content { value, owner: None, created: None };
    }
    let bound = if ephemeral { bound_content(data) } else { None };
    bound.unwrap_or(Content { value: data, owner: None, created: None })
}

fn bound_content(data: &[u8]) -> Option<Content<'_>> {
    let rest = data.strip_prefix(b"@")?;
    let owner = rest.get(..OWNER_CHARS)?;
    if !owner.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let owner = Some(std::str::from_utf8(owner).ok()?);
    match &rest[OWNER_CHARS..] {
        [b'=', value @ ..] => Some(Content { value, owner, created: None }),
        [b':', rest @ ..] => {
            let end = rest.iter().take(CREATED_CHARS + 1).position(|byte| *byte == b'=')?;
            let digits = &rest[..end];
            if !digits.iter().all(u8::is_ascii_digit) {
                return None;
            }
            let created = Some(std::str::from_utf8(digits).ok()?.parse().ok()?);
            Some(Content { value: &rest[end + 1..], owner, created })
        }
        _ => None,
    }
}

/// Encodes a multi-read of the data of several keys below a root. An empty key is the root itself. O(bytes).
///
/// # Panics
/// If a path has more than 2^32 bytes.
pub fn reads<'a>(root: &str, keys: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut out = Vec::new();
    for key in keys {
        let slash = usize::from(!key.is_empty());
        out.extend_from_slice(&GET_DATA.to_be_bytes());
        out.extend_from_slice(&[0, 0xff, 0xff, 0xff, 0xff]);
        let size = u32::try_from(root.len() + slash + key.len()).expect("a path fits into a message");
        out.extend_from_slice(&size.to_be_bytes());
        out.extend_from_slice(root.as_bytes());
        out.extend_from_slice(&b"/"[..slash]);
        out.extend_from_slice(key.as_bytes());
        out.push(0); // no watch
    }
    out.extend_from_slice(&END);
    out
}

/// Computes the CRC-32 checksum of zlib. It decides which guard belongs to a key.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| (crc >> 8) ^ TABLE[usize::from((crc & 0xff) as u8 ^ byte)])
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let (mut at, mut byte) = (0, 0u32);
    while at < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[at] = crc;
        (at, byte) = (at + 1, byte + 1);
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(data: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(data);
        out.extend(7i64.to_be_bytes());
        out.extend(9i64.to_be_bytes());
        out.extend([0; 16]);
        out.extend(3i32.to_be_bytes());
        out.extend([0; 20]);
        out.extend(5i32.to_be_bytes());
        out.extend([0; 8]);
        out
    }

    fn all(body: &[u8]) -> Result<Vec<Answer<'_>>, Malformed> {
        let (mut answers, mut found) = (Answers::of(body), Vec::new());
        while let Some(answer) = answers.read_next()? {
            found.push(answer);
        }
        Ok(found)
    }

    #[test]
    fn data_and_errors_come_in_order() {
        let mut body = answer(b"=x");
        body.extend([0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0x9b, 0xff, 0xff, 0xff, 0x9b]);
        body.extend(END);
        let znode = Znode { data: b"=x", created: 7, written: 9, version: 3, children: 5, ephemeral: false };
        assert_eq!(all(&body), Ok(vec![Answer::Data(znode), Answer::Error(-101)]));
    }

    #[test]
    fn every_beginning_of_an_answer_is_refused() {
        let mut body = answer(b"=value");
        body.extend(END);
        assert!(all(&body).is_ok());
        for end in 0..body.len() {
            assert!(all(&body[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn what_answers_no_read_of_data_is_refused() {
        assert!(all(&[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn an_owner_is_told_from_a_value_and_from_what_others_wrote() {
        let mut bound = vec![b'@'];
        bound.extend([b'a'; 32]);
        bound.extend(b"=v");
        fn plain(value: &[u8]) -> Content<'_> {
            Content { value, owner: None, created: None }
        }
        let owner = "a".repeat(32);
        assert_eq!(content(&bound, true), Content { value: b"v", owner: Some(&owner), created: None });
        assert_eq!(content(&bound, false), plain(&bound));
        assert_eq!(content(b"=v", true), plain(b"v"));
        assert_eq!(content(b"@short=v", true), plain(b"@short=v"));
        bound[9] = b'/';
        assert_eq!(content(&bound, true), plain(&bound));
    }

    #[test]
    fn a_bound_key_may_have_its_creation_in_its_data() {
        let owner = "a".repeat(32);
        let data = format!("@{owner}:123=v=w").into_bytes();
        assert_eq!(content(&data, true), Content { value: b"v=w", owner: Some(&owner), created: Some(123) });
        for other in [":=v", ":12", ":-1=v", ":1234567890123456789=v"] {
            let data = format!("@{owner}{other}").into_bytes();
            assert_eq!(content(&data, true), Content { value: &data, owner: None, created: None });
        }
    }

    #[test]
    fn the_checksum_is_zlibs() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
