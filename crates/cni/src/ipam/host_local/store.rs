//! Reservations on disk, in upstream's format:
//! `DATADIR/NETWORK/{lock, last_reserved_ip.N, ADDRESS…}`; an address's file holds `CONTAINER CR LF INTERFACE`.
//!
//! Upstream writes its files in place, so a crash leaves the beginning of one, or an empty one. Whatever is in a file, its address is taken.
//! Such a file is nobody's: DEL leaves it, and GC removes it unless it may be that of an attachment whose own file is missing.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::spec::CniError;
use crate::steps::step;

/// The holder of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ipam) struct Owner<'a> {
    pub container_id: &'a str,
    pub ifname: &'a str,
}

impl Owner<'_> {
    fn content(self) -> String {
        format!("{}\r\n{}", self.container_id.trim(), self.ifname)
    }

    /// Files of old versions hold the container id alone.
    fn matches(self, content: &str) -> bool {
        let content = content.trim();
        content == self.content().trim() || content == self.container_id
    }
}

pub(in crate::ipam) struct Store {
    dir: PathBuf,
    lock: File,
}

/// The store while its lock is held, against other processes too.
pub(in crate::ipam) struct Locked<'a> {
    store: &'a Store,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Closing the file would release it as well.
        let _ = self.store.lock.unlock();
    }
}

fn file_name(ip: IpAddr) -> String {
    if cfg!(windows) { ip.to_string().replace(':', "_") } else { ip.to_string() }
}

fn address(name: &str) -> Option<IpAddr> {
    if cfg!(windows) { name.replace('_', ":").parse().ok() } else { name.parse().ok() }
}

fn write_whole(path: &Path, content: &str) -> io::Result<()> {
    atomic_file::Options::new().mode(0o600).write(path, content)
}

impl Store {
    pub fn open(data_dir: &Path, network: &str) -> Result<Self, CniError> {
        let dir = data_dir.join(network);
        let failed = |e: &io::Error| CniError::io(format_args!("open the address store {}", dir.display()), e);
        fs::create_dir_all(&dir).map_err(|e| failed(&e))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock")).map_err(|e| failed(&e))?;
        Ok(Self { dir, lock })
    }

    pub fn lock(&self) -> Result<Locked<'_>, CniError> {
        self.lock.lock().map_err(|e| CniError::io(format_args!("lock {}/lock", self.dir.display()), &e))?;
        Ok(Locked { store: self })
    }
}

impl Locked<'_> {
    fn error(&self, what: &str, path: &Path, e: &io::Error) -> CniError {
        CniError::io(format_args!("{what} {}", path.display()), e)
    }

    /// Takes `ip` for `owner`; false when it is taken. Remembers it as the last of range set `index`.
    pub fn reserve(&self, ip: IpAddr, owner: Owner<'_>, index: usize) -> Result<bool, CniError> {
        let path = self.store.dir.join(file_name(ip));
        if path.exists() {
            return Ok(false);
        }
        write_whole(&path, &owner.content()).map_err(|e| self.error("write", &path, &e))?;
        step();
        let last = self.store.dir.join(format!("last_reserved_ip.{index}"));
        write_whole(&last, &ip.to_string()).map_err(|e| self.error("write", &last, &e))?;
        step();
        Ok(true)
    }

    /// The address that range set `index` handed out last.
    pub fn last_reserved(&self, index: usize) -> Option<IpAddr> {
        let bytes = fs::read(self.store.dir.join(format!("last_reserved_ip.{index}"))).ok()?;
        String::from_utf8_lossy(&bytes).trim().parse().ok()
    }

    fn reservations(&self) -> Result<Vec<(PathBuf, IpAddr, String)>, CniError> {
        let dir = &self.store.dir;
        let entries = fs::read_dir(dir).map_err(|e| self.error("list", dir, &e))?;
        let mut found = Vec::new();
        for entry in entries.filter_map(Result::ok) {
            let Some(ip) = entry.file_name().to_str().and_then(address) else { continue };
            match fs::read(entry.path()) {
                Ok(bytes) => found.push((entry.path(), ip, String::from_utf8_lossy(&bytes).into_owned())),
                // Not a file of this store: its address stays taken, and the others are none the worse for it.
                Err(_) if entry.file_type().is_ok_and(|kind| !kind.is_file()) => {}
                Err(e) => return Err(self.error("read", &entry.path(), &e)),
            }
        }
        Ok(found)
    }

    /// Every address of `owner`.
    pub fn held_by(&self, owner: Owner<'_>) -> Result<Vec<IpAddr>, CniError> {
        let mut held: Vec<IpAddr> = self.reservations()?.into_iter().filter(|(_, _, content)| owner.matches(content)).map(|(_, ip, _)| ip).collect();
        held.sort();
        Ok(held)
    }

    /// Frees every address of `owner`; none is fine.
    pub fn release(&self, owner: Owner<'_>) -> Result<(), CniError> {
        self.remove_where(|_, content| owner.matches(content))
    }

    /// Frees every address that none of `valid` (container id, interface) holds. An empty interface stands for all of the container's.
    pub fn release_others(&self, valid: &[(String, String)]) -> Result<(), CniError> {
        let holds = |container_id: &str, ifname: &str, content: &str| {
            Owner { container_id, ifname }.matches(content)
                || (ifname.is_empty() && content.lines().next().is_some_and(|id| id.trim() == container_id))
        };
        let all = self.reservations()?;
        // A file that was half written may be that of a valid attachment which has no whole one of the same address family.
        let may_be = |ip: IpAddr, container_id: &str, ifname: &str, content: &str| {
            let whole = |(_, other, held): &(PathBuf, IpAddr, String)| other.is_ipv4() == ip.is_ipv4() && holds(container_id, ifname, held);
            Owner { container_id, ifname }.content().starts_with(content) && !all.iter().any(whole)
        };
        self.remove_where(|ip, content| {
            !valid.iter().any(|(container_id, ifname)| holds(container_id, ifname, content) || may_be(ip, container_id, ifname, content))
        })
    }

    fn remove_where(&self, drop_it: impl Fn(IpAddr, &str) -> bool) -> Result<(), CniError> {
        for (path, ip, content) in self.reservations()? {
            if drop_it(ip, &content) {
                fs::remove_file(&path).map_err(|e| self.error("remove", &path, &e))?;
                step();
            }
        }
        Ok(())
    }
}
