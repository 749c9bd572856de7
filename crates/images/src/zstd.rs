//! Zstandard decoder of layers: frames one after another, some of them to be skipped (zstd:chunked keeps its table of contents in one).

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The content of all frames. A frame that asks for a window of more than 128 MiB is an error.
pub(super) struct Decoder<R> {
    source: BufReader<R>,
    frame: FrameDecoder,
    is_inside: bool,
}

impl<R: Read> Decoder<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source: BufReader::new(source), frame: FrameDecoder::new(), is_inside: false }
    }

    /// Goes to the next frame with content; false at the end.
    fn enter(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid(error)),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.frame.can_collect() > 0 || buffer.is_empty() {
                return self.frame.read(buffer);
            }
            if self.is_inside && !self.frame.is_finished() {
                self.frame.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1)).map_err(invalid)?;
            } else {
                self.is_inside = self.enter()?;
                if !self.is_inside {
                    return Ok(0);
                }
            }
        }
    }
}

fn invalid(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn decode(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Decoder::new(bytes).read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn frames_follow_one_another_and_some_are_skipped() {
        let text = b"layer ".repeat(100_000);
        let frame = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let skipped = [&0x184D_2A50_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"index"].concat();
        assert_eq!(decode(&frame).unwrap(), text);
        let all = [&skipped[..], &frame, &skipped, &frame].concat();
        assert_eq!(decode(&all).unwrap(), [&text[..], &text].concat());
        assert_eq!(decode(&[]).unwrap(), b"");
    }

    #[test]
    fn a_frame_that_ends_early_or_is_none_is_an_error() {
        let frame = compress_to_vec(&b"layer ".repeat(1000)[..], CompressionLevel::Fastest);
        for broken in [&frame[..frame.len() - 6], &frame[..3], b"not zstd", &[&frame[..], b"PK"].concat()] {
            decode(broken).unwrap_err();
        }
        decode(&[&0x184D_2A50_u32.to_le_bytes()[..], &500_u32.to_le_bytes(), b"index"].concat()).unwrap_err();
    }
}
