//! One file of a journal. Every offset and size of it is doubted: it may be cut off, damaged, or being written just now.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Read as _};

/// Objects that are followed in one chain.
const MAX_CHAIN: usize = 1 << 20;
/// Bytes of a field that are read.
const MAX_FIELD: u64 = 64 << 10;
/// Bytes of a field whose values are listed: names of units and ids.
const MAX_VALUE: u64 = 4 << 10;
/// Bytes of all values of a field.
const MAX_VALUES: usize = 16 << 20;
/// Fields of an entry.
const MAX_ITEMS: u64 = 1024;
/// Buckets of a table that are read.
const MAX_BUCKETS: u64 = 1 << 20;

const DATA: u8 = 1;
const FIELD: u8 = 2;
const ENTRY: u8 = 3;
const ENTRY_ARRAY: u8 = 6;

/// Bits of the header: objects may be compressed or have keyed hashes, which matters to nobody who does not search by hash.
const XZ: u32 = 1;
const LZ4: u32 = 2;
const KEYED: u32 = 4;
const ZSTD: u32 = 8;
const COMPACT: u32 = 16;

/// Why a journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum JournalError {
    #[error("it is no journal")]
    Signature,
    #[error("it has features that are not known here: {0:#x}")]
    Features(u32),
    #[error("an object at {0} is damaged")]
    Damaged(u64),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a journal is read from.
pub(super) trait Source {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Source for std::fs::File {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Source for Vec<u8> {
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let bytes = self.get(start..).and_then(|rest| rest.get(..buffer.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// The fixed part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub offset: u64,
    /// Microseconds since 1970.
    pub realtime: u64,
    pub boot: u128,
}

/// Fields of an entry by name; of several of one name, the last.
pub(super) type Fields = BTreeMap<String, Vec<u8>>;

#[derive(Debug)]
pub(super) struct Journal<S> {
    source: S,
    compact: bool,
    /// The table of fields: where, and how many bytes.
    fields: (u64, u64),
    newest: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl<S: Source> Journal<S> {
    pub(super) fn open(source: S) -> Result<Self, JournalError> {
        let mut header = [0; 208];
        source.read_exact_at(&mut header, 0)?;
        if !header.starts_with(b"LPKSHHRH") {
            return Err(JournalError::Signature);
        }
        let features = u32_at(&header, 12);
        if features & !(XZ | LZ4 | KEYED | ZSTD | COMPACT) != 0 {
            return Err(JournalError::Features(features));
        }
        let fields = (u64_at(&header, 120), u64_at(&header, 128));
        Ok(Journal { source, compact: features & COMPACT != 0, fields, newest: u64_at(&header, 192) })
    }

    /// When its last entry was written.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, JournalError> {
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| JournalError::Damaged(offset))?];
        self.source.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The beginning of an object of a kind, and the object's size.
    fn object(&self, offset: u64, kind: u8, length: u64) -> Result<(Vec<u8>, u64), JournalError> {
        let damaged = || JournalError::Damaged(offset);
        if offset < 208 || !offset.is_multiple_of(8) {
            return Err(damaged());
        }
        let bytes = self.read(offset, length)?;
        let size = u64_at(&bytes, 8);
        if bytes[0] != kind || size < length || offset.checked_add(size).is_none() {
            return Err(damaged());
        }
        Ok((bytes, size))
    }

    /// The values of a field, with the objects that hold them. Each object names one that was written before it: a chain has an end.
    pub(super) fn values(&self, name: &str) -> Result<Vec<(String, u64)>, JournalError> {
        let Some(mut data) = self.field(name)? else { return Ok(Vec::new()) };
        let (mut all, mut bytes) = (Vec::new(), 0);
        for _ in 0..MAX_CHAIN {
            if data == 0 || bytes > MAX_VALUES {
                break;
            }
            let (head, _) = self.object(data, DATA, 64)?;
            let payload = self.payload(data, MAX_VALUE)?;
            if let Some(value) = payload.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                bytes += value.len();
                all.push((String::from_utf8_lossy(value).into_owned(), data));
            }
            let next = u64_at(&head, 32);
            if next >= data {
                return Err(JournalError::Damaged(data));
            }
            data = next;
        }
        Ok(all)
    }

