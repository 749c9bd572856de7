//! What services log to Windows' event log: the channel Application, by provider, as upstream asks Get-WinEvent.

use std::io;
use std::time::Instant;

use host::{EventLog, LoggedEvent};
use jiff::Timestamp;

use super::query::Query;

const CHANNEL: &str = "Application";
/// Events that are shown where the query names no number: the newest.
const MAX_EVENTS: usize = 100_000;

/// Selects the events of providers. Their names are letters, digits and `-_.:@` alone ([`Query::validate`]); what else there may be is left
/// out, so that no name can become a part of the expression.
fn xpath(providers: &[String], query: &Query) -> String {
    let safe = |name: &String| name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.:@".contains(*c)).collect::<String>();
    let names: Vec<String> = providers.iter().map(|name| format!("@Name='{}'", safe(name))).collect();
    let mut conditions = vec![format!("Provider[{}]", names.join(" or "))];
    let time = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    let since = query.since.map(|at| format!("@SystemTime>='{}'", time(at)));
    let until = query.until.map(|at| format!("@SystemTime<='{}'", time(at)));
    let times: Vec<String> = since.into_iter().chain(until).collect();
    if !times.is_empty() {
        conditions.push(format!("TimeCreated[{}]", times.join(" and ")));
    }
    format!("*[System[{}]]", conditions.join(" and "))
}

fn level(level: u8) -> &'static str {
    match level {
        1 => "Critical",
        2 => "Error",
        3 => "Warning",
        5 => "Verbose",
        _ => "Information",
    }
}

/// `2026-11-27T01:02:03.000Z PROVIDER[ID] LEVEL: MESSAGE`; further lines of the message are indented.
fn line(event: &LoggedEvent) -> String {
    let at = Timestamp::try_from(event.at).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
    let plain: String = event.message.chars().filter(|c| !c.is_control() || *c == '\n').collect();
    let message = plain.trim_end().replace('\n', "\n    ");
    format!("{at} {}[{}] {}: {message}", event.provider, event.id, level(event.level))
}

/// Hands the lines of providers on, the oldest first, until `send` says that it is enough.
pub(super) fn copy(log: &dyn EventLog, providers: &[String], query: &Query, send: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
    let most = query.tail.and_then(|tail| usize::try_from(tail).ok()).unwrap_or(MAX_EVENTS).min(MAX_EVENTS);
    let pattern = query.regex().ok().flatten();
    let until = Instant::now() + super::LIMIT;
    let mut seen = 0;
    let mut lines = Vec::new();
    if most > 0 {
        // As upstream, the number is that of events, of which those that match are shown.
        log.read(CHANNEL, &xpath(providers, query), &mut |event| {
            seen += 1;
            if pattern.as_ref().is_none_or(|pattern| pattern.is_match(&event.message)) {
                lines.push(line(&event));
            }
            seen < most && Instant::now() < until
        })?;
    }
    for line in lines.iter().rev() {
        if !send(line) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A log in memory, the newest event first. It checks what it is asked.
    struct Log {
        events: Vec<LoggedEvent>,
        asked: RefCell<Vec<(String, String)>>,
        handed: RefCell<usize>,
    }

    impl EventLog for Log {
        fn has_provider(&self, name: &str) -> bool {
            self.events.iter().any(|event| event.provider == name)
        }

        fn read(&self, channel: &str, xpath: &str, each: &mut dyn FnMut(LoggedEvent) -> bool) -> io::Result<()> {
            self.asked.borrow_mut().push((channel.to_owned(), xpath.to_owned()));
            for event in &self.events {
                *self.handed.borrow_mut() += 1;
                if !each(event.clone()) {
                    break;
                }
            }
            Ok(())
        }
    }

    fn log(messages: &[&str]) -> Log {
        let event = |(number, message): (usize, &&str)| LoggedEvent {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + number as u64),
            provider: "docker".into(),
            id: 7,
            level: number as u8,
            message: (*message).to_owned(),
        };
        let mut events: Vec<_> = messages.iter().enumerate().map(event).collect();
        events.reverse();
        Log { events, asked: RefCell::default(), handed: RefCell::default() }
    }

    fn lines(log: &Log, text: &str) -> Vec<String> {
        let query = Query::parse(&format!("query=docker&{text}")).unwrap().unwrap();
        let mut lines = Vec::new();
        copy(log, &["docker".into()], &query, &mut |line| {
            lines.push(line.to_owned());
            true
        })
        .unwrap();
        lines
    }

    #[test]
    fn events_are_shown_oldest_first_and_the_newest_are_chosen() {
        let all = log(&["zero", "one\r\nmore\r\n", "two \u{1b}[31m", "three"]);
        assert_eq!(
            lines(&all, ""),
            [
                "2023-11-14T22:13:20.000Z docker[7] Information: zero",
                "2023-11-14T22:13:21.000Z docker[7] Critical: one\n    more",
                "2023-11-14T22:13:22.000Z docker[7] Error: two [31m",
                "2023-11-14T22:13:23.000Z docker[7] Warning: three",
            ]
        );
        let said = |text: &str| lines(&all, text).iter().map(|line| line.split_once(": ").unwrap().1.to_owned()).collect::<Vec<_>>();
        assert_eq!(said("tailLines=1"), ["three"]);
        assert_eq!(said("tailLines=2&pattern=THREE"), ["three"]);
        assert_eq!(said("tailLines=2&pattern=zero"), [""; 0], "events are counted before they are matched");
        *all.handed.borrow_mut() = 0;
        assert_eq!((said("tailLines=0"), *all.handed.borrow()), (vec![], 0), "nothing is read");
    }

    #[test]
    fn questions_to_the_log_hold_names_and_times_and_nothing_else() {
        let all = log(&[]);
        lines(&all, "sinceTime=2026-01-02T03:04:05Z&untilTime=2026-02-02T03:04:05%2B01:00");
        let times = "TimeCreated[@SystemTime>='2026-01-02T03:04:05.000Z' and @SystemTime<='2026-02-02T02:04:05.000Z']";
        let wanted = format!("*[System[Provider[@Name='docker'] and {times}]]");
        assert_eq!(*all.asked.borrow(), [("Application".to_owned(), wanted)]);
        // CVE-2024-9042: what upstream passed to PowerShell.
        let names = ["a".to_owned(), "x' or @Name!='\"; Start-Process calc".to_owned()];
        assert_eq!(xpath(&names, &Query::default()), "*[System[Provider[@Name='a' or @Name='xor@NameStart-Processcalc']]]");
    }
}
