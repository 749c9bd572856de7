//! `waitfor SIGNAL` and `waitfor /si SIGNAL`: programs of one container that wait for each other.

use std::time::Duration;

use super::{Streams, api};

const USAGE: &str = "\r\nWAITFOR [/T timeoutinterval] signal\r\nWAITFOR /SI signal\r\n\r\nDescription:\r\n    This tool sends, or waits for, a signal \
                     among the programs of this container.\r\n";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Send(String),
    Wait(String, Option<Duration>),
}

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    if args.iter().any(|arg| arg == "/?") {
        let _ = write!(streams.out, "{USAGE}");
        return 0;
    }
    let outcome = match parse(args) {
        Ok(Wish::Send(signal)) => {
            // Windows sends to all listeners, and does not report whether there are any.
            api::set_event(&event(&signal));
            Ok("SUCCESS: Signal sent.".to_owned())
        }
        Ok(Wish::Wait(signal, time)) => match api::await_event(&event(&signal), time) {
            Ok(true) => Ok("SUCCESS: Signal received.".to_owned()),
            Ok(false) => Err(format!("Timed out waiting for '{signal}'.")),
            Err(183) => Err(format!("Unable to wait for '{signal}': another program waits for it already.")),
            Err(error) => Err(format!("Unable to wait for '{signal}' (error {error}).")),
        },
        Err(words) => Err(words),
    };
    match outcome {
        Ok(words) => {
            let _ = writeln!(streams.out, "\r\n{words}\r");
            0
        }
        Err(words) => {
            let _ = writeln!(streams.err, "ERROR: {words}\r");
            1
        }
    }
}

fn event(signal: &str) -> String {
    format!("Local\\WAITFOR.EXE-{}", signal.to_uppercase())
}

fn parse(args: &[String]) -> Result<Wish, String> {
    let usage = |words: String| format!("{words}\r\nType \"WAITFOR /?\" for usage.");
    let (mut signal, mut time, mut sends) = (None, None, false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.to_ascii_lowercase().replacen('-', "/", 1).as_str() {
            "/si" => sends = true,
            "/t" => {
                let value = args.next().ok_or_else(|| usage(format!("Invalid syntax. Value expected for '{arg}'.")))?;
                let seconds = value.parse::<u32>().ok().filter(|seconds| (1..=99_999).contains(seconds));
                time = Some(seconds.ok_or("Invalid value for timeout specified. Valid range is 1 to 99999 seconds.")?);
            }
            "/s" | "/u" | "/p" => return Err(format!("'{arg}' is not supported here: signals stay within the container.")),
            other if other.starts_with('/') => return Err(usage(format!("Invalid argument/option - '{arg}'."))),
            _ if signal.is_some() => return Err(usage(format!("Invalid argument/option - '{arg}'."))),
            _ => signal = Some(arg.clone()),
        }
    }
    let signal = signal.ok_or_else(|| usage("Invalid syntax. Signal name is not specified.".to_owned()))?;
    let is_name = signal.chars().count() <= 225 && signal.chars().all(|c| c.is_ascii_alphanumeric() || !c.is_ascii());
    if !is_name {
        return Err("Invalid signal name: use up to 225 letters and digits.".to_owned());
    }
    match (sends, time) {
        (true, Some(_)) => Err(usage("Invalid syntax. /T is not allowed with /SI.".to_owned())),
        (true, None) => Ok(Wish::Send(signal)),
        (false, seconds) => Ok(Wish::Wait(signal, seconds.map(|seconds| Duration::from_secs(seconds.into())))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(line: &str) -> Result<Wish, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_windows() {
        assert_eq!(wish("Ready"), Ok(Wish::Wait("Ready".into(), None)));
        assert_eq!(wish("/t 5 Ready"), Ok(Wish::Wait("Ready".into(), Some(Duration::from_secs(5)))));
        assert_eq!(wish("/SI Ready"), Ok(Wish::Send("Ready".into())));
        for wrong in ["", "/t 0 a", "/t", "/x a", "a b", "no-dashes", "/si /t 1 a", "/s web /si a"] {
            assert!(wish(wrong).is_err(), "{wrong}");
        }
        assert_eq!(event("ready"), event("READY"));
    }
}
