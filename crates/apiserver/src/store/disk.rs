//! redb below the store: loading at start, and the writer thread that commits everything waiting in one transaction.

use super::encryption::Cipher;
use super::{Entry, OpenError, Shared, Topic, WriteError};
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use thiserror_ext::AsReport as _;
use tokio::sync::oneshot;

/// key → 8 bytes of revision (little endian), then the object (sealed for Secrets).
const OBJECTS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'static, &str, u64> = TableDefinition::new("meta");
const FORMAT: u64 = 1;
const CACHE_BYTES: usize = 1 << 20;
/// A restart skips this many revisions: one that a client saw in the instant before a crash, and that never reached the disk, must
/// not come back with another meaning.
const RESTART_GAP: u64 = 1000;
/// No more writes are added to a transaction that has so many.
const MOST_OPS: usize = 1024;
/// What is stored sealed.
const SECRETS: &str = "core/secrets/";

pub(super) struct Op {
    pub(super) key: Arc<str>,
    /// `None` deletes.
    pub(super) bytes: Option<Arc<[u8]>>,
    pub(super) revision: u64,
    /// Whom it concerns.
    pub(super) topics: Vec<Topic>,
    pub(super) done: oneshot::Sender<Result<(), WriteError>>,
}

pub(super) struct Loaded {
    pub(super) revision: u64,
    pub(super) index: BTreeMap<Arc<str>, Entry>,
}

pub(super) struct Opened {
    database: Database,
    cipher: Cipher,
}

pub(super) struct Disk {
    queue: Mutex<Option<Sender<Vec<Op>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Disk {
    pub(super) fn open(dir: &Path) -> Result<(Opened, Loaded), OpenError> {
        let file = |operation| move |source| OpenError::File { dir: dir.to_path_buf(), operation, source };
        make_private(dir).map_err(file("making the directory"))?;
        let cipher = Cipher::load_or_create(&dir.join("encryption-configuration.yaml"))?;
        let path = dir.join("objects.redb");
        let failed = |source| OpenError::Database { path: path.clone(), source };
        let mut builder = Database::builder();
        let database = builder.set_cache_size(CACHE_BYTES).create(&path).map_err(|error| failed(error.into()))?;
        let (format, loaded) = load(&database, &cipher, failed)?;
        if format > FORMAT {
            return Err(OpenError::Newer { found: format, known: FORMAT });
        }
        Ok((Opened { database, cipher }, loaded))
    }

    /// Queues operations that are committed together.
    pub(super) fn enqueue(&self, operations: Vec<Op>) -> Result<(), WriteError> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = queue.as_ref().map(|sender| sender.send(operations));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(WriteError::Disk("the store is closed".into())) }
    }

    /// Whether the writer runs.
    pub(super) fn is_open(&self) -> bool {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

/// Objects are nobody else's to read, encrypted or not.
fn make_private(dir: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.close();
    }
}

impl Opened {
    pub(super) fn start(self, shared: Arc<Shared>) -> std::io::Result<Disk> {
        let (sender, receiver) = channel();
        let writer = Writer { opened: self, shared, receiver };
        let thread = std::thread::Builder::new().name("store".into()).stack_size(256 << 10).spawn(move || writer.run())?;
        Ok(Disk { queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    fn commit(&self, ops: &[Op]) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            let mut meta = transaction.open_table(META)?;
            for op in ops {
                match &op.bytes {
                    Some(bytes) => {
                        let mut value = op.revision.to_le_bytes().to_vec();
                        if op.key.starts_with(SECRETS) {
                            value.extend_from_slice(&self.cipher.seal(bytes));
                        } else {
                            value.extend_from_slice(bytes);
                        }
                        objects.insert(&*op.key, value.as_slice())?;
                    }
                    None => drop(objects.remove(&*op.key)?),
                }
            }
            if let Some(last) = ops.last() {
                meta.insert("revision", last.revision)?;
                meta.insert("format", FORMAT)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn load(database: &Database, cipher: &Cipher, failed: impl Fn(redb::Error) -> OpenError) -> Result<(u64, Loaded), OpenError> {
    let transaction = database.begin_read().map_err(|error| failed(error.into()))?;
    let empty = Loaded { revision: 1, index: BTreeMap::new() };
    let (objects, meta) = match (transaction.open_table(OBJECTS), transaction.open_table(META)) {
        (Ok(objects), Ok(meta)) => (objects, meta),
        (Err(redb::TableError::TableDoesNotExist(_)), _) => return Ok((FORMAT, empty)),
        (Err(error), _) | (_, Err(error)) => return Err(failed(error.into())),
    };
    let number = |name| meta.get(name).map(|found| found.map_or(0, |value| value.value())).map_err(|error| failed(error.into()));
    let (format, stored) = (number("format")?, number("revision")?);
    let mut loaded = Loaded { revision: stored + RESTART_GAP, index: BTreeMap::new() };
    for row in objects.iter().map_err(|error| failed(error.into()))? {
        let (key, value) = row.map_err(|error| failed(error.into()))?;
        let (key, value) = (key.value(), value.value());
        let (revision, bytes) = value.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        let bytes: Arc<[u8]> = if key.starts_with(SECRETS) {
            cipher.open(bytes).ok_or_else(|| OpenError::Decrypt { key: key.to_string() })?.into()
        } else {
            bytes.into()
        };
        loaded.index.insert(key.into(), Entry { revision: u64::from_le_bytes(*revision), bytes });
    }
    Ok((format, loaded))
}

struct Writer {
    opened: Opened,
    shared: Arc<Shared>,
    receiver: Receiver<Vec<Op>>,
}

impl Writer {
    fn run(self) {
        while let Ok(first) = self.receiver.recv() {
            let mut batch = first;
            while batch.len() < MOST_OPS
                && let Ok(more) = self.receiver.try_recv()
            {
                batch.extend(more);
            }
            match self.opened.commit(&batch) {
                Ok(()) => self.publish(batch),
                Err(error) => self.refuse(batch, &error),
            }
        }
    }

    fn publish(&self, batch: Vec<Op>) {
        if let Some(last) = batch.last() {
            self.shared.published.send_replace(last.revision);
        }
        let state = self.shared.lock();
        batch.iter().for_each(|op| op.topics.iter().for_each(|topic| state.topics.wake(topic, op.revision)));
        drop(state);
        for op in batch {
            // A requester that went away does not want the answer any more.
            let _ = op.done.send(Ok(()));
        }
    }

    fn refuse(&self, mut batch: Vec<Op>, error: &redb::Error) {
        tracing::error!(error = %error.as_report(), "the store could not write: free disk space, then try again");
        let mut state = self.shared.lock();
        // Nothing can be queued while the lock is held, so this is everything that built on what failed.
        batch.extend(self.receiver.try_iter().flatten());
        let published = *self.shared.published.borrow();
        state.roll_back(published);
        drop(state);
        for op in batch {
            let _ = op.done.send(Err(WriteError::Disk(error.to_string())));
        }
    }
}
