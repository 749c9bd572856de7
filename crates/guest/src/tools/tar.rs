//! `tar -c|-x|-t`, as far as `kubectl cp` and scripts go: `-f FILE|-`, `-v`, `-z`, `-C DIR`, `-m`, and options that
//! change nothing here. Nothing is unpacked outside of the directory.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Builder, EntryType, Header};

use super::Streams;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Create,
    Extract,
    List,
}

#[derive(Debug)]
struct Options {
    mode: Mode,
    file: String,
    dir: PathBuf,
    verbose: bool,
    gzip: bool,
    names: Vec<String>,
}

const HELP: &str = "usage: tar -c|-x|-t [-vzm] [-f FILE|-] [-C DIR] [NAME...]";

fn parse(args: &[String]) -> Result<Options, String> {
    let mut mode = None;
    let mut options = Options { mode: Mode::List, file: "-".to_owned(), dir: PathBuf::from("."), verbose: false, gzip: false, names: Vec::new() };
    let mut rest = args.iter();
    let mut first = true;
    while let Some(arg) = rest.next() {
        let bundled = std::mem::take(&mut first) && !arg.starts_with('-');
        match arg.as_str() {
            "--create" => mode = Some(Mode::Create),
            "--extract" | "--get" => mode = Some(Mode::Extract),
            "--list" => mode = Some(Mode::List),
            "--verbose" => options.verbose = true,
            "--gzip" => options.gzip = true,
            // Owners and permissions of an archive mean nothing on a Windows drive.
            "--no-same-permissions" | "--no-same-owner" | "--touch" | "--" => {}
            "--file" => options.file.clone_from(rest.next().ok_or("--file needs a name")?),
            "--directory" => options.dir = rest.next().ok_or("--directory needs a name")?.into(),
            long if long.starts_with("--") => return Err(format!("Option {long} is not supported")),
            letters if bundled || (letters.starts_with('-') && letters.len() > 1) => {
                let letters = letters.trim_start_matches('-');
                for (at, letter) in letters.char_indices() {
                    // As in `-xf FILE` and `-xfFILE`.
                    let mut value = || -> Result<String, String> {
                        let glued = &letters[at + 1..];
                        if !glued.is_empty() && !bundled {
                            return Ok(glued.to_owned());
                        }
                        rest.next().cloned().ok_or_else(|| format!("Option -{letter} requires an argument"))
                    };
                    match letter {
                        'c' => mode = Some(Mode::Create),
                        'x' => mode = Some(Mode::Extract),
                        't' => mode = Some(Mode::List),
                        'v' => options.verbose = true,
                        'z' => options.gzip = true,
                        'm' | 'p' | 'o' => {}
                        'f' => {
                            options.file = value()?;
                            if !bundled && !letters[at + 1..].is_empty() {
                                break;
                            }
                        }
                        'C' => {
                            options.dir = value()?.into();
                            if !bundled && !letters[at + 1..].is_empty() {
                                break;
                            }
                        }
                        other => return Err(format!("Option -{other} is not supported")),
                    }
                }
            }
            name => options.names.push(name.to_owned()),
        }
    }
    options.mode = mode.ok_or("Must specify one of -c, -t, -x")?;
    Ok(options)
}

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(error) => {
            let _ = writeln!(streams.err, "tar: {error}\n{HELP}");
            return 1;
        }
    };
    let result = match options.mode {
        Mode::Create => create(&options, streams),
        Mode::Extract | Mode::List => read(&options, streams),
    };
    match result {
        Ok(true) => 0,
        Ok(false) => {
            let _ = writeln!(streams.err, "tar: Error exit delayed from previous errors.");
            1
        }
        Err(error) => {
            let _ = writeln!(streams.err, "tar: {error}");
            1
        }
    }
}

/// Names below a root: without drive, leading slashes and `.`; none with `..`.
fn below(name: &str) -> Option<PathBuf> {
    let plain = name.replace('\\', "/");
    let plain = match plain.as_bytes() {
        [letter, b':', ..] if letter.is_ascii_alphabetic() => &plain[2..],
        _ => &plain,
    };
    let mut path = PathBuf::new();
    for part in plain.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." || part.contains(':') {
            return None;
        }
        path.push(part);
    }
    Some(path)
}

