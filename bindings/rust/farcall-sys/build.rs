// SPDX-License-Identifier: Apache-2.0
//! Where the libraries are: in the folders of FARCALL_LIB_DIR, or where pkg-config says.

use std::env;
use std::process::{self, Command};

// Any 0.x may break the ABI, as SOVERSION says.
const VERSION: &str = "0.1";
const NEXT: &str = "0.2";

fn main() {
    println!("cargo:rerun-if-env-changed=FARCALL_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_LIBDIR");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    let mut libraries = vec!["farcall-c"];
    if env::var_os("CARGO_FEATURE_MESSAGES").is_some() {
        libraries.push("farcall-messages");
    }
    if let Some(directories) = env::var_os("FARCALL_LIB_DIR") {
        for directory in env::split_paths(&directories) {
            println!("cargo:rustc-link-search=native={}", directory.display());
        }
        for library in libraries {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
        return;
    }
    for library in libraries {
        match ask_pkg_config(library) {
            Ok(flags) => tell_cargo(&flags),
            Err(why) => {
                eprintln!(
                    "lib{library} is not found: {why}\n\
                     Install farcall, or say in FARCALL_LIB_DIR which folder lib{library}.so is in."
                );
                process::exit(1);
            }
        }
    }
}

fn ask_pkg_config(library: &str) -> Result<String, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let wanted = [format!("{library} >= {VERSION}"), format!("{library} < {NEXT}")];
    let output = Command::new(program)
        .arg("--libs")
        .args(wanted)
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
