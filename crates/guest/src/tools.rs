//! Command-line tools of Windows that Wine does not have or has in part; and `powershell`, which only says that it is missing. One
//! executable is all of them, by the name it is called.

mod curl;
#[cfg(not(windows))]
mod elsewhere;
mod ipconfig;
mod network;
mod nltest;
mod nslookup;
mod ping;
mod route;
mod shutdown;
mod tar;
mod timeout;
mod waitfor;
mod whoami;

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

#[cfg(windows)]
use crate::windows::api;
#[cfg(not(windows))]
use elsewhere as api;

/// Names under which the template installs the tools: paths below `C:\windows\system32`, without `.exe`. Each is a name of [`run`].
pub const INSTALLED: &[&str] = &[
    "curl",
    "ipconfig",
    "nltest",
    "nslookup",
    "ping",
    "route",
    "shutdown",
    "tar",
    "timeout",
    "waitfor",
    "whoami",
    "WindowsPowerShell/v1.0/powershell",
    "WindowsPowerShell/v1.0/pwsh",
];

pub use nltest::DOMAIN;
pub use shutdown::{LONGEST, PENDING, POWER, REQUEST};

/// A path below the root that Linux gives a container, as programs in Wine name it.
fn inside(path: &str) -> PathBuf {
    PathBuf::from(format!(r"\\?\unix\{}", path.replace('/', "\\")))
}

/// An echo request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Bytes of data.
    pub size: u16,
    pub ttl: u8,
    /// Never to be cut into fragments.
    pub whole: bool,
    pub timeout: Duration,
}

/// What came back for an echo request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub from: Ipv4Addr,
    /// Windows' `IP_STATUS`: 0, or why there is no echo.
    pub status: u32,
    pub millis: u32,
    pub size: u16,
    pub ttl: u8,
}

/// Where a tool writes.
pub struct Streams<'a> {
    /// Standard input.
    pub input: &'a mut dyn std::io::Read,
    /// Standard output.
    pub out: &'a mut dyn Write,
    /// Standard error.
    pub err: &'a mut dyn Write,
}

/// Runs the tool that the process was called as; none if it was not called as one.
pub fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args();
    let name = args.next()?;
    let args: Vec<String> = args.collect();
    // A message is written at once, so that those of several programs do not mix.
    let (mut input, mut out, mut err) =
        (std::io::stdin().lock(), std::io::BufWriter::new(std::io::stdout()), std::io::LineWriter::new(std::io::stderr()));
    let code = run(stem(&name), &args, &mut Streams { input: &mut input, out: &mut out, err: &mut err })?;
    // A closed pipe is no error: its reader needs no more.
    let _ = (out.flush(), err.flush());
    Some(ExitCode::from(code))
}

/// `curl` of `C:\windows\system32\CURL.EXE`.
fn stem(path: &str) -> &str {
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    name.rsplit_once('.').filter(|(_, extension)| extension.eq_ignore_ascii_case("exe")).map_or(name, |(stem, _)| stem)
}

fn run(name: &str, args: &[String], streams: &mut Streams<'_>) -> Option<u8> {
    Some(match name.to_ascii_lowercase().as_str() {
        "curl" => curl::main(args, streams),
        "ipconfig" => ipconfig::main(args, streams),
        "nltest" => nltest::main(args, streams),
        "nslookup" => nslookup::main(args, streams),
        "ping" => ping::main(args, streams),
        "route" => route::main(args, streams),
        "shutdown" => shutdown::main(args, streams),
        "tar" => tar::main(args, streams),
        "timeout" => timeout::main(args, streams),
        "waitfor" => waitfor::main(args, streams),
        "whoami" => whoami::main(args, streams),
        "powershell" | "pwsh" => powershell(streams),
        _ => return None,
    })
}

fn powershell(streams: &mut Streams<'_>) -> u8 {
    let _ = writeln!(
        streams.err,
        "powershell: there is no PowerShell in this container: it is Wine, not Windows. Use cmd /c, or programs of your own; \
         curl, tar, ping and nslookup are there."
    );
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_by_name() {
        assert_eq!(stem(r"C:\windows\system32\CURL.EXE"), "CURL");
        assert_eq!(stem("tar"), "tar");
        assert_eq!(inside("etc/domain"), PathBuf::from(r"\\?\unix\etc\domain"));
        let mut err = Vec::new();
        let mut streams = Streams { input: &mut std::io::empty(), out: &mut std::io::sink(), err: &mut err };
        assert_eq!(run("PowerShell", &[], &mut streams), Some(1));
        assert_eq!(run("mullion-init", &[], &mut streams), None);
        for name in INSTALLED {
            let help = ["--help".to_owned()];
            assert!(run(stem(name), &help, &mut streams).is_some(), "{name} is installed and no tool");
        }
        assert!(String::from_utf8(err).unwrap().contains("no PowerShell"));
    }
}
