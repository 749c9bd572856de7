//! `timeout /t SECONDS [/nobreak]`: waits, or until a key is pressed. Without a console it refuses to, as Windows' does.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use super::{Streams, api};

const USAGE: &str = "\r\nTIMEOUT [/T] timeout [/NOBREAK]\r\n\r\nDescription:\r\n    This utility accepts a timeout parameter to wait for the specified\r\n\
    \x20   time period (in seconds) or until any key is pressed. It also\r\n    accepts a parameter to ignore the key press.\r\n\r\nParameter List:\r\n\
    \x20   /T        timeout       Specifies the number of seconds to wait.\r\n                            Valid range is -1 to 99999 seconds.\r\n\r\n\
    \x20   /NOBREAK                Ignore key presses and wait specified time.\r\n\r\nNOTE: A timeout value of -1 means to wait indefinitely for a key press.\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Options {
    /// None: until a key is pressed.
    seconds: Option<u32>,
    keys: bool,
}

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    if args.iter().any(|arg| arg == "/?") {
        let _ = write!(streams.out, "{USAGE}");
        return 0;
    }
    let options = match parse(args) {
        Ok(options) => options,
        Err(words) => {
            let _ = writeln!(streams.err, "ERROR: {words}\r");
            return 1;
        }
    };
    if !std::io::stdin().is_terminal() {
        let _ = writeln!(streams.err, "ERROR: Input redirection is not supported, exiting the process immediately.\r");
        return 1;
    }
    wait(options, streams);
    0
}

fn parse(args: &[String]) -> Result<Options, String> {
    let (mut seconds, mut keys) = (None, true);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = match arg.to_ascii_lowercase().replacen('-', "/", 1).as_str() {
            "/nobreak" => {
                keys = false;
                continue;
            }
            "/t" => args.next().ok_or_else(|| format!("Invalid syntax. Value expected for '{arg}'.\r\nType \"TIMEOUT /?\" for usage."))?,
            other if other.strip_prefix('/').is_some_and(|rest| rest.parse::<u32>().is_err()) => {
                return Err(format!("Invalid argument/option - '{arg}'.\r\nType \"TIMEOUT /?\" for usage."));
            }
            _ => arg,
        };
        if seconds.is_some() {
            return Err("Invalid syntax. Default option is not allowed more than '1' time(s).\r\nType \"TIMEOUT /?\" for usage.".to_owned());
        }
        let number = value.parse::<i32>().ok().filter(|number| (-1..=99_999).contains(number));
        seconds = Some(number.ok_or("Invalid value for timeout (/T) specified. Valid range is -1 to 99999 seconds.")?);
    }
    let seconds = seconds.ok_or("Invalid syntax. Specify valid timeout value.\r\nType \"TIMEOUT /?\" for usage.")?;
    Ok(Options { seconds: u32::try_from(seconds).ok(), keys })
}

/// The end of the line, and so many steps back over it and the number.
fn rest(keys: bool) -> &'static str {
    if keys { " seconds, press a key to continue ..." } else { " seconds, press CTRL+C to quit ..." }
}

fn wait(options: Options, streams: &mut Streams<'_>) {
    let Some(seconds) = options.seconds else {
        let _ = write!(streams.out, "\r\nPress any key to continue ...").and_then(|()| streams.out.flush());
        while !options.keys || !api::key_within(Duration::MAX) {
            if !options.keys {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        let _ = writeln!(streams.out, "\r");
        return;
    };
    let (began, width) = (Instant::now(), seconds.to_string().len());
    let _ = write!(streams.out, "\r\nWaiting for {seconds:width$}{}", rest(options.keys)).and_then(|()| streams.out.flush());
    for left in (0..seconds).rev() {
        let until = began + Duration::from_secs(u64::from(seconds - left));
        while let Some(time) = until.checked_duration_since(Instant::now()).filter(|time| !time.is_zero()) {
            if options.keys && api::key_within(time) {
                let _ = writeln!(streams.out, "\r");
                return;
            }
            if !options.keys {
                std::thread::sleep(time);
            }
        }
        let back = "\u{8}".repeat(width + rest(options.keys).len());
        if write!(streams.out, "{back}{left:width$}{}", rest(options.keys)).and_then(|()| streams.out.flush()).is_err() {
            return;
        }
    }
    let _ = writeln!(streams.out, "\r");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_windows() {
        assert_eq!(options("/t 5"), Ok(Options { seconds: Some(5), keys: true }));
        assert_eq!(options("5 /NoBreak"), Ok(Options { seconds: Some(5), keys: false }));
        assert_eq!(options("/T -1"), Ok(Options { seconds: None, keys: true }));
        for (line, words) in [
            ("", "Invalid syntax"),
            ("/t", "Value expected for '/t'"),
            ("/t 100000", "Valid range is -1 to 99999 seconds."),
            ("/t x", "Valid range"),
            ("/x", "Invalid argument/option - '/x'"),
            ("1 2", "not allowed more than '1'"),
        ] {
            let message = options(line).unwrap_err();
            assert!(message.contains(words), "{line}: {message}");
        }
    }
}
