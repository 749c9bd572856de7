//! A file that is set aside when it has grown, as upstream's lumberjack does: `audit.log` becomes `audit-2026-01-02T03-04-05.678.log`.

use super::{LogConfig, Write};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const MEBIBYTE: u64 = 1 << 20;
const DAY: i64 = 86_400;
const STAMP: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// An open file with its bounds.
pub(super) struct Rotated {
    config: LogConfig,
    /// None: the standard output.
    file: Option<File>,
    size: u64,
}

impl Rotated {
    pub(super) fn open(config: &LogConfig) -> io::Result<Self> {
        if config.path == Path::new("-") {
            return Ok(Self { config: config.clone(), file: None, size: 0 });
        }
        if let Some(dir) = config.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir)?;
        }
        let file = append(&config.path)?;
        let size = file.metadata()?.len();
        Ok(Self { config: config.clone(), file: Some(file), size })
    }

    fn limit(&self) -> u64 {
        match self.config.max_size {
            0 => u64::MAX,
            mebibytes => mebibytes.saturating_mul(MEBIBYTE),
        }
    }

    /// Sets the file aside, begins another one, and removes old ones.
    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let path = &self.config.path;
        if let Some(aside) = name_aside(path, now) {
            std::fs::rename(path, aside)?;
        }
        self.file = Some(append(path)?);
        self.size = 0;
        self.prune(now)
    }

    fn prune(&self, now: Timestamp) -> io::Result<()> {
        let dir = self.config.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let names = std::fs::read_dir(dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in obsolete(&self.config, names.collect(), now) {
            std::fs::remove_file(dir.join(name))?;
        }
        Ok(())
    }
}

impl Write for Rotated {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.file.is_some() && self.size > 0 && self.size.saturating_add(length) > self.limit() {
            self.rotate(Timestamp::now())?;
        }
        match &mut self.file {
            Some(file) => file.write_all(line)?,
            None => io::stdout().lock().write_all(line)?,
        }
        self.size = self.size.saturating_add(length);
        Ok(())
    }
}

/// Only the owner may read it: it holds what the policy asks for, perhaps Secrets.
fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// The file's name without and with its extension's dot.
fn parts(path: &Path) -> Option<(String, String)> {
    let stem = path.file_stem()?.to_str()?.to_owned();
    let extension = path.extension().and_then(|extension| extension.to_str()).map(|extension| format!(".{extension}"));
    Some((stem, extension.unwrap_or_default()))
}

fn name_aside(path: &Path, now: Timestamp) -> Option<PathBuf> {
    let (stem, extension) = parts(path)?;
    Some(path.with_file_name(format!("{stem}-{}{extension}", now.strftime(STAMP))))
}

/// The files among `names` that were set aside and are too many or too old.
fn obsolete(config: &LogConfig, names: Vec<String>, now: Timestamp) -> Vec<String> {
    let Some((stem, extension)) = parts(&config.path) else { return Vec::new() };
    let time = |name: &str| {
        let stamp = name.strip_prefix(&stem)?.strip_prefix('-')?.strip_suffix(&extension)?;
        DateTime::strptime(STAMP, stamp).ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
    };
    let mut aside: Vec<(Timestamp, String)> = names.into_iter().filter_map(|name| Some((time(&name)?, name))).collect();
    aside.sort_by(|one, other| other.cmp(one));
    let oldest = i64::try_from(config.max_age).ok().filter(|days| *days > 0).map(|days| now.as_second().saturating_sub(days.saturating_mul(DAY)));
    let too_many = |index: usize| config.max_backups > 0 && index >= config.max_backups;
    let too_old = |at: Timestamp| oldest.is_some_and(|oldest| at.as_second() < oldest);
    aside.into_iter().enumerate().filter(|(index, (at, _))| too_many(*index) || too_old(*at)).map(|(_, (_, name))| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn names_tell_when_a_file_was_set_aside() {
        let name = name_aside(Path::new("/var/log/audit.log"), at("2026-01-02T03:04:05.678Z")).unwrap();
        assert_eq!(name, Path::new("/var/log/audit-2026-01-02T03-04-05.678.log"));
        assert_eq!(name_aside(Path::new("audit"), at("2026-01-02T03:04:05Z")).unwrap(), Path::new("audit-2026-01-02T03-04-05.000"));
    }

    #[test]
    fn old_files_and_too_many_files_go() {
        let names = || -> Vec<String> {
            [
                "audit.log",
                "audit-2026-01-01T00-00-00.000.log",
                "audit-2026-01-05T00-00-00.000.log",
                "audit-2026-01-04T00-00-00.000.log",
                "audit-x.log",
                "other.log",
            ]
            .map(str::to_owned)
            .to_vec()
        };
        let config = |max_age, max_backups| LogConfig { path: "audit.log".into(), max_age, max_backups, ..LogConfig::default() };
        let now = at("2026-01-06T00:00:00Z");
        assert!(obsolete(&config(0, 0), names(), now).is_empty());
        assert_eq!(obsolete(&config(3, 0), names(), now), ["audit-2026-01-01T00-00-00.000.log"]);
        assert_eq!(obsolete(&config(0, 1), names(), now), ["audit-2026-01-04T00-00-00.000.log", "audit-2026-01-01T00-00-00.000.log"]);
    }

    #[test]
    fn a_file_that_would_grow_too_large_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep").join("audit.log");
        let config = LogConfig { path: path.clone(), max_size: 1, max_backups: 1, ..LogConfig::default() };
        let line = vec![b'x'; 600 << 10];
        let files = || {
            let mut sizes: Vec<u64> =
                std::fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
            sizes.sort_unstable();
            sizes
        };
        let mut log = Rotated::open(&config).unwrap();
        log.write(&line).unwrap();
        log.write(b"small").unwrap();
        assert_eq!(files(), [600 * 1024 + 5]);
        log.write(&line).unwrap();
        assert_eq!(files(), [600 * 1024, 600 * 1024 + 5]);
        // Two files within a millisecond would have one name.
        std::thread::sleep(std::time::Duration::from_millis(2));
        log.write(&line).unwrap();
        assert_eq!(files(), [600 * 1024, 600 * 1024], "one backup is kept");
        drop(log);
        let mut endless = Rotated::open(&LogConfig { max_size: 0, ..config.clone() }).unwrap();
        endless.write(&line).unwrap();
        assert_eq!(files(), [600 * 1024, 1200 * 1024], "without a limit the file grows");
        drop(endless);
        std::fs::write(&path, &line).unwrap();
        let mut again = Rotated::open(&config).unwrap();
        again.write(b"more").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 600 * 1024 + 4, "an existing file is continued");
        #[cfg(unix)]
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions()) & 0o777, 0o600);
    }
}
