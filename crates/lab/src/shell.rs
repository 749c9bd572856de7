//! Command lines that a user can paste into a shell.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

/// One argument for a POSIX shell. Bytes that a terminal would not carry are written in the `$'…'` form, which bash, zsh and ksh read.
pub fn quote(argument: impl AsRef<OsStr>) -> String {
    let argument = argument.as_ref();
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(b);
    match argument.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|b| is_plain(&b)) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        _ => {
            let mut quoted = String::from("$'");
            for byte in argument.as_bytes() {
                match byte {
                    b'\'' | b'\\' => quoted.extend(['\\', char::from(*byte)]),
                    b' '..=b'~' => quoted.push(char::from(*byte)),
                    _ => drop(write!(quoted, "\\{byte:03o}")),
                }
            }
            quoted + "'"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_only_where_a_shell_needs_it() {
        let cases = [
            ("/tmp/x-1_2.d", "/tmp/x-1_2.d"),
            ("", "''"),
            ("/a b/c", "'/a b/c'"),
            ("it's", r"'it'\''s'"),
            ("$HOME;rm *", "'$HOME;rm *'"),
            ("~/x", "'~/x'"),
            ("/bücher", "'/bücher'"),
            ("a\nb", r"$'a\012b'"),
        ];
        for (argument, quoted) in cases {
            assert_eq!(quote(argument), quoted);
        }
        assert_eq!(quote(OsStr::from_bytes(b"/\xff")), r"$'/\377'");
    }
}
