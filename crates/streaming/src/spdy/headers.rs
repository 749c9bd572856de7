//! SPDY header blocks: names and values, compressed with one zlib stream a direction for the life of a connection
//! (SPDY Protocol - Draft 3.1, §2.6.10).

use bytes::{Buf, Bytes};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Most bytes of one block once decompressed.
const LARGEST: usize = 16 << 10;
/// Most headers of one block.
const MOST: usize = 64;

/// Names that the dictionary begins with, each after its length.
const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// What the dictionary ends with.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found\
500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,\
text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

fn dictionary() -> Vec<u8> {
    let mut out = Vec::with_capacity(1423);
    for word in WORDS {
        out.extend_from_slice(&(word.len() as u32).to_be_bytes());
        out.extend_from_slice(word.as_bytes());
    }
    out.extend_from_slice(TAIL.as_bytes());
    out
}

/// A header block that cannot be read. The connection cannot go on: the zlib stream is lost.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// Not a zlib stream, or with another dictionary.
    #[error("a SPDY header block cannot be decompressed")]
    Compression(#[source] std::io::Error),
    /// More than anybody needs.
    #[error("a SPDY header block has more than {MOST} headers or {LARGEST} bytes")]
    Large,
    /// Not names and values.
    #[error("a SPDY header block is malformed")]
    Malformed,
}

/// Names, lower case, and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Headers from pairs; names become lower case.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect())
    }

    /// The value of a name (lower case), "" when there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    fn block(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&(self.0.len() as u32).to_be_bytes());
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            out.extend_from_slice(&(text.len() as u32).to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    fn parse(mut block: Bytes) -> Result<Self, HeaderError> {
        let count = block.try_get_u32().map_err(|_| HeaderError::Malformed)?;
        if count as usize > MOST {
            return Err(HeaderError::Large);
        }
        let mut text = || {
            let length = block.try_get_u32().map_err(|_| HeaderError::Malformed)? as usize;
            if length > block.len() {
                return Err(HeaderError::Malformed);
            }
            String::from_utf8(block.split_to(length).to_vec()).map_err(|_| HeaderError::Malformed)
        };
        let mut out = Vec::with_capacity(count as usize);
        for _ in 0..count {
            out.push((text()?.to_ascii_lowercase(), text()?));
        }
        Ok(Self(out))
    }
}

/// Compresses blocks in the order in which they go out.
#[derive(Debug)]
pub(super) struct Compressor(Compress);

impl Compressor {
    pub(super) fn new() -> Self {
        // A small window: blocks are short, and every connection has one of these.
        let mut compress = Compress::new_with_window_bits(Compression::fast(), true, 11);
        compress.set_dictionary(&dictionary()).expect("a fresh zlib stream takes a dictionary");
        Self(compress)
    }

    pub(super) fn compress(&mut self, headers: &Headers) -> Bytes {
        let block = headers.block();
        let (start, mut out) = (self.0.total_in(), Vec::with_capacity(block.len() + 64));
        loop {
            let done = (self.0.total_in() - start) as usize;
            // Fails only for a stream that has ended, and this one never does.
            let _ = self.0.compress_vec(&block[done..], &mut out, FlushCompress::Sync);
            if (self.0.total_in() - start) as usize == block.len() && out.len() < out.capacity() {
                return out.into();
            }
            out.reserve(256);
        }
    }
}

/// Decompresses blocks in the order in which they came.
#[derive(Debug)]
pub(super) struct Decompressor(Decompress);

impl Decompressor {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    pub(super) fn decompress(&mut self, block: &[u8]) -> Result<Headers, HeaderError> {
        let (start, mut out) = (self.0.total_in(), Vec::with_capacity(1024));
        loop {
            let done = (self.0.total_in() - start) as usize;
            let before = out.len();
            match self.0.decompress_vec(&block[done..], &mut out, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => return Err(HeaderError::Malformed),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&dictionary()).map_err(|error| HeaderError::Compression(error.into()))?;
                    continue;
                }
                Err(error) => return Err(HeaderError::Compression(error.into())),
            }
            let done = (self.0.total_in() - start) as usize;
            if done == block.len() && out.len() < out.capacity() {
                return Headers::parse(out.into());
            }
            if out.len() >= LARGEST {
                return Err(HeaderError::Large);
            }
            if out.len() == out.capacity() {
                out.reserve(1024);
            } else if out.len() == before {
                return Err(HeaderError::Malformed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dictionary_is_that_of_the_draft() {
        let (mut a, mut b) = (1u32, 0u32);
        for byte in dictionary() {
            a = (a + u32::from(byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!(dictionary().len(), 1423);
        assert_eq!(b << 16 | a, 0xe3c6_a7c2, "Adler-32 that zlib streams of SPDY/3 name");
    }

    proptest! {
        #[test]
        fn blocks_follow_one_another(blocks in proptest::collection::vec(proptest::collection::vec(("[a-z-]{1,20}", ".{0,200}"), 0..10), 1..6)) {
            let (mut out, mut back) = (Compressor::new(), Decompressor::new());
            for block in blocks {
                let headers = Headers(block);
                prop_assert_eq!(back.decompress(&out.compress(&headers)).unwrap(), headers);
            }
        }

        #[test]
        fn foreign_blocks_are_refused_or_read(block in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Decompressor::new().decompress(&block);
            let _ = Headers::parse(block.into());
        }
    }

    #[test]
    fn bombs_are_refused() {
        let large = "x".repeat(4 << 20);
        let block = Compressor::new().compress(&Headers::new([("a", large.as_str())]));
        assert!(block.len() < 64 << 10);
        assert!(matches!(Decompressor::new().decompress(&block), Err(HeaderError::Large)));
        let many: Vec<_> = (0..100).map(|_| ("a", "b")).collect();
        let block = Compressor::new().compress(&Headers::new(many));
        assert!(matches!(Decompressor::new().decompress(&block), Err(HeaderError::Large)));
    }

    #[test]
    fn a_stream_that_ends_is_refused() {
        let mut compress = Compress::new(Compression::fast(), true);
        compress.set_dictionary(&dictionary()).unwrap();
        let mut block = Vec::with_capacity(100);
        compress.compress_vec(&[0, 0, 0, 0], &mut block, FlushCompress::Finish).unwrap();
        assert!(matches!(Decompressor::new().decompress(&block), Err(HeaderError::Malformed)));
    }
}