fn create(options: &Options, streams: &mut Streams<'_>) -> std::io::Result<bool> {
    if options.names.is_empty() {
        return Err(std::io::Error::other("no files or directories specified"));
    }
    let mut whole = true;
    let mut write = |out: &mut dyn Write| -> std::io::Result<()> {
        let mut builder = Builder::new(out);
        for name in &options.names {
            let Some(stored) = below(name) else {
                let _ = writeln!(streams.err, "tar: {name}: a name with .. is not stored");
                whole = false;
                continue;
            };
            let source = options.dir.join(name);
            if let Err(error) = add(&mut builder, &source, &stored, options.verbose, streams.err) {
                let _ = writeln!(streams.err, "tar: {name}: {error}");
                whole = false;
            }
        }
        builder.finish()
    };
    let file: Box<dyn Write + '_> = if options.file == "-" { Box::new(&mut *streams.out) } else { Box::new(File::create(&options.file)?) };
    if options.gzip {
        let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
        write(&mut encoder)?;
        encoder.finish()?.flush()?;
    } else {
        let mut file = file;
        write(&mut file)?;
        file.flush()?;
    }
    Ok(whole)
}

/// Adds a file, or a directory with all it holds. Links are stored as what they are links to; circles end at the depth.
fn add(builder: &mut Builder<impl Write>, source: &Path, stored: &Path, verbose: bool, log: &mut dyn Write) -> std::io::Result<()> {
    const DEPTH: usize = 128;
    let meta = std::fs::metadata(source)?;
    let shown = stored.to_string_lossy().replace('\\', "/");
    if verbose {
        let _ = writeln!(log, "a {shown}");
    }
    let mut header = Header::new_gnu();
    header.set_mode(if meta.is_dir() { 0o755 } else { 0o644 });
    let modified = meta.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    header.set_mtime(modified.map_or(0, |since| since.as_secs()));
    if !meta.is_dir() {
        header.set_size(meta.len());
        let file = File::open(source)?;
        return builder.append_data(&mut header, shown, Exactly { inner: file, left: meta.len() });
    }
    if stored.components().count() > DEPTH {
        return Err(std::io::Error::other("directories are nested too deeply"));
    }
    if !shown.is_empty() {
        header.set_entry_type(EntryType::Directory);
        header.set_size(0);
        builder.append_data(&mut header, format!("{shown}/"), std::io::empty())?;
    }
    let mut entries: Vec<_> = std::fs::read_dir(source)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        add(builder, &entry.path(), &stored.join(entry.file_name()), verbose, log)?;
    }
    Ok(())
}

/// A file that may change while it is read: the size of the header decides what follows.
struct Exactly {
    inner: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let mut count = self.inner.read(&mut buffer[..want])?;
        if count == 0 && want > 0 {
            buffer[..want].fill(0);
            count = want;
        }
        self.left -= count as u64;
        Ok(count)
    }
}

fn read(options: &Options, streams: &mut Streams<'_>) -> std::io::Result<bool> {
    let mut input: Box<dyn Read + '_> =
        if options.file == "-" { Box::new(&mut *streams.input) } else { Box::new(std::io::BufReader::new(File::open(&options.file)?)) };
    let mut head = [0u8; 2];
    let count = fill(&mut input, &mut head)?;
    let whole = std::io::Cursor::new(head[..count].to_vec()).chain(input);
    let plain: Box<dyn Read + '_> = if head == [0x1f, 0x8b] { Box::new(flate2::read::MultiGzDecoder::new(whole)) } else { Box::new(whole) };
    let mut archive = Archive::new(plain);
    let mut fine = true;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let chosen = below(&name).filter(|path| {
            let selects = |name: &String| below(name).is_some_and(|name| path.starts_with(name));
            options.names.is_empty() || options.names.iter().any(selects)
        });
        let Some(path) = chosen else {
            if options.names.is_empty() {
                let _ = writeln!(streams.err, "tar: {name}: Path contains '..' or a drive");
                fine = false;
            }
            continue;
        };
        if options.mode == Mode::List {
            writeln!(streams.out, "{name}")?;
            continue;
        }
        if options.verbose {
            let _ = writeln!(streams.err, "x {name}");
        }
        if let Err(error) = extract(&mut entry, &options.dir, &path) {
            let _ = writeln!(streams.err, "tar: {name}: {error}");
            fine = false;
        }
    }
    Ok(fine)
}

