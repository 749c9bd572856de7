//! Output of containers, as the kubelets keep it: `/var/log/pods` on each node's disk.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kube_rules::NodeOs;
use lab::dir::Dirs;

use super::Bundle;
use crate::linux::cluster_file::Cluster;

/// The most of one file that is taken, its end.
const FILE: u64 = 256 << 10;
/// The most of all files; the ones written last come first.
const ALL: u64 = 32 << 20;

/// A log of a container: `NS_POD_UID/CONTAINER/N.log`.
struct Log {
    name: String,
    path: PathBuf,
    changed: SystemTime,
    length: u64,
}

/// Takes the ends of the containers' logs. They may hold values of Secrets in any place, and so are left out where these values are
/// not known.
pub fn collect(bundle: &mut Bundle, dirs: &Dirs, cluster: &Cluster, secrets_known: bool) {
    let mut logs: Vec<Log> = cluster
        .nodes
        .iter()
        .flat_map(|node| {
            let disk = dirs.host(&node.name).join(if node.os == NodeOs::Linux { "root" } else { "c" });
            of_node(&format!("logs/{}/pods", node.name), &disk.join("var").join("log").join("pods"))
        })
        .collect();
    if !secrets_known {
        if !logs.is_empty() {
            let why = "left out, because the values of Secrets that may stand in it are known only while the API answers";
            bundle.add_missing(&format!("output of {} containers", logs.len()), why);
        }
        return;
    }
    logs.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
    let mut left = ALL;
    for log in logs {
        let most = log.length.min(FILE);
        if most > left {
            bundle.add_missing(&log.name, format!("left out, because the containers' output has more than {} MiB", ALL >> 20));
            continue;
        }
        left -= most;
        match end_of(&log.path, FILE) {
            Ok(text) => bundle.add(log.name, text),
            // Rotated or removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => bundle.add_missing(&log.name, error),
        }
    }
}

/// Three levels down; links are not followed, since containers' owners may have made them.
fn of_node(name: &str, pods: &Path) -> Vec<Log> {
    let mut logs = Vec::new();
    let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    for pod in below(pods).filter(is_dir) {
        for container in below(&pod.path()).filter(is_dir) {
            for file in below(&container.path()) {
                let Some(meta) = file.metadata().ok().filter(fs::Metadata::is_file) else { continue };
                let part = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
                logs.push(Log {
                    name: format!("{name}/{}/{}/{}", part(&pod), part(&container), part(&file)),
                    path: file.path(),
                    changed: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    length: meta.len(),
                });
            }
        }
    }
    logs
}

/// The last whole lines of a file: half a line could hold half a secret, which nobody would know.
fn end_of(path: &Path, most: u64) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = if begin == 0 { &*text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
    Ok(joined(text))
}

/// Lines in CRI's form, `TIME STREAM P|F TEXT`, those that were cut (P) as one with the rest of their line: a secret may lie across.
fn joined(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Of each stream, the begin of a line whose end has not come yet.
    let mut open: [(&str, String); 2] = [("stdout", String::new()), ("stderr", String::new())];
    for line in text.lines() {
        let mut parts = line.splitn(4, ' ');
        let (time, stream, tag, rest) = (parts.next(), parts.next(), parts.next(), parts.next().unwrap_or_default());
        let place = stream.and_then(|stream| open.iter_mut().find(|(name, _)| *name == stream));
        let (Some(time), Some((stream, begin)), Some(tag @ ("P" | "F"))) = (time, place, tag) else {
            out.extend([line, "\n"]);
            continue;
        };
        if begin.is_empty() {
            *begin = format!("{time} {stream} F ");
        }
        begin.push_str(rest);
        if tag == "F" {
            begin.push('\n');
            out += &std::mem::take(begin);
        }
    }
    for (_, begin) in open.iter().filter(|(_, begin)| !begin.is_empty()) {
        out.extend([begin.as_str(), "\n"]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::cluster_file::Requested;

    #[test]
    fn lines_that_were_cut_are_whole_again() {
        let text = "t1 stdout P pass\nt2 stderr F other\nt3 stdout P wo\nt4 stdout F rd\nno form\nt5 stdout F \nt6 stderr P last";
        assert_eq!(joined(text), "t2 stderr F other\nt1 stdout F password\nno form\nt5 stdout F \nt6 stderr F last\n");
    }

    #[test]
    fn the_end_of_a_long_log_begins_with_a_whole_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text: String = (0..100).map(|n| format!("t stdout F line-{n:03}\n")).collect();
        fs::write(file.path(), &text).unwrap();
        let end = end_of(file.path(), 100).unwrap();
        assert!(end.len() <= 100 && text.ends_with(&end) && end.starts_with("t stdout F line-"), "{end}");
        assert_eq!(end_of(file.path(), 1 << 20).unwrap(), text);
    }

    #[test]
    fn output_is_bounded_and_left_out_where_secrets_are_unknown() {
        let root = tempfile::tempdir().unwrap();
        let dirs = Dirs { dir: root.path().join("dir"), run: root.path().join("run/0011aabb") };
        let nodes = node_config::node_spec::parse_list("l:linux,w:windows").unwrap();
        let (cluster, _) = Cluster::merge(None, Requested::default(), &nodes, &dirs).unwrap();
        for (disk, size) in [("l/root", 10), ("w/c", 2 * FILE as usize)] {
            let dir = dirs.dir.join("hosts").join(disk).join("var/log/pods/ns_pod_uid/main");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("0.log"), "t stdout F 1234567\n".repeat(size / 10)).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", dir.join("1.log")).unwrap();
        }
        let mut bundle = Bundle::default();
        collect(&mut bundle, &dirs, &cluster, true);
        let mut sizes: Vec<_> = bundle.files.iter().map(|(name, text)| (name.as_str(), text.len() as u64)).collect();
        sizes.sort_unstable();
        assert!(matches!(sizes[..], [("logs/l/pods/ns_pod_uid/main/0.log", 19), ("logs/w/pods/ns_pod_uid/main/0.log", 200_000..=FILE)]), "{sizes:?}");
        let mut bundle = Bundle::default();
        collect(&mut bundle, &dirs, &cluster, false);
        assert!(bundle.files.is_empty() && bundle.missing.len() == 1, "{:?}", bundle.missing);
    }
}
