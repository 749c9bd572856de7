//! Reads untrusted registry hives (`regf` files).
//!
//! What layers of Windows images hold in `Hives/` are differencing hives: a key or value may remove the one below it
//! ([`Semantics`]). The format is that of M. Suhanov's "Windows registry file format specification" and its
//! parser `yarp`; every offset is checked, and no cell can be read more often than the file has room for cells.

use std::char::{REPLACEMENT_CHARACTER, decode_utf16};

use thiserror::Error;

/// Largest hive that is read.
pub const MAX_HIVE: u64 = 64 << 20;
const HEADER: usize = 4096;
/// Deepest key; Windows allows 512.
const MAX_DEPTH: usize = 512;
/// Smallest cells that a key and a value fit into.
const KEY_CELL: usize = 80;
const VALUE_CELL: usize = 24;
/// A big value is cut into segments of this size.
const SEGMENT: usize = 16_344;

/// Why a hive is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a registry hive, or a damaged one: {what} at {offset:#x}")]
pub struct HiveError {
    what: &'static str,
    offset: usize,
}

/// What a key says about the same key in the layers below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Semantics {
    /// Both count; values of this one win.
    #[default]
    Merge,
    /// Gone, with everything in it.
    Tombstone,
    /// Its values are gone, its keys stay.
    SupersedeLocal,
    /// This key and what it holds replaces that key and what that one held.
    SupersedeTree,
}

/// A key with all it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// Its own name, without its parents'.
    pub name: String,
    /// What becomes of the key below it.
    pub semantics: Semantics,
    pub values: Vec<Value>,
    pub keys: Vec<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Empty for the key's default value.
    pub name: String,
    /// `REG_SZ` and so on.
    pub kind: u32,
    /// None: the value of a layer below is gone.
    pub data: Option<Vec<u8>>,
}

/// Reads a hive whole; returns its root key.
///
/// # Errors
/// When it is damaged, or not a hive.
pub fn parse(file: &[u8]) -> Result<Key, HiveError> {
    let refuse = |what, offset| Err(HiveError { what, offset });
    if file.get(..4) != Some(b"regf") || file.len() < HEADER {
        return refuse("no header", 0);
    }
    let words = file[..508].chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let sum = match words.fold(0, |sum, word| sum ^ word) {
        0 => 1,
        u32::MAX => u32::MAX - 1,
        sum => sum,
    };
    let head = Cells { bytes: file };
    if head.u32(508)? != sum {
        return refuse("wrong checksum", 508);
    }
    let length = usize::try_from(head.u32(40)?).unwrap_or(usize::MAX).min(file.len() - HEADER);
    let bins = Cells { bytes: &file[HEADER..HEADER + length] };
    let mut reader = Reader { keys: bins.bytes.len() / KEY_CELL, values: bins.bytes.len() / VALUE_CELL, data: 2 * bins.bytes.len(), bins };
    reader.key(head.u32(36)?, 0)
}

/// Bytes with checked access.
#[derive(Clone, Copy)]
struct Cells<'a> {
    bytes: &'a [u8],
}

