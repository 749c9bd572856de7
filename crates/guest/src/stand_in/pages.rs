//! Responses of the stand-in of IIS, as functions of the request.

use std::io;
use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use percent_encoding::percent_decode_str;

use super::drives::{DriveError, Drives};

/// An answer before it is put on the wire.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl Page {
    pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    fn html(status: StatusCode, title: &str, text: &str) -> Self {
        let body = format!(
            "<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n<body><h1>{title}</h1>\n<p>{text}</p></body></html>\n",
            title = escape(title)
        );
        Self { status, content_type: "text/html", body: body.into() }
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// What the web server stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    Iis,
    Aspnet,
}

/// Variable of a container that switches pages on which show or change the inside of its pod.
pub(crate) const PAGES: &str = "MULLION_STAND_IN_PAGES";

/// The pages that the container asks for: without being asked, the stand-in serves nobody the pod's environment (often its
/// secrets), its files, or the network behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) env: bool,
    pub(crate) fetch: bool,
    pub(crate) files: bool,
}

impl Asked {
    /// Reads [`PAGES`], names separated by commas. Names of variables have no case on Windows.
    pub(crate) fn of(env: &[(String, String)]) -> anyhow::Result<Self> {
        let mut asked = Self::default();
        let value = env.iter().find(|(name, _)| name.eq_ignore_ascii_case(PAGES)).map_or("", |(_, value)| value);
        for page in value.split(',').map(str::trim).filter(|page| !page.is_empty()) {
            match page {
                "env" => asked.env = true,
                "fetch" => asked.fetch = true,
                "files" => asked.files = true,
                other => anyhow::bail!("cannot read {PAGES}: there is no page {other:?}; use env, fetch and files, separated by commas"),
            }
        }
        Ok(asked)
    }
}

/// Says how a page is switched on, if `path` is one that has to be.
pub(crate) fn off(path: &str) -> Option<Page> {
    let page = match path {
        "/env" => "env",
        "/fetch" => "fetch",
        path if path.starts_with("/files/") => "files",
        _ => return None,
    };
    let text = format!("{path} is switched off; set the variable {PAGES} of the container to a list that has {page}\n");
    Some(Page::text(StatusCode::NOT_FOUND, text))
}

/// The start page, when the site has none of its own.
pub(crate) fn start(hostname: &str, product: Product) -> Page {
    let (title, name) = match product {
        Product::Iis => ("IIS Windows Server (Mullion stand-in)", "Internet Information Services"),
        Product::Aspnet => ("ASP.NET on IIS (Mullion stand-in)", "an ASP.NET image"),
    };
    let text = format!(
        "This is Mullion's stand-in of {name}, running in pod <b>{}</b>.<br>It answers where the real server would and serves \
         the files of C:\\inetpub\\wwwroot, but it is not IIS: no ASP.NET, no application pools, no Windows.",
        escape(hostname)
    );
    Page::html(StatusCode::OK, title, &text)
}

pub(crate) fn not_found() -> Page {
    Page::html(StatusCode::NOT_FOUND, "404 - File or directory not found.", "The resource does not exist in this stand-in of IIS.")
}

pub(crate) fn method_not_allowed() -> Page {
    Page::html(StatusCode::METHOD_NOT_ALLOWED, "405 - Method not allowed.", "This stand-in of IIS reads with GET and HEAD.")
}

/// The environment: JSON when that is asked for, else a line each.
pub(crate) fn environment(env: &[(String, String)], headers: &HeaderMap) -> Page {
    let json = headers.get("Accept").and_then(|value| value.to_str().ok()).is_some_and(|accept| accept.contains("application/json"));
    if json {
        let map: serde_json::Map<String, serde_json::Value> = env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        let body = serde_json::to_vec(&map).unwrap_or_default();
        return Page { status: StatusCode::OK, content_type: "application/json", body: body.into() };
    }
    let lines: String = env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    Page::text(StatusCode::OK, lines)
}

/// The request's headers as they arrived, behind the addresses of both ends.
pub(crate) fn headers(headers: &HeaderMap, client: &str, server: &str) -> Page {
    let mut out = format!("client: {client}\nserver: {server}\n");
    for (name, value) in headers {
        out.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    }
    Page::text(StatusCode::OK, out)
}

