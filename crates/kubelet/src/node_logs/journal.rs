//! systemd's journal: what units logged, read from its files (systemd.io/JOURNAL_FILE_FORMAT) as `journalctl --unit` would show it.

mod file;
mod line;

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use host::{Beneath, FileKind, HostRoot};

use super::query::Query;
use file::{Entry, Journal, JournalError, Source};

/// Where journals are: kept ones, and those of this boot alone.
const DIRECTORIES: [&str; 2] = ["/var/log/journal", "/run/log/journal"];
/// Journals that are read.
const MAX_FILES: usize = 512;
/// Entries of a query, over all journals.
const MAX_ENTRIES: usize = 2_000_000;
/// Fields of an entry by which it belongs to a unit, and another that has to be there too.
const FIELDS: [(&str, Option<&str>); 4] =
    [("_SYSTEMD_UNIT", None), ("UNIT", Some("_PID=1")), ("OBJECT_SYSTEMD_UNIT", Some("_UID=0")), ("COREDUMP_UNIT", Some("_UID=0"))];

/// The journals of the machine, the newest last. Links are passed over.
fn journals(root: &HostRoot) -> Vec<Journal<std::fs::File>> {
    let machine = root.parse("/etc/machine-id").ok().and_then(|path| root.read(&path, 64).ok().flatten());
    let machine = machine.map(|id| String::from_utf8_lossy(&id).trim().to_owned()).filter(|id| !id.is_empty());
    let mut found = Vec::new();
    for directory in DIRECTORIES {
        let Ok(directory) = root.parse(directory) else { continue };
        let Ok(Beneath::Directory(of_machines)) = root.open_beneath(&directory, &[]) else { continue };
        let ours = |name: &String| machine.as_ref().is_none_or(|machine| machine == name);
        for (of_machine, _) in of_machines.into_iter().filter(|(name, kind)| *kind == FileKind::Directory && ours(name)) {
            let Ok(Beneath::Directory(files)) = root.open_beneath(&directory, std::slice::from_ref(&of_machine)) else { continue };
            let names = files.into_iter().map(|(name, _)| name).filter(|name| name.ends_with(".journal") || name.ends_with(".journal~"));
            for name in names.take(MAX_FILES) {
                let opened = root.open_beneath(&directory, &[of_machine.clone(), name.clone()]);
                let Ok(Beneath::File(file)) = opened else { continue };
                match Journal::open(file) {
                    Ok(journal) => found.push(journal),
                    Err(error) => tracing::debug!(name, %error, "a journal is not read"),
                }
            }
        }
    }
    found.sort_by_key(Journal::newest);
    let excess = found.len().saturating_sub(MAX_FILES);
    found.drain(..excess);
    found
}

/// Whether a unit has logged to the journal. As upstream, a part of a unit's name is enough here.
pub(super) fn has(root: &HostRoot, service: &str) -> bool {
    let wanted = format!("{service}.service");
    journals(root).iter().any(|journal| journal.values("_SYSTEMD_UNIT").is_ok_and(|units| units.iter().any(|(unit, _)| unit.contains(&wanted))))
}

/// Hands the lines of units on until `send` says that it is enough.
pub(super) fn copy(root: &HostRoot, services: &[String], query: &Query, send: &mut dyn FnMut(&str) -> bool) -> io::Result<()> {
    let journals = journals(root);
    copy_from(&journals, services, query, send).map_err(io::Error::other)
}