impl<'a> Cells<'a> {
    fn at(self, offset: usize, length: usize) -> Result<&'a [u8], HiveError> {
        let end = offset.checked_add(length);
        end.and_then(|end| self.bytes.get(offset..end)).ok_or(HiveError { what: "something beyond the end", offset })
    }

    fn u16(self, offset: usize) -> Result<u16, HiveError> {
        let bytes = self.at(offset, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(self, offset: usize) -> Result<u32, HiveError> {
        let bytes = self.at(offset, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// The content of the allocated cell at an offset.
    fn cell(self, offset: u32) -> Result<Cells<'a>, HiveError> {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let size = self.u32(at)?.cast_signed();
        if size >= -4 {
            return Err(HiveError { what: "a cell that is not in use", offset: at });
        }
        let size = usize::try_from(size.unsigned_abs()).unwrap_or(usize::MAX);
        Ok(Cells { bytes: self.at(at.saturating_add(4), size - 4)? })
    }
}

/// Reads keys, and counts what it may still read: a hive whose cells refer to each other in circles ends there.
struct Reader<'a> {
    bins: Cells<'a>,
    keys: usize,
    values: usize,
    data: usize,
}

impl Reader<'_> {
    /// Counts bytes that are about to be kept.
    fn keep(&mut self, length: usize, offset: u32) -> Result<(), HiveError> {
        let left = self.data.checked_sub(length);
        self.data = left.ok_or(HiveError { what: "more data than there is room for", offset: usize::try_from(offset).unwrap_or(usize::MAX) })?;
        Ok(())
    }

    fn key(&mut self, offset: u32, depth: usize) -> Result<Key, HiveError> {
        let refuse = |what| HiveError { what, offset: usize::try_from(offset).unwrap_or(usize::MAX) };
        self.keys = self.keys.checked_sub(1).ok_or_else(|| refuse("more keys than there is room for"))?;
        if depth > MAX_DEPTH {
            return Err(refuse("keys nested too deeply"));
        }
        let cell = self.bins.cell(offset)?;
        if cell.at(0, 2)? != b"nk" {
            return Err(refuse("something that is not a key"));
        }
        let semantics = match cell.at(13, 1)?[0] & 3 {
            0 => Semantics::Merge,
            1 => Semantics::Tombstone,
            2 => Semantics::SupersedeLocal,
            _ => Semantics::SupersedeTree,
        };
        let name = cell.at(76, usize::from(cell.u16(72)?))?;
        self.keep(name.len(), offset)?;
        let name = text(name, cell.u16(2)? & 0x20 != 0);
        let mut key = Key { name, semantics, ..Key::default() };
        if cell.u32(36)? > 0 {
            key.values = self.values(cell.u32(40)?, cell.u32(36)?)?;
        }
        if cell.u32(20)? > 0 {
            let mut offsets = Vec::new();
            self.subkeys(cell.u32(28)?, true, &mut offsets)?;
            key.keys.reserve_exact(offsets.len());
            for offset in offsets {
                key.keys.push(self.key(offset, depth + 1)?);
            }
        }
        Ok(key)
    }

    /// Offsets of the keys in a list, which may be a list of lists.
    fn subkeys(&self, list: u32, lists: bool, into: &mut Vec<u32>) -> Result<(), HiveError> {
        let refuse = |what| HiveError { what, offset: usize::try_from(list).unwrap_or(usize::MAX) };
        let cell = self.bins.cell(list)?;
        let count = usize::from(cell.u16(2)?);
        let (width, nested) = match cell.at(0, 2)? {
            b"lf" | b"lh" => (8, false),
            b"li" => (4, false),
            b"ri" if lists => (4, true),
            _ => return Err(refuse("something that is not a list of keys")),
        };
        for index in 0..count {
            let offset = cell.u32(4 + index * width)?;
            if nested {
                self.subkeys(offset, false, into)?;
            } else {
                into.push(offset);
            }
            if into.len() > self.keys {
                return Err(refuse("more keys than there is room for"));
            }
        }
        Ok(())
    }

    fn values(&mut self, list: u32, count: u32) -> Result<Vec<Value>, HiveError> {
        let cell = self.bins.cell(list)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let at = usize::try_from(list).unwrap_or(usize::MAX);
        self.values = self.values.checked_sub(count).ok_or(HiveError { what: "more values than there is room for", offset: at })?;
        (0..count).map(|index| self.value(cell.u32(index * 4)?)).collect()
    }

    fn value(&mut self, offset: u32) -> Result<Value, HiveError> {
        let cell = self.bins.cell(offset)?;
        let refuse = |what| HiveError { what, offset: usize::try_from(offset).unwrap_or(usize::MAX) };
        if cell.at(0, 2)? != b"vk" {
            return Err(refuse("something that is not a value"));
        }
        let flags = cell.u16(16)?;
        let name = cell.at(20, usize::from(cell.u16(2)?))?;
        self.keep(name.len(), offset)?;
        let name = text(name, flags & 1 != 0);
        let kind = cell.u32(12)?;
        if flags & 2 != 0 {
            return Ok(Value { name, kind, data: None });
        }
        let size = cell.u32(4)?;
        let length = usize::try_from(size & 0x7fff_ffff).unwrap_or(usize::MAX);
        let data = if size & 0x8000_0000 != 0 {
            cell.at(8, length.min(4))?.to_vec()
        } else if length == 0 {
            Vec::new()
        } else {
            self.keep(length, offset)?;
            self.data(cell.u32(8)?, length)?
        };
        Ok(Value { name, kind, data: Some(data) })
    }

    fn data(&self, offset: u32, length: usize) -> Result<Vec<u8>, HiveError> {
        let cell = self.bins.cell(offset)?;
        if length <= SEGMENT || cell.bytes.get(..2) != Some(b"db") {
            return Ok(cell.at(0, length)?.to_vec());
        }
        let (segments, list) = (usize::from(cell.u16(2)?), self.bins.cell(cell.u32(4)?)?);
        let mut data = Vec::new();
        for index in 0..segments {
            let segment = self.bins.cell(list.u32(index * 4)?)?;
            let part = (length - data.len()).min(SEGMENT);
            data.extend_from_slice(segment.at(0, part)?);
        }
        if data.len() < length {
            return Err(HiveError { what: "a value that ends early", offset: usize::try_from(offset).unwrap_or(usize::MAX) });
        }
        Ok(data)
    }
}

