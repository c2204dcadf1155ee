//! The Python module `latchwork._core`: bindings, and nothing but bindings. Its documentation is `_core.pyi`.

mod assignment;
mod board;
mod calls;
mod delta;
mod errors;
mod etcd;
mod hasher;
mod interrupts;
mod items;
mod jobs;
mod numbers;
mod record;
mod text;
mod zookeeper;

use pyo3::prelude::*;

use calls::{guarded, number};
use latchwork_core::hash::murmur3_x64_128;
use latchwork_core::rendezvous::score;

/// Bytes, or text as UTF-8.
#[derive(FromPyObject)]
enum Data<'py> {
    Text(Bound<'py, pyo3::types::PyString>),
    Bytes(Bound<'py, pyo3::types::PyBytes>),
}

/// Hash data with murmur3_x64_128.
///
/// This is not a cryptographic hash: collisions are easy to construct.
///
/// Args:
///     data: Bytes, or text, which is hashed as UTF-8.
///     seed: 0 to 2**32 - 1.
/// Returns:
///     Both 64-bit halves, unsigned. `mmh3.hash64` with signed=False returns the same pair.
#[pyfunction]
#[pyo3(signature = (data, seed = 0))]
fn hash128(data: Data<'_>, #[pyo3(from_py_with = number)] seed: u32) -> PyResult<(u64, u64)> {
    guarded(|| {
        Ok(match data {
            Data::Text(string) => murmur3_x64_128(text::utf8("data", &string)?.as_bytes(), seed),
            Data::Bytes(bytes) => murmur3_x64_128(bytes.as_bytes(), seed),
        })
    })
}

/// Return the score of a pair in `fast` mode, 0 to 2**32 - 1. The worker with the highest score owns the key.
///
/// With k and w the first halves of hash128 of the key (seed 0x6974656d) and the worker (seed 0x776f726b), and x = k ^
/// w, the score is (low32(x) * 0x9E3779B1 + high32(x) * 0x85EBCA77) mod 2**32.
#[pyfunction]
fn fast_score(key: &str, worker: &str) -> u32 {
    guarded(|| score::fast_score(score::fast_key(key.as_bytes()), score::fast_worker(worker.as_bytes())))
}

/// Return the score of a pair in `compat` mode: `mmh3.hash64(key + worker)[0]`, signed 64 bits. The worker with the
/// highest score owns the key.
#[pyfunction]
fn compat_score(key: &str, worker: &str) -> i64 {
    guarded(|| score::compat_score(key.as_bytes(), worker.as_bytes(), &mut Vec::new()))
}

// Never tried without the GIL: an interpreter that could run without it enables it when it imports this module. The
// free-threaded builds of CPython 3.13 and 3.14 cannot load it at all, because it uses `abi3`.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<board::Board>()?;
    module.add_class::<board::Moves>()?;
    module.add_class::<hasher::RendezvousHasher>()?;
    module.add_class::<items::ItemSet>()?;
    module.add_class::<assignment::Assignment>()?;
    module.add_class::<delta::Delta>()?;
    module.add_class::<etcd::EtcdCodec>()?;
    module.add_class::<etcd::EtcdPage>()?;
    module.add_class::<zookeeper::ZooKeeperCodec>()?;
    module.add_function(wrap_pyfunction!(hash128, module)?)?;
    module.add_function(wrap_pyfunction!(fast_score, module)?)?;
    module.add_function(wrap_pyfunction!(compat_score, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::place, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::choose_moves, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::place_replicas, module)?)?;
    Ok(())
}
