//! `shutdown /s|/r|/p|/a [/t SECONDS] [/f]`: asks the machine below the node to stop or to start again. It reaches only HostProcess containers,
//! whose programs are the node's own.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::{Streams, inside};

/// The directory of the machine's switch, below a HostProcess container's root on Linux.
pub const POWER: &str = "power";
/// In that directory: where a request is written, a pipe.
pub const REQUEST: &str = "request";
/// In that directory: there while a request waits for its time.
pub const PENDING: &str = "pending";

/// As Windows has it where `/t` is not given.
const DEFAULT: u64 = 30;
/// Ten years: no request may wait longer.
pub const LONGEST: u64 = 315_360_000;
const USAGE: &str = "Usage: shutdown [/s | /r | /p | /a] [/f] [/t xxx] [/c \"comment\"] [/d [p|u:]xx:yy]\r\n\r\n    \
                     /s         Shutdown the computer.\r\n    \
                     /r         Full shutdown and restart the computer.\r\n    \
                     /p         Turn off the local computer with no time-out or warning.\r\n    \
                     /a         Abort a system shutdown.\r\n    \
                     /f         Force running applications to close.\r\n    \
                     /t xxx     Set the time-out period before shutdown to xxx seconds (0-315360000, default 30).\r\n    \
                     /c, /d     Comment and reason: taken, and not shown anywhere.\r\n\r\n\
                     Options may begin with - too. Others are not supported here.\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Usage,
    Stop(u64),
    Restart(u64),
    Abort,
}

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    run(args, &inside(POWER), streams)
}

fn run(args: &[String], power: &Path, streams: &mut Streams<'_>) -> u8 {
    let Some(wish) = parse(args) else {
        let _ = write!(streams.err, "{USAGE}");
        return 1;
    };
    let (line, is_abort) = match wish {
        Wish::Usage => {
            let _ = write!(streams.out, "{USAGE}");
            return 0;
        }
        Wish::Stop(after) => (format!("stop {after}\n"), false),
        Wish::Restart(after) => (format!("restart {after}\n"), false),
        Wish::Abort => ("abort\n".to_owned(), true),
    };
    match ask(power, &line, is_abort) {
        Ok(()) => 0,
        Err(words) => {
            let _ = write!(streams.err, "{words}\r\n");
            1
        }
    }
}

/// Hands the request over, unless Windows would refuse it.
fn ask(power: &Path, line: &str, is_abort: bool) -> Result<(), &'static str> {
    let path = |name: &str| -> PathBuf { power.join(name) };
    // Wine tells nothing of the pipe in it.
    if !power.is_dir() {
        return Err("Access is denied.(5)");
    }
    match (fs::metadata(path(PENDING)).is_ok(), is_abort) {
        (false, true) => return Err("Unable to abort the system shutdown because no shutdown was in progress.(1116)"),
        (true, false) => return Err("A system shutdown has already been scheduled.(1190)"),
        _ => {}
    }
    // What another program left without its end is no part of this line.
    let line = format!("\n{line}");
    let hand_over = || -> io::Result<()> { File::options().write(true).open(path(REQUEST))?.write_all(line.as_bytes()) };
    hand_over().map_err(|_| "Access is denied.(5)")
}

/// None where the options do not fit.
fn parse(args: &[String]) -> Option<Wish> {
    let (mut action, mut seconds) = (None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_ascii_lowercase().replacen('-', "/", 1).as_str() {
            "/?" => return Some(Wish::Usage),
            option @ ("/s" | "/r" | "/p" | "/a" | "/sg" | "/g") => {
                if action.replace(option.to_owned()).is_some() {
                    return None;
                }
            }
            "/t" => seconds = Some(args.next()?.parse::<u64>().ok().filter(|seconds| *seconds <= LONGEST)?),
            "/f" | "/soft" => {}
            "/c" | "/d" => drop(args.next()?),
            _ => return None,
        }
    }
    let after = seconds.unwrap_or(DEFAULT);
    Some(match (action.as_deref(), seconds) {
        (None, None) => Wish::Usage,
        (Some("/s" | "/sg"), _) => Wish::Stop(after),
        (Some("/r" | "/g"), _) => Wish::Restart(after),
        (Some("/p"), None) => Wish::Stop(0),
        (Some("/a"), None) => Wish::Abort,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_windows() {
        for (line, wish) in [
            ("", Some(Wish::Usage)),
            ("/?", Some(Wish::Usage)),
            ("-r -t 60", Some(Wish::Restart(60))),
            ("/r /t 0 /f", Some(Wish::Restart(0))),
            ("/S", Some(Wish::Stop(30))),
            ("/s /t 5 /c bye /d p:4:1", Some(Wish::Stop(5))),
            ("-p", Some(Wish::Stop(0))),
            ("-a", Some(Wish::Abort)),
            ("/r /s", None),
            ("/t 5", None),
            ("/r /t", None),
            ("/r /t -1", None),
            ("/r /t 315360001", None),
            ("/p /t 5", None),
            ("/a /t 5", None),
            ("/r /m \\\\other", None),
            ("now", None),
        ] {
            assert_eq!(parse(&words(line)), wish, "{line}");
        }
    }

    #[test]
    fn requests_are_handed_over_and_refused_as_by_windows() {
        let dir = tempfile::tempdir().unwrap();
        let power = dir.path().join("power");
        let said = |line: &str| {
            let mut err = Vec::new();
            let code = run(&words(line), &power, &mut Streams { input: &mut io::empty(), out: &mut io::sink(), err: &mut err });
            (code, String::from_utf8(err).unwrap())
        };
        assert_eq!(said("/r"), (1, "Access is denied.(5)\r\n".into()), "a container that is not the node's own");
        fs::create_dir(&power).unwrap();
        assert_eq!(said("/r").0, 1, "nobody takes requests");
        let request = power.join(REQUEST);
        fs::write(&request, "").unwrap();
        assert_eq!(said("/a"), (1, "Unable to abort the system shutdown because no shutdown was in progress.(1116)\r\n".into()));
        assert_eq!(said("-r -t 60"), (0, String::new()));
        assert_eq!(fs::read_to_string(&request).unwrap(), "\nrestart 60\n");
        fs::write(power.join(PENDING), "").unwrap();
        assert_eq!(said("/s"), (1, "A system shutdown has already been scheduled.(1190)\r\n".into()));
        fs::write(&request, "").unwrap();
        assert_eq!(said("/a"), (0, String::new()));
        assert_eq!(fs::read_to_string(&request).unwrap(), "\nabort\n");
        assert_eq!(said("/x").0, 1);
    }
}
