//! The syntax of keys: segments joined by slashes. The rules are those of `latchwork.backends.key_syntax`.

/// The most bytes of a segment.
const SEGMENT: usize = 120;

/// Returns whether these bytes have the syntax of a latchwork key. Reserved keys and any number of segments are
/// allowed. O(bytes).
pub fn is_key(bytes: &[u8]) -> bool {
    bytes.split(|&byte| byte == b'/').all(is_segment)
}

fn is_segment(bytes: &[u8]) -> bool {
    (1..=SEGMENT).contains(&bytes.len())
        && bytes != b"."
        && bytes != b".."
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-~%@:+=,".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_from_what_others_write() {
        for key in [&b"a"[..], b"a/b", b"@s/1", b"A-Za.z0_9/~%@:+=,", b"...", &[b'x'; 120]] {
            assert!(is_key(key), "{key:?}");
        }
        for other in
            [&b""[..], b"/", b"a/", b"/a", b"a//b", b".", b"a/..", b"a b", b"\xff", "\u{e9}".as_bytes(), &[b'x'; 121]]
        {
            assert!(!is_key(other), "{other:?}");
        }
    }
}
