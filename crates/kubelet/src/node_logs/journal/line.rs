//! An entry as text: journalctl's form `short-precise`, in UTC.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::file::Fields;

/// `Nov 27 01:02:03.000004 HOST IDENTIFIER[PID]: MESSAGE`; further lines of the message are indented.
pub(super) fn short_precise(realtime: u64, fields: &Fields) -> String {
    let text = |name: &str| fields.get(name).map(|value| String::from_utf8_lossy(value).into_owned());
    let at = text("_SOURCE_REALTIME_TIMESTAMP").and_then(|at| at.parse().ok()).unwrap_or(realtime);
    let at = i64::try_from(at).ok().and_then(|at| Timestamp::from_microsecond(at).ok()).unwrap_or_default();
    let mut line = at.to_zoned(TimeZone::UTC).strftime("%b %d %H:%M:%S.%6f").to_string();
    if let Some(host) = text("_HOSTNAME") {
        line.push(' ');
        line.push_str(&host);
    }
    line.push(' ');
    line.push_str(&text("SYSLOG_IDENTIFIER").or_else(|| text("_COMM")).unwrap_or_else(|| "unknown".to_owned()));
    if let Some(pid) = text("_PID").or_else(|| text("SYSLOG_PID")) {
        line.push_str(&format!("[{pid}]"));
    }
    line.push_str(": ");
    let message = fields.get("MESSAGE").map(Vec::as_slice).unwrap_or_default();
    match std::str::from_utf8(message).map(without_colours) {
        Ok(message) if message.chars().all(|c| !c.is_control() || c == '\n') => {
            let indent = format!("\n{}", " ".repeat(line.chars().count()));
            line.push_str(&message.trim_end_matches('\n').replace('\n', &indent));
        }
        // As journalctl: what is no text does not steer a terminal.
        _ => line.push_str(&format!("[{}B blob data]", message.len())),
    }
    line
}

/// Without sequences that colour a terminal, and with eight blanks for a tabulator.
fn without_colours(message: &str) -> String {
    let mut plain = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("\u{1b}[") {
        let after = &rest[at + 2..];
        let Some(end) = after.find(|c: char| ('@'..='~').contains(&c)) else { break };
        plain.push_str(&rest[..at]);
        rest = &after[end + 1..];
    }
    plain.push_str(rest);
    plain.replace('\t', "        ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fields: &[(&str, &str)]) -> String {
        short_precise(1_700_000_000_000_004, &fields.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect())
    }

    #[test]
    fn entries_read_as_journalctl_prints_them() {
        let all = [("_HOSTNAME", "h"), ("SYSLOG_IDENTIFIER", "sshd"), ("_COMM", "x"), ("_PID", "7"), ("MESSAGE", "a\nb\n")];
        assert_eq!(line(&all), "Nov 14 22:13:20.000004 h sshd[7]: a\n                                  b");
        assert_eq!(line(&[("_COMM", "x"), ("SYSLOG_PID", "8"), ("MESSAGE", "a")]), "Nov 14 22:13:20.000004 x[8]: a");
        assert_eq!(
            line(&[("_SOURCE_REALTIME_TIMESTAMP", "1700000001000000"), ("MESSAGE", "\u{1b}[31mred\u{1b}[0m\t!")]),
            "Nov 14 22:13:21.000000 unknown: red        !"
        );
        assert_eq!(line(&[("MESSAGE", "\u{1b}]0;title\u{7}")]), "Nov 14 22:13:20.000004 unknown: [10B blob data]");
    }
}
