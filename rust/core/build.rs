//! Says whether this compiler has the AVX-512 intrinsics, which are younger than our least Rust.

use std::env;
use std::process::Command;

/// The first Rust 1.x in which `std::arch` has AVX-512 in stable form.
const AVX512_SINCE: u32 = 89;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(avx512)");
    if minor_version().is_some_and(|minor| minor >= AVX512_SINCE) {
        println!("cargo::rustc-cfg=avx512");
    }
}

/// The 95 of "rustc 1.95.0 (...)".
fn minor_version() -> Option<u32> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split('.').nth(1)?.parse().ok()
}