fn fill(input: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match input.read(&mut buffer[count..])? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

fn extract(entry: &mut tar::Entry<'_, impl Read>, dir: &Path, path: &Path) -> std::io::Result<()> {
    let target = dir.join(path);
    // A link that is there already must not lead out.
    let mut sofar = dir.to_owned();
    for part in path.components().take(path.components().count().saturating_sub(1)) {
        if let Component::Normal(name) = part {
            sofar.push(name);
            if std::fs::symlink_metadata(&sofar).is_ok_and(|meta| meta.is_symlink()) {
                return Err(std::io::Error::other("a directory above it is a link"));
            }
        }
    }
    match entry.header().entry_type() {
        EntryType::Directory => std::fs::create_dir_all(&target),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)?;
            }
            if std::fs::symlink_metadata(&target).is_ok_and(|meta| meta.is_symlink()) {
                std::fs::remove_file(&target)?;
            }
            let mut file = File::create(&target)?;
            std::io::copy(entry, &mut file).map(drop)
        }
        EntryType::Symlink | EntryType::Link => Err(std::io::Error::other("links are not made")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &[&str], input: &[u8]) -> (u8, Vec<u8>, String) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = main(&args, &mut Streams { input: &mut &input[..], out: &mut out, err: &mut err });
        (code, out, String::from_utf8(err).unwrap())
    }

    #[test]
    fn packed_files_are_unpacked() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir_all(path("from/sub/empty")).unwrap();
        std::fs::write(path("from/sub/a.txt"), "a").unwrap();
        std::fs::write(path("from/b"), vec![7; 3000]).unwrap();
        // The ways in which kubectl calls it, and two of our own.
        for (pack, unpack) in [(["cf", "-", "-C"], ["-xmf", "-", "-C"]), (["-czf", "-", "-C"], ["--no-same-permissions", "-xf-", "-C"])] {
            let (code, archive, err) = run(&[pack[0], pack[1], pack[2], &path("from"), "."], b"");
            assert_eq!((code, err.as_str()), (0, ""));
            std::fs::create_dir(path("to")).unwrap();
            assert_eq!(run(&[unpack[0], unpack[1], unpack[2], &path("to")], &archive), (0, Vec::new(), String::new()));
            assert_eq!(std::fs::read_to_string(path("to/sub/a.txt")).unwrap(), "a");
            assert_eq!(std::fs::read(path("to/b")).unwrap(), vec![7; 3000]);
            assert!(Path::new(&path("to/sub/empty")).is_dir());
            std::fs::remove_dir_all(path("to")).unwrap();
            let (_, list, _) = run(&["tf", "-"], &archive);
            assert_eq!(String::from_utf8(list).unwrap(), "b\nsub/\nsub/a.txt\nsub/empty/\n");
        }
        let (code, _, err) = run(&["-cf", "-", "-C", &path("from"), "missing"], b"");
        assert!(code == 1 && err.contains("missing: "), "{err}");
    }

    #[test]
    fn members_stay_below_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let mut builder = Builder::new(Vec::new());
        for name in ["../evil", "a/../../evil", "c:evil2", "x:y"] {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(1);
            header.set_cksum();
            builder.append(&header, &b"x"[..]).unwrap();
        }
        let (code, _, err) = run(&["xf", "-", "-C", inner.to_str().unwrap()], &builder.into_inner().unwrap());
        assert_eq!(code, 1, "{err}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 2, "evil2 and y, without their drives");
    }

    #[test]
    fn drives_and_slashes_are_left_out() {
        assert_eq!(below(r"C:\etc\foo").unwrap(), Path::new("etc/foo"));
        assert_eq!(below("/etc/./foo/").unwrap(), Path::new("etc/foo"));
        assert_eq!(below("a/../b"), None);
        assert!(parse(&["-q".into()]).is_err() && parse(&[]).is_err());
    }
}
