//! The vector instructions that the kernels are written in, and the choice among them at run time.
//!
//! Besides `py::record` this is the only module with `unsafe`. Kernels are safe code, generic over [`Lanes`]; [`Level::run`] compiles each
//! once per instruction set. What must hold, and why it does:
//!
//! 1. *An instruction is only executed where the processor has it.* Every method of an instruction set takes a token
//!    (`Avx2` and so on). The tokens' only field is private to this module, and they are made in [`Level::run`] alone,
//!    from a [`Level`]. A level above the baseline is made in [`Level::available`] alone, after asking the processor.
//!    SSE2 belongs to x86-64 itself.
//! 2. *Loads and stores stay within their slice.* `load` and `store` take a slice and check its length; the unaligned
//!    forms of the instructions are used, so that alignment is no concern.
//! 3. *Any bits are a valid value.* All vectors are integers or floats of plain bits.
//!
//! There are no other pointers, no lifetimes, and no shared state here. NEON would be one more implementation of
//! [`Lanes`]; until then other processors run [`Portable`], which compilers vectorise, and which nobody has timed there.

#![allow(unsafe_code)]

use crate::score::{HIGH_FACTOR, LOW_FACTOR};

/// A vector of `N` 32-bit numbers, and what can be done with it. `self` is the proof that the processor can.
pub trait Lanes: Copy {
    /// The vector.
    type V: Copy;
    /// How many numbers it has: 4, 8 or 16.
    const N: usize;
    /// How many keys are best measured side by side: 1 or 4, as registers allow.
    const KEYS: usize;
    /// Which bits of what `raise` gives are right; the others may be too great.
    const KNOWN: u32;

    /// The same number in each lane.
    fn splat(self, value: u32) -> Self::V;
    /// The first `N` numbers of a slice; panics if there are fewer.
    fn load(self, from: &[u32]) -> Self::V;
    /// Writes a vector to the first `N` places of a slice; panics if there are fewer.
    fn store(self, vector: Self::V, to: &mut [u32]);
    /// `(low ^ key.0) * LOW_FACTOR + (high ^ key.1) * HIGH_FACTOR`, in the order of lanes that [`Lanes::in_order`] knows.
    fn score(self, key: (Self::V, Self::V), low: Self::V, high: Self::V) -> Self::V;
    /// Raises bounds to the scores: lane by lane at least both as signed numbers, and their maximum in the bits of `KNOWN`.
    fn raise(self, bounds: Self::V, scores: Self::V) -> Self::V;
    /// Bit `i` says whether the measure in lane `i` is below `floor`, as signed numbers.
    fn below(self, measures: Self::V, floor: Self::V) -> u32;
    /// From lanes, of vectors that follow each other, to workers: `score` may leave them in another order.
    #[inline(always)]
    fn in_order(self, mask: u64) -> u64 {
        mask
    }
    /// The lane where `score` leaves what came in at lane `at`.
    #[inline(always)]
    fn lane_of(self, at: usize) -> usize {
        at
    }
    /// Whether all bounds are below `floor`, as signed numbers.
    fn all_below(self, bounds: Self::V, floor: Self::V) -> bool;
    /// Where `scores` beat `bests`, as signed numbers, they and `worker` take the place of `bests` and `owners`.
    fn keep(self, bests: &mut Self::V, owners: &mut Self::V, scores: Self::V, worker: Self::V);
    /// From scores to merits: `!bits((float(!score as unsigned >> 1) * rates)`, the scores being biased by 2^31.
    fn merit(self, scores: Self::V, rates: Self::V) -> Self::V;
}

/// Which instructions are used. All give the same results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(all(target_arch = "x86_64", avx512))]
    Avx512,
}

/// Work that is compiled for every instruction set. `run` must be `#[inline(always)]`, as must be all it calls that
/// touches vectors: otherwise it is compiled for the baseline.
pub trait Task {
    /// What it gives.
    type Output;
    /// Does it.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

impl Level {
    /// The levels of this processor, slowest first; the first is "portable", plain Rust without any intrinsics.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut levels = vec![Self(Kind::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            levels.push(Self(Kind::Sse2));
            if std::is_x86_feature_detected!("avx2") {
                levels.push(Self(Kind::Avx2));
            }
            #[cfg(avx512)]
            if std::is_x86_feature_detected!("avx512f") {
                levels.push(Self(Kind::Avx512));
            }
        }
        levels
    }

    /// The fastest level of this processor.
    pub fn best() -> Self {
        *Self::available().last().expect("there is always a baseline")
    }

    /// "portable", "baseline" (SSE2), "avx2" or "avx512".
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Sse2 => "baseline",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(all(target_arch = "x86_64", avx512))]
            Kind::Avx512 => "avx512",
        }
    }

    /// Does a task with the instructions of this level.
    pub fn run<T: Task>(self, task: T) -> T::Output {
        match self.0 {
            Kind::Portable => task.run(Portable),
            #[cfg(target_arch = "x86_64")]
            Kind::Sse2 => task.run(x86::Sse2::TOKEN),
            // SAFETY: obligation 1; this level exists only where the processor was found to have AVX2.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { x86::run_avx2(task) },
            // SAFETY: obligation 1; this level exists only where the processor was found to have AVX-512F.
            #[cfg(all(target_arch = "x86_64", avx512))]
            Kind::Avx512 => unsafe { x86::run_avx512(task) },
        }
    }
}

