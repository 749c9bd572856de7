//! Kernel switches of the current, or of a given, network namespace.

use std::io;

use crate::ns::NetNs;

/// Sets a switch by its dotted name, as `net.ipv4.ip_forward`. A dot inside a link's name is written
/// as a slash, as sysctl(8) has it.
///
/// # Errors
/// When there is no such switch or it refuses the value.
pub fn set(name: &str, value: &str) -> io::Result<()> {
    let path = path(name);
    std::fs::write(&path, value).map_err(|e| io::Error::new(e.kind(), format!("set {name}={value}: {e}")))
}

/// Sets a switch in `ns`.
///
/// # Errors
/// As [`set`], or when the namespace cannot be entered.
pub fn set_in(ns: &NetNs, name: &str, value: &str) -> io::Result<()> {
    ns.run(|| set(name, value))?
}

/// Reads a switch of the current namespace, without the closing newline.
///
/// # Errors
/// When there is no such switch.
pub fn get(name: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(path(name)).map_err(|e| io::Error::new(e.kind(), format!("read {name}: {e}")))?;
    Ok(text.trim_end().to_owned())
}

fn path(name: &str) -> String {
    let swapped: String = name
        .chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            c => c,
        })
        .collect();
    format!("/proc/sys/{swapped}")
}