    /// The first of the objects that hold values of a field.
    fn field(&self, name: &str) -> Result<Option<u64>, JournalError> {
        let (table, bytes) = self.fields;
        let buckets = (bytes / 16).min(MAX_BUCKETS);
        if table == 0 {
            return Ok(None);
        }
        let heads = self.read(table, buckets * 16)?;
        let mut steps = 0;
        for bucket in heads.chunks_exact(16) {
            let mut field = u64_at(bucket, 0);
            while field != 0 && steps < MAX_CHAIN {
                steps += 1;
                let (head, size) = self.object(field, FIELD, 40)?;
                if size - 40 == name.len() as u64 && self.read(field + 40, size - 40)? == name.as_bytes() {
                    return Ok(Some(u64_at(&head, 32)));
                }
                field = u64_at(&head, 24);
            }
        }
        Ok(None)
    }

    /// `NAME=VALUE` of an object, of which `most` bytes are read.
    fn payload(&self, data: u64, most: u64) -> Result<Vec<u8>, JournalError> {
        let start = if self.compact { 72 } else { 64 };
        let (head, size) = self.object(data, DATA, start)?;
        let length = size - start;
        match head[1] {
            0 => self.read(data + start, length.min(most)),
            4 => {
                let packed = self.read(data + start, length.min(most * 16))?;
                let mut plain = Vec::new();
                let decoder = ruzstd::decoding::StreamingDecoder::new(packed.as_slice()).map_err(|_| JournalError::Damaged(data))?;
                decoder.take(most).read_to_end(&mut plain).map_err(|_| JournalError::Damaged(data))?;
                Ok(plain)
            }
            // Long texts of systemd before 246.
            _ => Ok(b"MESSAGE=[compressed by an older journal; journalctl shows it]".to_vec()),
        }
    }

    /// The entries that have a value, oldest first.
    pub(super) fn entries_of(&self, data: u64, limit: usize) -> Result<Vec<u64>, JournalError> {
        let (head, _) = self.object(data, DATA, 64)?;
        let count = usize::try_from(u64_at(&head, 56)).unwrap_or(usize::MAX).min(limit);
        let mut all = Vec::new();
        if count > 0 && u64_at(&head, 40) != 0 {
            all.push(u64_at(&head, 40));
        }
        let mut array = u64_at(&head, 48);
        let width = if self.compact { 4 } else { 8 };
        while array != 0 && all.len() < count {
            let (head, size) = self.object(array, ENTRY_ARRAY, 24)?;
            let left = (count - all.len()) as u64;
            let items = self.read(array + 24, ((size - 24) / width).min(left) * width)?;
            let offsets = items.chunks_exact(width as usize).map(|item| if self.compact { u32_at(item, 0).into() } else { u64_at(item, 0) });
            let before = all.len();
            all.extend(offsets.take_while(|offset| *offset != 0));
            if all.len() == before {
                break;
            }
            array = u64_at(&head, 16);
        }
        Ok(all)
    }

    pub(super) fn entry(&self, offset: u64) -> Result<Entry, JournalError> {
        let (head, _) = self.object(offset, ENTRY, 64)?;
        let boot = head[40..56].try_into().map(u128::from_be_bytes).map_err(|_| JournalError::Damaged(offset))?;
        Ok(Entry { offset, realtime: u64_at(&head, 24), boot })
    }

    fn items(&self, entry: u64) -> Result<Vec<u64>, JournalError> {
        let (_, size) = self.object(entry, ENTRY, 64)?;
        let width = if self.compact { 4 } else { 16 };
        let items = self.read(entry + 64, ((size - 64) / width).min(MAX_ITEMS) * width)?;
        Ok(items.chunks_exact(width as usize).map(|item| if self.compact { u32_at(item, 0).into() } else { u64_at(item, 0) }).collect())
    }

    /// Whether an entry has this `NAME=VALUE`.
    pub(super) fn has_field(&self, entry: u64, field: &str) -> Result<bool, JournalError> {
        Ok(self.items(entry)?.into_iter().any(|data| self.payload(data, MAX_FIELD).is_ok_and(|payload| payload == field.as_bytes())))
    }

    /// The fields of an entry; what cannot be read is left out.
    pub(super) fn fields(&self, entry: u64) -> Result<Fields, JournalError> {
        let mut fields = Fields::new();
        for data in self.items(entry)? {
            let Ok(payload) = self.payload(data, MAX_FIELD) else { continue };
            let Some(at) = payload.iter().position(|byte| *byte == b'=') else { continue };
            let name: Cow<'_, str> = String::from_utf8_lossy(&payload[..at]);
            fields.insert(name.into_owned(), payload[at + 1..].to_vec());
        }
        Ok(fields)
    }
}