/// Plain Rust: the definition that the other levels are compared with, and what other processors run.
#[derive(Clone, Copy)]
pub struct Portable;

impl Lanes for Portable {
    type V = [u32; 4];
    const N: usize = 4;
    const KEYS: usize = 4;
    const KNOWN: u32 = u32::MAX;

    #[inline(always)]
    fn splat(self, value: u32) -> Self::V {
        [value; 4]
    }

    #[inline(always)]
    fn load(self, from: &[u32]) -> Self::V {
        [from[0], from[1], from[2], from[3]]
    }

    #[inline(always)]
    fn store(self, vector: Self::V, to: &mut [u32]) {
        to[..4].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn score(self, key: (Self::V, Self::V), low: Self::V, high: Self::V) -> Self::V {
        std::array::from_fn(|i| {
            let (low, high) = (low[i] ^ key.0[i], high[i] ^ key.1[i]);
            low.wrapping_mul(LOW_FACTOR).wrapping_add(high.wrapping_mul(HIGH_FACTOR))
        })
    }

    #[inline(always)]
    fn raise(self, bounds: Self::V, scores: Self::V) -> Self::V {
        std::array::from_fn(|i| (bounds[i] as i32).max(scores[i] as i32) as u32)
    }

    #[inline(always)]
    fn below(self, measures: Self::V, floor: Self::V) -> u32 {
        let mut mask = 0;
        for i in 0..4 {
            mask |= u32::from((measures[i] as i32) < floor[i] as i32) << i;
        }
        mask
    }

    #[inline(always)]
    fn all_below(self, bounds: Self::V, floor: Self::V) -> bool {
        self.below(bounds, floor) == 0xf
    }

    #[inline(always)]
    fn keep(self, bests: &mut Self::V, owners: &mut Self::V, scores: Self::V, worker: Self::V) {
        for i in 0..4 {
            if scores[i] as i32 > bests[i] as i32 {
                (bests[i], owners[i]) = (scores[i], worker[i]);
            }
        }
    }

    #[inline(always)]
    fn merit(self, scores: Self::V, rates: Self::V) -> Self::V {
        std::array::from_fn(|i| {
            let short = (scores[i] ^ 0x7fff_ffff) >> 1;
            !(short as i32 as f32 * f32::from_bits(rates[i])).to_bits()
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    #[allow(clippy::wildcard_imports)]
    use std::arch::x86_64::*;

    use super::{Lanes, Task, HIGH_FACTOR, LOW_FACTOR};

    /// Proof that SSE2 is there, as it is on every x86-64.
    #[derive(Clone, Copy)]
    pub struct Sse2(());
    /// Proof that AVX2 is there.
    #[derive(Clone, Copy)]
    pub struct Avx2(());
    /// Proof that AVX-512F is there.
    #[cfg(avx512)]
    #[derive(Clone, Copy)]
    pub struct Avx512(());

    impl Sse2 {
        /// Needs no detection.
        pub const TOKEN: Self = Self(());
    }

    /// # Safety
    /// The processor must have AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn run_avx2<T: Task>(task: T) -> T::Output {
        task.run(Avx2(()))
    }

    /// # Safety
    /// The processor must have AVX-512F.
    #[cfg(avx512)]
    #[target_feature(enable = "avx512f")]
    pub unsafe fn run_avx512<T: Task>(task: T) -> T::Output {
        task.run(Avx512(()))
    }

    // SAFETY, for all that follows: obligation 1 by the token `self`; 2 by the length checks; 3 always.

    /// `_mm_mul_epu32`, but opaque: of that, compilers see that only half the product is used, and make it a 64-bit
    /// multiplication, for which SSE2 needs three.
    #[inline(always)]
    unsafe fn multiply(mut a: __m128i, b: __m128i) -> __m128i {
        asm!("pmuludq {0}, {1}", inout(xmm_reg) a, in(xmm_reg) b, options(pure, nomem, nostack, preserves_flags));
        a
    }

    impl Lanes for Sse2 {
        type V = __m128i;
        const N: usize = 4;
        const KEYS: usize = 1;
        const KNOWN: u32 = 0xffff_0000;

        #[inline(always)]
        fn splat(self, value: u32) -> Self::V {
            unsafe { _mm_set1_epi32(value as i32) }
        }

        #[inline(always)]
        fn load(self, from: &[u32]) -> Self::V {
            unsafe { _mm_loadu_si128(from[..4].as_ptr().cast()) }
        }

        #[inline(always)]
        fn store(self, vector: Self::V, to: &mut [u32]) {
            unsafe { _mm_storeu_si128(to[..4].as_mut_ptr().cast(), vector) }
        }

        /// There is no 32-bit multiplication: even and odd lanes are multiplied apart, and come out as 0, 2, 1, 3.
        #[inline(always)]
        fn score(self, key: (Self::V, Self::V), low: Self::V, high: Self::V) -> Self::V {
            unsafe {
                let (a, b) = (_mm_set1_epi32(LOW_FACTOR as i32), _mm_set1_epi32(HIGH_FACTOR as i32));
                let (low, high) = (_mm_xor_si128(low, key.0), _mm_xor_si128(high, key.1));
                let (low_odd, high_odd) = (_mm_shuffle_epi32::<0xf5>(low), _mm_shuffle_epi32::<0xf5>(high));
                let even = _mm_add_epi32(multiply(low, a), multiply(high, b));
                let odd = _mm_add_epi32(multiply(low_odd, a), multiply(high_odd, b));
                _mm_castps_si128(_mm_shuffle_ps::<0x88>(_mm_castsi128_ps(even), _mm_castsi128_ps(odd)))
            }
        }

        /// There is no 32-bit maximum. In 16-bit halves the upper ones come out right, the lower ones as bounds.
        #[inline(always)]
        fn raise(self, bounds: Self::V, scores: Self::V) -> Self::V {
            unsafe { _mm_max_epi16(bounds, scores) }
        }

        #[inline(always)]
        fn below(self, measures: Self::V, floor: Self::V) -> u32 {
            unsafe { _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(floor, measures))) as u32 }
        }

        #[inline(always)]
        fn in_order(self, mask: u64) -> u64 {
            let (second, third) = (mask & (0x2222 * 0x1_0001_0001_0001), mask & (0x4444 * 0x1_0001_0001_0001));
            (mask ^ second ^ third) | second << 1 | third >> 1
        }

        #[inline(always)]
        fn lane_of(self, at: usize) -> usize {
            [0, 2, 1, 3][at]
        }

        #[inline(always)]
        fn all_below(self, bounds: Self::V, floor: Self::V) -> bool {
            unsafe { _mm_movemask_epi8(_mm_cmpgt_epi32(floor, bounds)) == 0xffff }
        }

        #[inline(always)]
        fn keep(self, bests: &mut Self::V, owners: &mut Self::V, scores: Self::V, worker: Self::V) {
            unsafe {
                let better = _mm_cmpgt_epi32(scores, *bests);
                let choose = |old, new| _mm_or_si128(_mm_andnot_si128(better, old), _mm_and_si128(better, new));
                (*bests, *owners) = (choose(*bests, scores), choose(*owners, worker));
            }
        }

        #[inline(always)]
        fn merit(self, scores: Self::V, rates: Self::V) -> Self::V {
            unsafe {
                let short = _mm_srli_epi32::<1>(_mm_xor_si128(scores, _mm_set1_epi32(0x7fff_ffff)));
                let rates = _mm_castsi128_ps(_mm_shuffle_epi32::<0xd8>(rates));
                let cost = _mm_mul_ps(_mm_cvtepi32_ps(short), rates);
                _mm_xor_si128(_mm_castps_si128(cost), _mm_set1_epi32(-1))
            }
        }
    }

    impl Lanes for Avx2 {
        type V = __m256i;
        const N: usize = 8;
        const KEYS: usize = 4;
        const KNOWN: u32 = u32::MAX;

        #[inline(always)]
        fn splat(self, value: u32) -> Self::V {
            unsafe { _mm256_set1_epi32(value as i32) }
        }

        #[inline(always)]
        fn load(self, from: &[u32]) -> Self::V {
            unsafe { _mm256_loadu_si256(from[..8].as_ptr().cast()) }
        }

        #[inline(always)]
        fn store(self, vector: Self::V, to: &mut [u32]) {
            unsafe { _mm256_storeu_si256(to[..8].as_mut_ptr().cast(), vector) }
        }

        #[inline(always)]
        fn score(self, key: (Self::V, Self::V), low: Self::V, high: Self::V) -> Self::V {
            unsafe {
                let (low, high) = (_mm256_xor_si256(low, key.0), _mm256_xor_si256(high, key.1));
                let low = _mm256_mullo_epi32(low, self.splat(LOW_FACTOR));
                _mm256_add_epi32(low, _mm256_mullo_epi32(high, self.splat(HIGH_FACTOR)))
            }
        }

        #[inline(always)]
        fn raise(self, bounds: Self::V, scores: Self::V) -> Self::V {
            unsafe { _mm256_max_epi32(bounds, scores) }
        }

        #[inline(always)]
        fn below(self, measures: Self::V, floor: Self::V) -> u32 {
            unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(floor, measures))) as u32 }
        }

        #[inline(always)]
        fn all_below(self, bounds: Self::V, floor: Self::V) -> bool {
            self.below(bounds, floor) == 0xff
        }

        #[inline(always)]
        fn keep(self, bests: &mut Self::V, owners: &mut Self::V, scores: Self::V, worker: Self::V) {
            unsafe {
                let better = _mm256_cmpgt_epi32(scores, *bests);
                *bests = _mm256_max_epi32(*bests, scores);
                *owners = _mm256_blendv_epi8(*owners, worker, better);
            }
        }

        #[inline(always)]
        fn merit(self, scores: Self::V, rates: Self::V) -> Self::V {
            unsafe {
                let short = _mm256_srli_epi32::<1>(_mm256_xor_si256(scores, self.splat(0x7fff_ffff)));
                let cost = _mm256_mul_ps(_mm256_cvtepi32_ps(short), _mm256_castsi256_ps(rates));
                _mm256_xor_si256(_mm256_castps_si256(cost), self.splat(u32::MAX))
            }
        }
    }

    // Younger than our least Rust, but only compiled where the build script found a compiler that has them.
    #[cfg(avx512)]
    #[allow(clippy::incompatible_msrv)]
    impl Lanes for Avx512 {
        type V = __m512i;
        const N: usize = 16;
        const KEYS: usize = 4;
        const KNOWN: u32 = u32::MAX;

        #[inline(always)]
        fn splat(self, value: u32) -> Self::V {
            unsafe { _mm512_set1_epi32(value as i32) }
        }

        #[inline(always)]
        fn load(self, from: &[u32]) -> Self::V {
            unsafe { _mm512_loadu_si512(from[..16].as_ptr().cast()) }
        }

        #[inline(always)]
        fn store(self, vector: Self::V, to: &mut [u32]) {
            unsafe { _mm512_storeu_si512(to[..16].as_mut_ptr().cast(), vector) }
        }

        #[inline(always)]
        fn score(self, key: (Self::V, Self::V), low: Self::V, high: Self::V) -> Self::V {
            unsafe {
                let (low, high) = (_mm512_xor_si512(low, key.0), _mm512_xor_si512(high, key.1));
                let low = _mm512_mullo_epi32(low, self.splat(LOW_FACTOR));
                _mm512_add_epi32(low, _mm512_mullo_epi32(high, self.splat(HIGH_FACTOR)))
            }
        }

        #[inline(always)]
        fn raise(self, bounds: Self::V, scores: Self::V) -> Self::V {
            unsafe { _mm512_max_epi32(bounds, scores) }
        }

        #[inline(always)]
        fn below(self, measures: Self::V, floor: Self::V) -> u32 {
            unsafe { u32::from(_mm512_cmplt_epi32_mask(measures, floor)) }
        }

        #[inline(always)]
        fn all_below(self, bounds: Self::V, floor: Self::V) -> bool {
            self.below(bounds, floor) == 0xffff
        }

        #[inline(always)]
        fn keep(self, bests: &mut Self::V, owners: &mut Self::V, scores: Self::V, worker: Self::V) {
            unsafe {
                let better = _mm512_cmpgt_epi32_mask(scores, *bests);
                *bests = _mm512_max_epi32(*bests, scores);
                *owners = _mm512_mask_mov_epi32(*owners, better, worker);
            }
        }

        #[inline(always)]
        fn merit(self, scores: Self::V, rates: Self::V) -> Self::V {
            unsafe {
                let short = _mm512_srli_epi32::<1>(_mm512_xor_si512(scores, self.splat(0x7fff_ffff)));
                let cost = _mm512_mul_ps(_mm512_cvtepi32_ps(short), _mm512_castsi512_ps(rates));
                _mm512_xor_si512(_mm512_castps_si512(cost), self.splat(u32::MAX))
            }
        }
    }
}