fn copy_from<S: Source>(journals: &[Journal<S>], services: &[String], query: &Query, send: &mut dyn FnMut(&str) -> bool) -> Result<(), JournalError> {
    let units: BTreeSet<String> = services.iter().map(|name| if name.contains('.') { name.clone() } else { format!("{name}.service") }).collect();
    let boot = match query.boot {
        None => None,
        Some(offset) => match boot(journals, offset)? {
            Some(boot) => Some(boot),
            None => {
                send(&format!("Data from the specified boot ({offset:+}) is not available: No such boot ID in journal"));
                return Ok(());
            }
        },
    };
    let micros = |time: jiff::Timestamp| u64::try_from(time.as_microsecond()).unwrap_or(0);
    // Upstream gives journalctl whole seconds.
    let (since, until) = (query.since.map(micros), query.until.map(micros));
    let wanted = |entry: &Entry| {
        since.is_none_or(|since| entry.realtime >= since)
            && until.is_none_or(|until| entry.realtime <= until)
            && boot.is_none_or(|boot| entry.boot == boot)
    };
    let deadline = Instant::now() + super::LIMIT;
    let mut entries: Vec<(usize, Entry)> = Vec::new();
    for (number, journal) in journals.iter().enumerate().rev() {
        for entry in of_units(journal, &units, deadline)?.into_iter().filter(&wanted) {
            if entries.len() >= MAX_ENTRIES {
                break;
            }
            entries.push((number, entry));
        }
    }
    entries.sort_by_key(|(number, entry)| (entry.realtime, *number, entry.offset));
    let pattern = query.regex().ok().flatten();
    let line = |(number, entry): &(usize, Entry)| {
        let fields = journals[*number].fields(entry.offset).ok()?;
        if let Some(pattern) = &pattern
            && !pattern.is_match(&String::from_utf8_lossy(fields.get("MESSAGE")?))
        {
            return None;
        }
        Some((entry.boot, line::short_precise(entry.realtime, &fields)))
    };
    let lines: Box<dyn Iterator<Item = _>> = match query.tail.and_then(|tail| usize::try_from(tail).ok()) {
        Some(tail) => {
            let mut last: Vec<_> = entries.iter().rev().take_while(|_| Instant::now() < deadline).filter_map(line).take(tail).collect();
            last.reverse();
            Box::new(last.into_iter())
        }
        None => Box::new(entries.iter().take_while(|_| Instant::now() < deadline).filter_map(line)),
    };
    let mut before = None;
    for (boot, line) in lines {
        if before.is_some_and(|before| before != boot) && !send(&format!("-- Boot {boot:032x} --")) {
            return Ok(());
        }
        before = Some(boot);
        if !send(&line) {
            return Ok(());
        }
    }
    if before.is_none() {
        send("-- No entries --");
    }
    Ok(())
}

/// The entries of units in one journal, as far as they are found before the deadline.
fn of_units<S: Source>(journal: &Journal<S>, units: &BTreeSet<String>, deadline: Instant) -> Result<Vec<Entry>, JournalError> {
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    for (field, with) in FIELDS {
        for (_, data) in journal.values(field)?.into_iter().filter(|(unit, _)| units.contains(unit)) {
            for offset in journal.entries_of(data, MAX_ENTRIES)? {
                if Instant::now() >= deadline {
                    return Ok(all);
                }
                // An entry of a journal that was cut off is passed over.
                let Ok(entry) = journal.entry(offset) else { continue };
                let belongs = || with.is_none_or(|with| journal.has_field(offset, with).unwrap_or(false));
                if seen.insert(offset) && belongs() {
                    all.push(entry);
                }
            }
        }
    }
    Ok(all)
}

/// The boot that is `offset` before the last one.
fn boot<S: Source>(journals: &[Journal<S>], offset: i64) -> Result<Option<u128>, JournalError> {
    let mut first: std::collections::BTreeMap<u128, u64> = std::collections::BTreeMap::new();
    for journal in journals {
        for (id, data) in journal.values("_BOOT_ID")? {
            let (Ok(id), Some(offset)) = (u128::from_str_radix(&id, 16), journal.entries_of(data, 1)?.first().copied()) else { continue };
            let Ok(entry) = journal.entry(offset) else { continue };
            let at = first.entry(id).or_insert(entry.realtime);
            *at = (*at).min(entry.realtime);
        }
    }
    let mut boots: Vec<(u64, u128)> = first.into_iter().map(|(id, at)| (at, id)).collect();
    boots.sort_unstable();
    let place = i64::try_from(boots.len()).unwrap_or(i64::MAX).saturating_sub(1).saturating_add(offset);
    Ok(usize::try_from(place).ok().and_then(|place| boots.get(place)).map(|(_, id)| *id))
}

