// SPDX-License-Identifier: Apache-2.0
//! Nothing here differs from the header: what lib.rs declares is written once more in C, behind the
//! header, as a program that a compiler of C takes only if both say the same.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write;
use std::fs;
use std::mem::size_of;
use std::path::PathBuf;
use std::process::Command;

const DECLARATIONS: &str = include_str!("../src/lib.rs");
#[cfg(feature = "messages")]
const MESSAGES: &str = include_str!("../src/message.rs");

fn header() -> PathBuf {
    let include = env::var_os("FARCALL_INCLUDE_DIR").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../include"),
        PathBuf::from,
    );
    include.join("farcall/farcall.h")
}

fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointed) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(pointed));
    }
    if let Some(pointed) = rust.strip_prefix("*const ") {
        return format!("{} const*", c_type(pointed));
    }
    if let Some(function) = rust.strip_prefix("Option<unsafe extern \"C\" fn(") {
        let (arguments, result) = function.rsplit_once(')').unwrap();
        let result = result.trim_end_matches('>').trim_start_matches(" ->");
        return format!("{} (*)({})", c_type(result), c_types(arguments));
    }
    match rust {
        "c_int" => "int",
        "c_uint" => "unsigned",
        "c_char" => "char",
        "c_void" | "" => "void",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "isize" => "ssize_t",
        "iovec" => "struct iovec",
        "[c_int; FARCALL_DESCRIPTORS]" => "int*", // as what it decays to
        "farcall_info" | "farcall_message" => return format!("struct {rust}"),
        name if DECLARATIONS.contains(&format!("pub struct {name} {{")) => {
            return format!("struct {name}");
        }
        name if name.starts_with("farcall_") => name,
        other => panic!("{other} is nothing that C knows"),
    }
    .to_string()
}

/// The types of named arguments.
fn c_types(arguments: &str) -> String {
    let types: Vec<String> = arguments
        .split(',')
        .filter_map(|argument| argument.split_once(':'))
        .map(|(_, of)| c_type(of))
        .collect();
    if types.is_empty() {
        return "void".to_string();
    }
    types.join(", ")
}

/// The text between `begin` and the next `end`, wherever that is, and what begins each time.
fn pieces<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).map(|rest| rest.split(end).next().unwrap()).collect()
}

