// SPDX-License-Identifier: Apache-2.0
//! Where libfarcall-c is: in FARCALL_LIB_DIR, or where pkg-config says.

use std::env;
use std::process::{self, Command};

const VERSION: &str = "0.1"; // any 0.x may break the ABI, as SOVERSION says

fn main() {
    println!("cargo:rerun-if-env-changed=FARCALL_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_LIBDIR");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    if let Some(directory) = env::var_os("FARCALL_LIB_DIR") {
        println!("cargo:rustc-link-search=native={}", directory.to_string_lossy());
        println!("cargo:rustc-link-lib=dylib=farcall-c");
        return;
    }
    match ask_pkg_config() {
        Ok(flags) => tell_cargo(&flags),
        Err(why) => {
            eprintln!(
                "libfarcall-c is not found: {why}\n\
                 Install farcall, or say in FARCALL_LIB_DIR which folder libfarcall-c.so is in."
            );
            process::exit(1);
        }
    }
}

fn ask_pkg_config() -> Result<String, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let wanted = format!("farcall-c >= {VERSION}");
    let output = Command::new(program)
        .args(["--libs", &wanted])
        .output()
        .map_err(|error| format!("pkg-config: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn tell_cargo(flags: &str) {
    for flag in flags.split_whitespace() {
        if let Some(directory) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={directory}");
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
}
