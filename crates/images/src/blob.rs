//! Blobs: digests and compression.

use std::fs::File;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

use sha2::{Digest, Sha256};

use crate::manifest::LayerBlob;
use crate::tarball::TarError;
use crate::{ImageError, zstd};

/// Hashes what passes.
pub struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R> Hashing<R> {
    pub(crate) fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    pub(crate) fn digest(self) -> String {
        format!("sha256:{:x}", self.hash.finalize())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// A layer that is being read: its digest is compared at the end.
pub struct Checked<R> {
    reader: Hashing<R>,
    layer: LayerBlob,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl Checked<Box<dyn Read>> {
    /// Reads a blob as it is stored, compressed or not.
    pub(crate) fn new(mut blob: impl BufRead + 'static, layer: &LayerBlob) -> io::Result<Self> {
        let compression = Compression::of(blob.fill_buf()?);
        Ok(Self { reader: Hashing::new(compression.reader(blob)?), layer: layer.clone() })
    }
}

impl<R: Read> Checked<R> {
    /// Reads what padding is left and compares the uncompressed digest. At most `limit` bytes of padding.
    ///
    /// # Errors
    /// [`ImageError::Digest`] when the content is not what the configuration names.
    pub fn finish(mut self, limit: u64) -> Result<(), ImageError> {
        let rest = io::copy(&mut (&mut self.reader).take(limit + 1), &mut io::sink());
        match rest {
            Ok(rest) if rest <= limit => check(&self.layer.member, &self.layer.diff_id, self.reader.digest()),
            Ok(_) => Err(TarError::TooLarge { limit, unit: "bytes" }.into()),
            Err(source) => Err(TarError::Damaged(source).into()),
        }
    }
}

/// Refuses content that has not the digest it is named by.
pub(crate) fn check(what: &str, expected: &str, actual: String) -> Result<(), ImageError> {
    if expected == actual { Ok(()) } else { Err(ImageError::Digest { what: what.to_owned(), expected: expected.to_owned(), actual }) }
}

/// `sha256:…` of some bytes.
pub fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Compression of a blob, by its first bytes: media types are wrong more often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            _ => Self::None,
        }
    }

    /// The compression of a file, which is then at its beginning again.
    pub(crate) fn sniff(file: &mut File) -> io::Result<Self> {
        let mut head = [0u8; 4];
        let count = file.read(&mut head)?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self::of(&head[..count]))
    }

    pub(crate) fn reader<'a>(self, reader: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::None => Box::new(reader),
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(reader)),
            Self::Zstd => Box::new(zstd::Decoder::new(reader)),
        })
    }
}