fn without_comments(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Prototypes of all functions: what a compiler compares with those of the header.
fn prototypes(declarations: &str) -> Vec<String> {
    pieces(declarations, "pub fn ", ";")
        .into_iter()
        .map(|function| {
            let (name, rest) = function.split_once('(').unwrap();
            let (arguments, result) = rest.rsplit_once(')').unwrap();
            let result = c_type(result.trim().trim_start_matches("->"));
            format!("{result} {name}({});", c_types(arguments))
        })
        .collect()
}

fn constants(declarations: &str) -> Vec<(String, String)> {
    pieces(declarations, "pub const ", ";")
        .into_iter()
        .map(|constant| {
            let (name, rest) = constant.split_once(':').unwrap();
            (name.to_string(), rest.split_once('=').unwrap().1.trim().to_string())
        })
        .collect()
}

/// Names and types of the fields of a structure.
fn fields(declarations: &str, structure: &str) -> Vec<(String, String)> {
    let body = pieces(declarations, &format!("pub struct {structure} {{"), "}")[0];
    pieces(body, "pub ", ",")
        .into_iter()
        .map(|field| {
            let (name, of) = field.split_once(':').unwrap();
            (name.to_string(), c_type(of))
        })
        .collect()
}

macro_rules! layout {
    ($structure:ident, $($field:ident),*) => {{
        let zero: farcall_sys::$structure = unsafe { std::mem::zeroed() };
        let start = &zero as *const _ as usize;
        let offsets = vec![$((stringify!($field), &zero.$field as *const _ as usize - start)),*];
        (stringify!($structure), size_of::<farcall_sys::$structure>(), offsets)
    }};
}

fn program(declarations: &str) -> String {
    let declarations = without_comments(declarations);
    let mut program = String::from("#include <farcall/farcall.h>\n");
    for prototype in prototypes(&declarations) {
        writeln!(program, "{prototype}").unwrap();
    }
    for (name, value) in constants(&declarations) {
        writeln!(program, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    for kind in pieces(&declarations, "pub type ", ";") {
        let (name, function) = kind.split_once(" = ").unwrap();
        // As if it were written in one line.
        let function = function.split_whitespace().collect::<Vec<_>>().join(" ");
        let function =
            function.replace("< unsafe", "<unsafe").replace(", >", ">").replace("fn( ", "fn(");
        writeln!(
            program,
            "_Static_assert(_Generic(({name})0, {}: 1, default: 0), \"{name}\");",
            c_type(&function)
        )
        .unwrap();
    }
    for (structure, size, offsets) in [
        layout!(farcall_pipe_options, size, capacity, wait, kind),
        layout!(farcall_publisher_options, size, capacity, policy, wait, readers, reserved),
        layout!(farcall_subscriber_options, size, start, wait, most),
        layout!(farcall_caller, size, pid, uid, gid),
        layout!(farcall_server_options, size, longest, mode, release),
        layout!(farcall_call_options, size, timeout, give_up, context, ask_after),
        layout!(farcall_answer, size, bytes, room, length, memory, memory_size),
    ] {
        writeln!(program, "_Static_assert(sizeof(struct {structure}) == {size}, \"\");").unwrap();
        let fields = fields(&declarations, structure);
        assert_eq!(fields.len(), offsets.len(), "all fields of {structure}");
        for ((name, of), (same, offset)) in fields.into_iter().zip(offsets) {
            assert_eq!(name, same);
            writeln!(
                program,
                "_Static_assert(__builtin_offsetof(struct {structure}, {name}) == {offset} &&
                 _Generic(((struct {structure}*)0)->{name}, {of}: 1, default: 0), \"{name}\");"
            )
            .unwrap();
        }
    }
    program
}

/// Whether a compiler takes it, and what it says.
fn compiles(program: &str, name: &str) -> (bool, String) {
    let source = env::temp_dir().join(format!("farcall-{name}-{}.c", std::process::id()));
    fs::write(&source, program).unwrap();
    let output = Command::new(env::var("CC").unwrap_or_else(|_| "cc".to_string()))
        .args(["-std=c11", "-fsyntax-only", "-I"])
        .arg(header().parent().unwrap().parent().unwrap())
        .arg(&source)
        .output()
        .unwrap();
    fs::remove_file(source).unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_is_declared_is_what_the_header_says() {
    let (good, said) = compiles(&program(DECLARATIONS), "same");
    assert!(good, "{said}");
}

#[cfg(feature = "messages")]
#[test]
fn messages_are_what_their_header_says() {
    use farcall_sys::message::{farcall_info, farcall_message, iovec};
    let declarations = without_comments(MESSAGES);
    let mut program = String::from("#include <farcall/message.h>\n");
    for prototype in prototypes(&declarations) {
        writeln!(program, "{prototype}").unwrap();
    }
    for (name, value) in constants(&declarations) {
        writeln!(program, "_Static_assert({name} == {value}, \"{name}\");").unwrap();
    }
    macro_rules! same {
        ($($structure:ident: $($field:ident)*;)*) => {$(
            // SAFETY: numbers and pointers may all be 0.
            let zero: $structure = unsafe { std::mem::zeroed() };
            let start = std::ptr::addr_of!(zero) as usize;
            let name = stringify!($structure);
            writeln!(program, "_Static_assert(sizeof(struct {name}) == {}, \"\");",
                size_of::<$structure>()).unwrap();
            let offsets = [$((stringify!($field), std::ptr::addr_of!(zero.$field) as usize - start)),*];
            let of_crate = fields(&declarations, name);
            assert_eq!(of_crate.len(), offsets.len(), "all fields of {name}");
            for ((field, of), (same, offset)) in of_crate.into_iter().zip(offsets) {
                assert_eq!(field, same);
                writeln!(program, "_Static_assert(__builtin_offsetof(struct {name}, {field}) == {offset} &&
                    _Generic(((struct {name}*)0)->{field}, {of}: 1, default: 0), \"{field}\");").unwrap();
            }
        )*};
    }
    same! {
        farcall_info: connection pid tid uid gid priority code value length received room
            descriptor_count descriptors;
        farcall_message: send send_count reply_count reply descriptors descriptor_count flags replied;
        iovec: iov_base iov_len;
    }
    let (good, said) = compiles(&program, "messages");
    assert!(good, "{said}");
    let other = program.replacen("FARCALL_NAME_MAX == 48", "FARCALL_NAME_MAX == 49", 1);
    assert!(other != program && !compiles(&other, "other-messages").0);
    let other = program.replacen("int64_t farcall_receive(int", "int farcall_receive(int", 1);
    assert!(other != program && !compiles(&other, "other-messages").0);
    let text = fs::read_to_string(header().with_file_name("message.h")).unwrap();
    for function in
        names(&text, "farcall_").iter().filter(|name| text.contains(&format!(" {name}(")))
    {
        assert!(declarations.contains(&format!("pub fn {function}(")), "{function}");
    }
}

#[test]
fn a_difference_is_told() {
    for (number, (from, to)) in [
        ("timeout: i64,\n    ) -> i64", "timeout: c_int,\n    ) -> i64"),
        ("end: *const farcall_pipe) -> c_int", "end: *mut farcall_pipe) -> c_int"),
        ("-> usize", "-> u64"), // the same size, and another type on some machines
        (
            "readers(publisher: *const farcall_publisher) -> c_uint",
            "readers(publisher: *const farcall_publisher) -> c_int",
        ),
        ("FARCALL_OLDEST: c_int = 1", "FARCALL_OLDEST: c_int = 2"),
        ("pub readers: c_uint", "pub readers: c_int"),
        ("fn(context: *mut c_void)>", "fn(context: *const c_void)>"),
        ("        size: usize,\n        reply", "        size: i64,\n        reply"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(DECLARATIONS.contains(from), "{from}");
        let other = DECLARATIONS.replacen(from, to, 1);
        if to.ends_with("u64") && cfg!(target_pointer_width = "64") {
            continue; // there they are one type
        }
        let (good, said) = compiles(&program(&other), &format!("other-{number}"));
        assert!(!good, "{to} was taken");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
    }
}

/// Words that begin with `prefix`.
fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(prefix))
        .map(str::to_string)
        .collect()
}

#[test]
fn all_that_the_header_has_is_declared() {
    let text = fs::read_to_string(header()).unwrap();
    // What comments speak of is declared as well; families are written with dots.
    let of_header: BTreeSet<String> = names(&text, "farcall_")
        .union(&names(&text, "FARCALL_"))
        .filter(|name| !name.ends_with('_') && *name != "FARCALL_FARCALL_H")
        .cloned()
        .collect();
    let declarations = without_comments(DECLARATIONS);
    let of_crate: BTreeSet<String> = names(&declarations, "farcall_")
        .union(&names(&declarations, "FARCALL_"))
        .cloned()
        .collect();
    assert!(of_header.len() > 40);
    assert_eq!(of_header, of_crate);
}
