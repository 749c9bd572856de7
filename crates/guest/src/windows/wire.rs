//! Protocol between a container's Linux side and `mullion-init.exe`, which starts its Windows program.
//!
//! The order is a file that both can write: one byte that says whether to stop, then texts that each end with NUL. What
//! comes back are lines in a pipe. Neither holds anything that a program of the container must not see.

use std::fmt;

/// The first byte of an order: go on.
pub const RUN: u8 = b'-';
/// The first byte of an order: go on, without an administrator's rights.
pub const RUN_LIMITED: u8 = b'l';
/// The first byte of an order, once the container is to stop.
pub const STOP: u8 = b's';

/// A program to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The whole command line, as the program will read it.
    pub command_line: String,
    /// Directory to start it in.
    pub cwd: String,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Whether the program's token is that of an account that is no administrator.
    pub limited: bool,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It runs.
    Started,
    /// It could not be started: GetLastError.
    Failed(u32),
    /// It has ended: its exit code, whole.
    Exited(u32),
}

/// Not an order.
#[derive(Debug, PartialEq, Eq)]
pub struct NotAnOrder;

impl fmt::Display for NotAnOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not an order of container-sim to start a program")
    }
}

impl std::error::Error for NotAnOrder {}

impl Order {
    /// As it is written to the file. NULs cannot be part of any of these on Windows and are left out.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![if self.limited { RUN_LIMITED } else { RUN }];
        let mut text = |parts: &[&str]| {
            bytes.extend(parts.concat().bytes().filter(|byte| *byte != 0));
            bytes.push(0);
        };
        text(&[&self.command_line]);
        text(&[&self.cwd]);
        for (name, value) in &self.env {
            text(&[name, "=", value]);
        }
        bytes
    }

    /// As it is read from the file.
    ///
    /// # Errors
    /// When it was not written by [`Order::encode`].
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAnOrder> {
        let (first, texts) = bytes.split_first().ok_or(NotAnOrder)?;
        let texts = std::str::from_utf8(texts).ok().and_then(|texts| texts.strip_suffix('\0')).ok_or(NotAnOrder)?;
        let mut texts = texts.split('\0').map(str::to_owned);
        let (Some(command_line), Some(cwd)) = (texts.next(), texts.next()) else { return Err(NotAnOrder) };
        let env = texts.map(|entry| {
            // Names may begin with `=`: `=C:`.
            let at = entry.char_indices().skip(1).find(|(_, c)| *c == '=').map(|(at, _)| at).ok_or(NotAnOrder)?;
            Ok((entry[..at].to_owned(), entry[at + 1..].to_owned()))
        });
        Ok(Self { command_line, cwd, env: env.collect::<Result<_, _>>()?, limited: *first == RUN_LIMITED })
    }
}

impl Report {
    /// One line.
    pub fn encode(self) -> String {
        match self {
            Self::Started => "started\n".to_owned(),
            Self::Failed(error) => format!("failed {error}\n"),
            Self::Exited(code) => format!("exited {code}\n"),
        }
    }

    /// Reads one line, without its end.
    pub fn decode(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None => (line == "started").then_some(Self::Started),
            Some(("failed", error)) => error.parse().ok().map(Self::Failed),
            Some(("exited", code)) => code.parse().ok().map(Self::Exited),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_are_decoded_as_encoded() {
        let order = Order {
            command_line: r#"cmd /S /C "echo ä & exit 300""#.to_owned(),
            cwd: r"C:\app".to_owned(),
            env: vec![("=C:".to_owned(), r"C:\x=y".to_owned()), ("EMPTY".to_owned(), String::new()), ("A".to_owned(), "1=2".to_owned())],
            limited: false,
        };
        assert_eq!(Order::decode(&order.encode()), Ok(order.clone()));
        let limited = Order { limited: true, ..order.clone() };
        assert_eq!(Order::decode(&limited.encode()), Ok(limited));
        let mut stopped = order.encode();
        stopped[0] = STOP;
        assert_eq!(Order::decode(&stopped), Ok(order));
        for report in [Report::Started, Report::Failed(2), Report::Exited(0xC000_0005)] {
            assert_eq!(Report::decode(report.encode().trim_end()), Some(report));
        }
    }

    #[test]
    fn malformed_orders_are_refused() {
        for wrong in [&b""[..], b"-", b"-cmd", b"-cmd\0", b"-cmd\0C:\\\0NOVALUE\0", b"-\xff\0x\0"] {
            assert_eq!(Order::decode(wrong), Err(NotAnOrder), "{wrong:?}");
        }
        for wrong in ["", "exited", "exited -1", "exited 4294967296", "begun"] {
            assert_eq!(Report::decode(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn nul_is_left_out_of_texts() {
        let order = Order { command_line: "a\0EVIL=1".to_owned(), cwd: "C:".to_owned(), ..Order::default() };
        assert_eq!(Order::decode(&order.encode()).unwrap().command_line, "aEVIL=1");
    }
}