/// A name, stored as Latin-1 or as UTF-16.
fn text(bytes: &[u8], latin: bool) -> String {
    if latin {
        return bytes.iter().map(|byte| char::from(*byte)).collect();
    }
    let units = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    decode_utf16(units).map(|unit| unit.unwrap_or(REPLACEMENT_CHARACTER)).collect()
}

#[cfg(test)]
pub(crate) mod build {
    //! Writes hives, for tests.

    use super::{HEADER, Key, Semantics};

    #[derive(Default)]
    struct Bins(Vec<u8>);

    impl Bins {
        fn cell(&mut self, content: &[u8]) -> u32 {
            let at = u32::try_from(self.0.len()).unwrap();
            let size = (content.len() + 4).next_multiple_of(8);
            self.0.extend_from_slice(&(-i32::try_from(size).unwrap()).to_le_bytes());
            self.0.extend_from_slice(content);
            self.0.resize(at as usize + size, 0);
            at
        }

        fn offsets(&mut self, head: &[u8], offsets: &[u32]) -> u32 {
            let mut list = head.to_vec();
            offsets.iter().for_each(|offset| list.extend_from_slice(&offset.to_le_bytes()));
            self.cell(&list)
        }

        fn key(&mut self, key: &Key) -> u32 {
            let keys: Vec<u32> = key.keys.iter().map(|key| self.key(key)).collect();
            let values: Vec<u32> = key
                .values
                .iter()
                .map(|value| {
                    let data = value.data.clone().unwrap_or_default();
                    let at = self.cell(&data);
                    let mut cell = b"vk".to_vec();
                    cell.extend_from_slice(&u16::try_from(value.name.len()).unwrap().to_le_bytes());
                    cell.extend_from_slice(&u32::try_from(data.len()).unwrap().to_le_bytes());
                    cell.extend_from_slice(&at.to_le_bytes());
                    cell.extend_from_slice(&value.kind.to_le_bytes());
                    cell.extend_from_slice(&(if value.data.is_some() { 1u16 } else { 3 }).to_le_bytes());
                    cell.extend_from_slice(&[0; 2]);
                    cell.extend_from_slice(value.name.as_bytes());
                    self.cell(&cell)
                })
                .collect();
            let mut cell = vec![0u8; 76];
            cell[..2].copy_from_slice(b"nk");
            cell[2] = 0x20;
            cell[13] = match key.semantics {
                Semantics::Merge => 0,
                Semantics::Tombstone => 1,
                Semantics::SupersedeLocal => 2,
                Semantics::SupersedeTree => 3,
            };
            let mut put = |at: usize, number: u32| cell[at..at + 4].copy_from_slice(&number.to_le_bytes());
            put(20, u32::try_from(keys.len()).unwrap());
            let mut head = b"li".to_vec();
            head.extend_from_slice(&u16::try_from(keys.len()).unwrap().to_le_bytes());
            put(28, self.offsets(&head, &keys));
            put(36, u32::try_from(values.len()).unwrap());
            put(40, self.offsets(&[], &values));
            put(72, u32::try_from(key.name.len()).unwrap());
            cell.extend_from_slice(key.name.as_bytes());
            self.cell(&cell)
        }
    }

