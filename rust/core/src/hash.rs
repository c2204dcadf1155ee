//! MurmurHash3_x64_128, the hash under every placement.
//!
//! It is Austin Appleby's public-domain function in its 128-bit, 64-bit-word form: the one that `mmh3.hash64` computes.

const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

/// Returns both 64-bit halves of murmur3_x64_128 of `data`. O(len).
pub fn murmur3_x64_128(data: &[u8], seed: u32) -> (u64, u64) {
    let (mut h1, mut h2) = (u64::from(seed), u64::from(seed));
    let mut blocks = data.chunks_exact(16);
    for block in &mut blocks {
        let (k1, k2) = (word(&block[..8]), word(&block[8..]));
        h1 = (h1 ^ first_lane(k1)).rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 = (h2 ^ second_lane(k2)).rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let tail = blocks.remainder();
    h1 ^= first_lane(word(&tail[..tail.len().min(8)]));
    h2 ^= second_lane(word(&tail[tail.len().min(8)..]));
    finish(h1, h2, data.len() as u64)
}

/// Returns the first 64 bits of murmur3_x64_128, by which `fast` mode identifies keys and workers.
pub fn murmur3_64(data: &[u8], seed: u32) -> u64 {
    murmur3_x64_128(data, seed).0
}

fn finish(mut h1: u64, mut h2: u64, len: u64) -> (u64, u64) {
    h1 ^= len;
    h2 ^= len;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = fmix64(h1);
    h2 = fmix64(h2);
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2)
}

fn first_lane(k: u64) -> u64 {
    k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

fn second_lane(k: u64) -> u64 {
    k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

/// Applies Murmur3's 64-bit finalizer: a bijection in which every output bit depends on every input bit.
pub fn fmix64(mut k: u64) -> u64 {
    k = (k ^ (k >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    k = (k ^ (k >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    k ^ (k >> 33)
}

/// Returns up to eight bytes as a little-endian number, padded with zeros. Overlapping reads avoid a copy of variable
/// length.
#[inline(always)]
fn word(bytes: &[u8]) -> u64 {
    let at = |place: usize| u64::from(bytes[place]) << (8 * place);
    let four = |place: usize| {
        let four = [bytes[place], bytes[place + 1], bytes[place + 2], bytes[place + 3]];
        u64::from(u32::from_le_bytes(four)) << (8 * place)
    };
    match bytes.len() {
        0 => 0,
        len @ 1..=3 => at(0) | at(len / 2) | at(len - 1),
        len => four(0) | four(len - 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_input_with_seed_zero_hashes_to_zero() {
        assert_eq!(murmur3_x64_128(b"", 0), (0, 0));
    }

    #[test]
    fn published_vectors_hold() {
        // "The quick brown fox ..." is the vector most ports quote; the others were computed with mmh3.
        assert_eq!(
            murmur3_x64_128(b"The quick brown fox jumps over the lazy dog", 0),
            (0xe34b_bc7b_bc07_1b6c, 0x7a43_3ca9_c49a_9347)
        );
        assert_eq!(murmur3_x64_128(b"hello", 0), (0xcbd8_a7b3_41bd_9b02, 0x5b1e_906a_48ae_1d19));
    }

    #[test]
    fn every_tail_length_gives_a_different_hash() {
        let data = [7u8; 40];
        let mut seen: Vec<_> = (0..40).map(|n| murmur3_x64_128(&data[..n], 1)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 40);
    }
}
