//! Redirects and links in pages that lead to the same backend: they are made to lead through the proxy.

use crate::http::respond::{self, Body};
use crate::status::ApiError;
use flate2::Compression;
use flate2::read::{DeflateDecoder, GzDecoder};
use flate2::write::{DeflateEncoder, GzEncoder};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use std::fmt::Display;
use std::io::{Error, ErrorKind, Read, Write};
use streaming::links;

/// Largest page whose links are rewritten, unpacked.
const LARGEST_PAGE: usize = 16 << 20;

/// Where a link of a page leads through the proxy: a path of the backend, or a URL of one of its `hosts`. `None` for every other link.
pub fn through(link: &str, hosts: &[String], prefix: &str) -> Option<String> {
    let after_scheme = ["http://", "https://", "//"].iter().find_map(|scheme| link.strip_prefix(scheme));
    let path = match after_scheme {
        Some(rest) => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (host, path) = rest.split_at(end);
            (!host.is_empty() && hosts.iter().any(|own| own == host)).then_some(path)?
        }
        None => link,
    };
    let relative = !path.starts_with('/');
    let known = path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
    if relative || (known && after_scheme.is_none()) {
        return None;
    }
    Some(if known { path.to_owned() } else { format!("{prefix}{path}") })
}

/// An answer whose links lead through the proxy, if it is a page in an encoding that is known.
pub async fn rewrite(response: Response<Body>, hosts: [String; 2], prefix: String) -> Result<Response<Body>, ApiError> {
    let Some(encoding) = page_encoding(response.headers()) else { return Ok(response) };
    let (mut parts, body) = response.into_parts();
    let page = read(body).await?;
    let page = encoding.rewrite(&page, &hosts, &links::escape(&prefix))?;
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(parts, respond::full(page)))
}

fn unreachable(why: impl Display) -> ApiError {
    ApiError::new(502, "", format!("error trying to reach service: {why}"))
}

fn too_large() -> ApiError {
    unreachable(format!("the page is larger than {LARGEST_PAGE} bytes"))
}

async fn read(mut body: Body) -> Result<Vec<u8>, ApiError> {
    let mut page = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreachable(format!("reading the page: {error}")))?;
        let data = frame.into_data().unwrap_or_default();
        if page.len() + data.len() > LARGEST_PAGE {
            return Err(too_large());
        }
        page.extend_from_slice(&data);
    }
    Ok(page)
}

/// How a page is packed; `None` for what is no page, or packed in a way that is not known.
fn page_encoding(headers: &HeaderMap) -> Option<Encoding> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_page = header(CONTENT_TYPE).split(';').next().is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("text/html"));
    Encoding::of(header(CONTENT_ENCODING)).filter(|_| is_page)
}

#[derive(Clone, Copy)]
enum Encoding {
    Identity,
    Gzip,
    Deflate,
}

impl Encoding {
    fn of(header: &str) -> Option<Self> {
        match header {
            "" => Some(Self::Identity),
            "gzip" => Some(Self::Gzip),
            "deflate" => Some(Self::Deflate),
            _ => None,
        }
    }

    fn rewrite(self, page: &[u8], hosts: &[String], prefix: &str) -> Result<Vec<u8>, ApiError> {
        let page = self.unpack(page).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge => too_large(),
            _ => unreachable(format!("unpacking the page: {error}")),
        })?;
        let page = links::rewrite(&page, |link| through(link, hosts, prefix));
        self.pack(&page).map_err(unreachable)
    }

    fn unpack(self, page: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        let limit = LARGEST_PAGE as u64 + 1;
        match self {
            Self::Identity => return Ok(page.to_vec()),
            Self::Gzip => GzDecoder::new(page).take(limit).read_to_end(&mut out)?,
            Self::Deflate => DeflateDecoder::new(page).take(limit).read_to_end(&mut out)?,
        };
        if out.len() > LARGEST_PAGE { Err(ErrorKind::FileTooLarge.into()) } else { Ok(out) }
    }

    fn pack(self, page: &[u8]) -> Result<Vec<u8>, Error> {
        match self {
            Self::Identity => Ok(page.to_vec()),
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(page)?;
                encoder.finish()
            }
            Self::Deflate => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(page)?;
                encoder.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::HeaderName;

    fn hosts() -> [String; 2] {
        ["10.0.0.1:80".to_owned(), "api:6443".to_owned()]
    }

    #[test]
    fn links_of_the_backend_lead_through_the_proxy() {
        for (link, wanted) in [
            ("/x", "/p/x"),
            ("/x/?q#f", "/p/x/?q#f"),
            ("/proxied", "/p/proxied"),
            ("http://10.0.0.1:80/x?y", "/p/x?y"),
            ("https://api:6443/x", "/p/x"),
            ("https://api:6443/p/x", "/p/x"),
            ("//10.0.0.1:80/x", "/p/x"),
        ] {
            assert_eq!(through(link, &hosts(), "/p").as_deref(), Some(wanted), "{link}");
        }
        for kept in ["relative", "", "?q", "//host/x", "https://elsewhere/x", "/p/x", "/p", "mailto:a", "http://10.0.0.1:80"] {
            assert_eq!(through(kept, &hosts(), "/p"), None, "{kept}");
        }
    }

    async fn answer(content_type: &str, encoding: &str, body: Vec<u8>) -> Result<(Response<()>, Vec<u8>), ApiError> {
        let length: HeaderName = CONTENT_LENGTH;
        let mut response = Response::builder().header(CONTENT_TYPE, content_type).header(length, body.len());
        if !encoding.is_empty() {
            response = response.header(CONTENT_ENCODING, encoding);
        }
        let (parts, body) = rewrite(response.body(respond::full(body)).unwrap(), hosts(), "/p".to_owned()).await?.into_parts();
        Ok((Response::from_parts(parts, ()), body.collect().await.unwrap().to_bytes().to_vec()))
    }

    #[tokio::test]
    async fn pages_are_rewritten_in_their_encoding() {
        const PAGE: &[u8] = b"<a href=\"/x\">/x</a>";
        const WANTED: &[u8] = b"<a href=\"/p/x\">/x</a>";
        for (name, encoding) in [("", Encoding::Identity), ("gzip", Encoding::Gzip), ("deflate", Encoding::Deflate)] {
            let (head, page) = answer("text/html; charset=utf-8", name, encoding.pack(PAGE).unwrap()).await.unwrap();
            assert_eq!(encoding.unpack(&page).unwrap(), WANTED, "{name}");
            assert!(head.headers().get(CONTENT_LENGTH).is_none());
        }
        for (content_type, encoding) in [("text/plain", ""), ("text/html", "br")] {
            let (head, page) = answer(content_type, encoding, PAGE.to_vec()).await.unwrap();
            assert_eq!((page.as_slice(), head.headers().contains_key(CONTENT_LENGTH)), (PAGE, true), "{content_type} {encoding}");
        }
    }

    #[tokio::test]
    async fn a_page_that_unpacks_to_too_much_is_refused() {
        let bomb = Encoding::Gzip.pack(&vec![b' '; LARGEST_PAGE + 1]).unwrap();
        assert_eq!(answer("text/html", "gzip", bomb).await.unwrap_err().code, 502);
        assert_eq!(answer("text/html", "gzip", b"no gzip".to_vec()).await.unwrap_err().code, 502);
    }
}