    /// The hive with this root.
    pub(crate) fn hive(root: &Key) -> Vec<u8> {
        let mut bins = Bins(vec![0; 32]);
        bins.0[..4].copy_from_slice(b"hbin");
        let root = bins.key(root);
        let mut file = vec![0u8; HEADER];
        file[..4].copy_from_slice(b"regf");
        file[36..40].copy_from_slice(&root.to_le_bytes());
        file[40..44].copy_from_slice(&u32::try_from(bins.0.len()).unwrap().to_le_bytes());
        file.extend_from_slice(&bins.0);
        seal(&mut file);
        file
    }

    /// Puts the checksum right.
    pub(crate) fn seal(file: &mut [u8]) {
        let words = file[..508].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let sum = words.fold(0, |sum, word| sum ^ word);
        file[508..512].copy_from_slice(&sum.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Key {
        let value = |name: &str, data: Option<&[u8]>| Value { name: name.into(), kind: 3, data: data.map(<[u8]>::to_vec) };
        let leaf = Key { name: "Leaf".into(), semantics: Semantics::SupersedeTree, values: vec![value("big", Some(&[7; 9000]))], keys: vec![] };
        let gone = Key { name: "Gone".into(), semantics: Semantics::Tombstone, ..Key::default() };
        Key { name: "ROOT".into(), values: vec![value("", Some(b"x")), value("not", None)], keys: vec![leaf, gone], ..Key::default() }
    }

    #[test]
    fn a_hive_is_read_as_it_was_written() {
        assert_eq!(parse(&build::hive(&sample())).unwrap(), sample());
    }

    #[test]
    fn circular_and_inconsistent_hives_are_refused() {
        let file = build::hive(&sample());
        assert!(parse(&file[..200]).is_err() && parse(b"").is_err() && parse(&[0; 5000]).is_err());
        // A root that contains itself.
        let mut circle = build::hive(&Key { name: "R".into(), keys: vec![Key { name: "K".into(), ..Key::default() }], ..Key::default() });
        let root = u32::from_le_bytes(circle[36..40].try_into().unwrap());
        let list = HEADER + root as usize + 4 + 28;
        let list = HEADER + u32::from_le_bytes(circle[list..list + 4].try_into().unwrap()) as usize;
        circle[list + 8..list + 12].copy_from_slice(&root.to_le_bytes());
        assert!(parse(&circle).unwrap_err().to_string().contains("room for"));
    }

    proptest::proptest! {
        #[test]
        fn damaged_hives_never_panic(at in 0usize..12_000, byte in proptest::num::u8::ANY) {
            let mut file = build::hive(&sample());
            let at = at % file.len();
            file[at] = byte;
            build::seal(&mut file);
            let _ = parse(&file);
            let _ = parse(&file[..at]);
        }
    }
}
