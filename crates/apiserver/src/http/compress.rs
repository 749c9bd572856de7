//! Compression of large answers, for clients that accept it (apiserver/pkg/endpoints/handlers/responsewriters).

use super::respond::{self, Body};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::io::Write;

/// Smaller answers are not worth it (`defaultGzipThresholdBytes`).
const THRESHOLD: u64 = 128 * 1024;

/// Compresses an answer that is there as a whole, large, and wanted so; a stream stays as it is.
pub async fn compress(headers: &HeaderMap, response: Response<Body>) -> Response<Body> {
    let large = response.body().size_hint().exact().is_some_and(|size| size > THRESHOLD);
    if !large || !accepts(headers) || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(collected) = body.collect().await else { return respond::text(500, "the answer could not be put together") };
    let bytes = collected.to_bytes();
    let bytes = match gzip(&bytes) {
        Ok(packed) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
            parts.headers.remove(CONTENT_LENGTH);
            Bytes::from(packed)
        }
        Err(_) => bytes,
    };
    Response::from_parts(parts, respond::full(bytes))
}

fn accepts(headers: &HeaderMap) -> bool {
    let clauses = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    clauses.map(|clause| clause.split(';').next().unwrap_or_default().trim()).any(|encoding| encoding == "gzip")
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    async fn sent(accept: &str, size: usize) -> (Option<HeaderValue>, Vec<u8>) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, accept.parse().unwrap());
        let response = compress(&headers, respond::text(200, "x".repeat(size))).await;
        let encoding = response.headers().get(CONTENT_ENCODING).cloned();
        (encoding, response.into_body().collect().await.unwrap().to_bytes().to_vec())
    }

    #[tokio::test]
    async fn only_large_answers_to_willing_clients_are_packed() {
        let size = 200_000;
        let (encoding, body) = sent("br;q=1.0, gzip", size).await;
        assert_eq!(encoding.unwrap(), "gzip");
        let mut plain = String::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut plain).unwrap();
        assert_eq!(plain.len(), size);
        assert!(body.len() < size / 10);
        assert!(sent("gzip", 1000).await.0.is_none());
        assert!(sent("identity", size).await.0.is_none());
    }
}