/// `/files/C:/etc/foo/x`: reads with GET, writes with PUT, lists directories.
pub(crate) fn files(drives: &Drives, method: &Method, path: &str, body: &[u8]) -> Page {
    let text = percent_decode_str(path).decode_utf8_lossy();
    let file = match drives.path(&text) {
        Ok(file) => file,
        Err(error @ DriveError::NotAPath(_)) => return Page::text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        Err(error @ DriveError::NoDrive(_)) => return Page::text(StatusCode::NOT_FOUND, format!("{error}\n")),
    };
    let result = match *method {
        Method::GET | Method::HEAD if file.is_dir() => list(&file).map(|lines| Page::text(StatusCode::OK, lines)),
        Method::GET | Method::HEAD => std::fs::read(&file).map(|content| Page::text(StatusCode::OK, content)),
        Method::PUT => write(&file, body).map(|made| Page::text(if made { StatusCode::CREATED } else { StatusCode::OK }, "")),
        Method::DELETE => std::fs::remove_file(&file).map(|()| Page::text(StatusCode::NO_CONTENT, "")),
        _ => return method_not_allowed(),
    };
    result.unwrap_or_else(|error| {
        let status = match error.kind() {
            io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::IsADirectory => StatusCode::FORBIDDEN,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Page::text(status, format!("{text}: {error}\n"))
    })
}

fn list(dir: &Path) -> io::Result<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let slash = if entry.path().is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}\n", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.concat())
}

/// Returns whether the file is new.
fn write(file: &Path, body: &[u8]) -> io::Result<bool> {
    let new = !file.exists();
    std::fs::write(file, body).map(|()| new)
}

/// A file of the site, `C:\inetpub\wwwroot`; for a directory its default document.
pub(crate) fn site(drives: &Drives, path: &str) -> Option<Page> {
    let path = percent_decode_str(path).decode_utf8_lossy();
    let file = drives.path(&format!("C:/inetpub/wwwroot/{path}")).ok()?;
    let file = if file.is_dir() {
        let documents = ["Default.htm", "Default.html", "index.htm", "index.html", "iisstart.htm"];
        let found = documents.iter().find_map(|name| drives.path(&format!("C:/inetpub/wwwroot/{path}/{name}")).ok().filter(|file| file.is_file()));
        found?
    } else {
        file
    };
    let body = std::fs::read(&file).ok()?;
    let extension = file.extension().map(|extension| extension.to_string_lossy().to_lowercase()).unwrap_or_default();
    let content_type = match extension.as_str() {
        "htm" | "html" => "text/html",
        "css" => "text/css",
        "js" => "application/javascript",
        "json" => "application/json",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "svg" => "image/svg+xml",
        "txt" => "text/plain",
        _ => "application/octet-stream",
    };
    Some(Page { status: StatusCode::OK, content_type, body: body.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_written_in_the_drive() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("c/etc/foo")).unwrap();
        let drives = Drives::new(dir.path());
        let ask = |method: Method, path: &str, body: &[u8]| files(&drives, &method, path, body);
        assert_eq!(ask(Method::GET, "C:/etc/foo/x", b"").status, StatusCode::NOT_FOUND);
        assert_eq!(ask(Method::PUT, "C:/etc/foo/x", b"one").status, StatusCode::CREATED);
        assert_eq!(ask(Method::PUT, "c:/ETC/foo/X", b"two").status, StatusCode::OK);
        assert_eq!(ask(Method::GET, "C:%5Cetc%5Cfoo%5Cx", b"").body, "two");
        assert_eq!(ask(Method::GET, "C:/etc", b"").body, "foo/\n");
        assert_eq!(ask(Method::GET, "C:/../x", b"").status, StatusCode::BAD_REQUEST);
        assert_eq!(ask(Method::GET, "E:/x", b"").status, StatusCode::NOT_FOUND);
        assert_eq!(ask(Method::PUT, "C:/etc", b"").status, StatusCode::FORBIDDEN);
        assert_eq!(ask(Method::POST, "C:/etc", b"").status, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn pages_are_asked_for_by_name() {
        let asked = |value: &str| Asked::of(&[("mullion_stand_in_pages".to_owned(), value.to_owned())]);
        assert_eq!(Asked::of(&[]).unwrap(), Asked::default());
        assert_eq!(asked(" env, files,").unwrap(), Asked { env: true, fetch: false, files: true });
        let error = asked("env,all").unwrap_err().to_string();
        assert!(error.contains(PAGES) && error.contains("\"all\"") && error.contains("env, fetch and files"), "{error}");
    }

    #[test]
    fn the_site_serves_its_own_pages() {
        let dir = tempfile::tempdir().unwrap();
        let site_dir = dir.path().join("c/inetpub/wwwroot");
        std::fs::create_dir_all(&site_dir).unwrap();
        let drives = Drives::new(dir.path());
        assert_eq!(site(&drives, "/"), None);
        std::fs::write(site_dir.join("index.html"), "mine").unwrap();
        let page = site(&drives, "/").unwrap();
        assert_eq!((page.body.as_ref(), page.content_type), (b"mine".as_slice(), "text/html"));
        assert_eq!(site(&drives, "/../../etc"), None);
    }

    #[test]
    fn start_page_says_that_it_is_a_stand_in() {
        let page = start("a<b>", Product::Iis);
        let text = String::from_utf8(page.body.to_vec()).unwrap();
        assert!(text.contains("IIS") && text.contains("Mullion") && text.contains("stand-in") && text.contains("a&lt;b&gt;"));
    }
}