/// Reads a journal that anything may have written, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(journal) = Journal::open(bytes.to_vec()) else { return };
    let services: Vec<String> = journal.values("_SYSTEMD_UNIT").unwrap_or_default().into_iter().map(|(unit, _)| unit).take(4).collect();
    let query = Query { tail: Some(100), boot: Some(0), ..Query::default() };
    let mut lines = 0;
    let _ = copy_from(&[journal], &services, &query, &mut |_| {
        lines += 1;
        lines < 200
    });
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Written by systemd-journald 252, with compact objects, keyed hashes and zstd. (`_SYSTEMD_UNIT` was `XSYSTEMD_UNIT` there: journald
    /// takes the real name from nobody.)
    fn web() -> Vec<u8> {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&include_bytes!("journal/web.journal.gz")[..]).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn lines(bytes: Vec<u8>, service: &str, query: &Query) -> Vec<String> {
        let mut lines = Vec::new();
        let journals = [Journal::open(bytes).unwrap()];
        copy_from(&journals, &[service.to_owned()], query, &mut |line| {
            lines.push(line.to_owned());
            true
        })
        .unwrap();
        lines
    }

    /// The text of a line after the process that it is of.
    fn said(lines: &[String]) -> Vec<&str> {
        lines.iter().map(|line| line.split_once("]: ").map_or(line.as_str(), |(_, said)| said)).collect()
    }

    #[test]
    fn a_unit_is_shown_as_journalctl_shows_it() {
        let all = lines(web(), "web", &Query::default());
        // What journalctl 252 prints of these entries.
        assert_eq!(all[0], "Nov 27 01:19:48.892421 node1 web[15719]: web says 0");
        assert_eq!(all[12], format!("Nov 27 01:19:49.013770 node1 big[15719]: {}end", "long ".repeat(300)));
        assert_eq!(all[13], format!("Nov 27 01:19:49.013796 node1 web[15719]: first\n{0}second\n{0}        third", " ".repeat(41)));
        assert_eq!(said(&all[14..]), ["esc ", "about web"], "a manager's word about a unit counts when it is root's, of a unit by pid 1 only");
        assert_eq!(said(&lines(web(), "other.service", &Query::default())), ["of another"]);
        assert_eq!(lines(web(), "none", &Query::default()), ["-- No entries --"]);
    }

    #[test]
    fn options_choose_entries() {
        let query = |text: &str| Query::parse(&format!("query=web&{text}")).unwrap().unwrap();
        let of = |text: &str| lines(web(), "web", &query(text));
        assert_eq!(said(&of("tailLines=2")), ["esc ", "about web"]);
        assert_eq!(said(&of("tailLines=2&pattern=SAYS+1")), ["web says 10", "web says 11"]);
        assert_eq!(said(&of("pattern=%5Eweb+says+%5B12%5D$")), ["web says 1", "web says 2"]);
        assert_eq!(of("tailLines=0"), ["-- No entries --"]);
        assert_eq!(said(&of("sinceTime=2026-11-27T01:19:48.99Z&untilTime=2026-11-27T01:19:49.01Z")), ["web says 10", "web says 11"]);
        assert_eq!(of("boot=0").len(), 16);
        assert_eq!(of("boot=-1"), ["Data from the specified boot (-1) is not available: No such boot ID in journal"]);
    }

    #[test]
    fn a_reader_that_has_enough_ends_it() {
        let mut count = 0;
        let journals = [Journal::open(web()).unwrap()];
        copy_from(&journals, &["web".into()], &Query::default(), &mut |_| {
            count += 1;
            count < 3
        })
        .unwrap();
        assert_eq!(count, 3);
    }

    #[test]
    fn a_chain_that_leads_back_to_itself_ends_with_an_error() {
        let mut bytes = web();
        let (_, data) = Journal::open(bytes.clone()).unwrap().values("_SYSTEMD_UNIT").unwrap()[0].clone();
        let next = usize::try_from(data).unwrap() + 32;
        bytes[next..next + 8].copy_from_slice(&data.to_le_bytes());
        let error = Journal::open(bytes).unwrap().values("_SYSTEMD_UNIT").unwrap_err();
        assert_eq!(error.to_string(), format!("an object at {data} is damaged"));
    }

    #[test]
    fn damaged_journals_end_with_an_error_and_no_loop() {
        let whole = web();
        for length in [0, 7, 207, 208, 4096, whole.len() / 2, whole.len() - 9] {
            check(&whole[..length]);
        }
        // Each chain led to its own beginning.
        for step in (264..whole.len()).step_by(40_009) {
            let mut bytes = whole.clone();
            let at = step & !7;
            bytes[at..at + 8].copy_from_slice(&(at as u64).to_le_bytes());
            check(&bytes);
        }
    }

    #[test]
    fn journals_of_this_machine_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::linux(dir.path()).unwrap();
        let log = dir.path().join("var/log/journal");
        std::fs::create_dir_all(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/machine-id"), "abc\n").unwrap();
        for machine in ["abc", "other"] {
            std::fs::create_dir_all(log.join(machine)).unwrap();
        }
        assert!(!has(&root, "web"));
        std::fs::write(log.join("other/system.journal"), web()).unwrap();
        std::os::unix::fs::symlink("../other/system.journal", log.join("abc/link.journal")).unwrap();
        assert!(!has(&root, "web"), "of another machine, and by a link");
        std::fs::write(log.join("abc/system.journal"), web()).unwrap();
        assert!(has(&root, "web") && !has(&root, "none"));
        let mut count = 0;
        copy(&root, &["web".into()], &Query::default(), &mut |_| {
            count += 1;
            true
        })
        .unwrap();
        assert_eq!(count, 16);
    }
}
