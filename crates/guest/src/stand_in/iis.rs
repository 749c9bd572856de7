//! Stand-in of IIS: an HTTP/1.1 server on IIS's port whose pages say that it is not IIS.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, SERVER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use listen::{CancellationToken, Limits, TaskTracker};
use tokio::net::TcpStream;

use super::drives::Drives;
use super::pages::{self, Asked, Page, Product};
use super::{Options, StandIn, fetch, stop_signal};
use crate::Resolver;

/// Largest file that PUT takes.
const MAX_UPLOAD: usize = 16 << 20;
/// How long requests under way may take after the signal to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Connections at once. Idle ones end after 120 seconds, as with IIS.
const LIMITS: Limits = Limits::new(4096, 4096);

struct Site {
    hostname: String,
    env: Vec<(String, String)>,
    drives: Drives,
    resolver: Resolver,
    product: Product,
    asked: Asked,
}

/// Serves until asked to stop.
pub(crate) async fn serve(options: Options, port: u16, root: PathBuf) -> Result<()> {
    let product = if options.program == StandIn::Aspnet { Product::Aspnet } else { Product::Iis };
    let hostname = hostname(&options.env);
    let hosts = root.join("c/Windows/System32/drivers/etc/hosts");
    let resolver = Resolver::new(options.dns, Some(hosts));
    let asked = Asked::of(&options.env)?;
    let site = Arc::new(Site { hostname, env: options.env, drives: Drives::new(root), resolver, product, asked });
    let listener = super::listen(port).await?;
    println!("#Software: Microsoft Internet Information Services 10.0 (Mullion stand-in)");
    println!("#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query s-port cs-username c-ip cs(User-Agent) sc-status time-taken");
    let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let stopped = shutdown.clone();
    let serve = move |stream: TcpStream, client, place| {
        let server = stream.local_addr().unwrap_or(client);
        let (site, shutdown) = (Arc::clone(&site), shutdown.clone());
        let service = move |request| {
            let site = Arc::clone(&site);
            async move { answer(&site, request, client, server).await }
        };
        async move {
            // A client that goes away in the middle is its own affair.
            let _ = listen::serve_plain(stream, &LIMITS, place, shutdown, service).await;
        }
    };
    let signal = tokio::select! {
        signal = stop_signal() => signal?,
        never = listen::accept(listener, &LIMITS, &tasks, serve) => match never {},
    };
    println!("{} stand-in: {signal}: the service is stopping", now());
    stopped.cancel();
    tasks.close();
    let _ = tokio::time::timeout(GRACE, tasks.wait()).await;
    println!("{} stand-in: the service has stopped", now());
    Ok(())
}

fn hostname(env: &[(String, String)]) -> String {
    let of_env = env.iter().find(|(name, _)| name.eq_ignore_ascii_case("COMPUTERNAME")).map(|(_, value)| value.to_lowercase());
    let of_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    of_env.or(of_kernel).unwrap_or_else(|| "localhost".to_owned())
}

async fn answer(site: &Site, request: Request<Incoming>, client: SocketAddr, server: SocketAddr) -> Response<Full<Bytes>> {
    let began = Instant::now();
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let query = parts.uri.query().unwrap_or("");
    let page = match Limited::new(body, MAX_UPLOAD).collect().await {
        Ok(body) => route(site, &parts, &body.to_bytes(), client, server).await,
        Err(error) => Page::text(StatusCode::PAYLOAD_TOO_LARGE, format!("{error}\n")),
    };
    let agent = parts.headers.get("User-Agent").and_then(|agent| agent.to_str().ok()).unwrap_or("-").replace(' ', "+");
    println!(
        "{} {} {} {path} {} {} - {} {agent} {} {}",
        now(),
        server.ip().to_canonical(),
        parts.method,
        if query.is_empty() { "-" } else { query },
        server.port(),
        client.ip().to_canonical(),
        page.status.as_u16(),
        began.elapsed().as_millis()
    );
    let body = if parts.method == Method::HEAD { Bytes::new() } else { page.body };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(SERVER, HeaderValue::from_static("Microsoft-IIS/10.0"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert("X-Powered-By", HeaderValue::from_static("Mullion stand-in"));
    if page.status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

async fn route(site: &Site, parts: &http::request::Parts, body: &[u8], client: SocketAddr, server: SocketAddr) -> Page {
    let path = parts.uri.path();
    if site.asked.files
        && let Some(file) = path.strip_prefix("/files/")
    {
        return pages::files(&site.drives, &parts.method, file, body);
    }
    if parts.method != Method::GET && parts.method != Method::HEAD {
        return pages::method_not_allowed();
    }
    match path {
        "/hostname" => Page::text(StatusCode::OK, format!("{}\n", site.hostname)),
        "/env" if site.asked.env => pages::environment(&site.env, &parts.headers),
        "/headers" => {
            let ends = [client, server].map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()).to_string());
            pages::headers(&parts.headers, &ends[0], &ends[1])
        }
        "/fetch" if site.asked.fetch => fetch_page(site, parts.uri.query().unwrap_or("")).await,
        path => match pages::site(&site.drives, path) {
            Some(page) => page,
            None if path == "/" => pages::start(&site.hostname, site.product),
            None => pages::off(path).unwrap_or_else(pages::not_found),
        },
    }
}

async fn fetch_page(site: &Site, query: &str) -> Page {
    let url = query.split('&').find_map(|pair| pair.strip_prefix("url="));
    let Some(url) = url else { return Page::text(StatusCode::BAD_REQUEST, "usage: /fetch?url=http://HOST[:PORT]/PATH\n") };
    let url = percent_encoding::percent_decode_str(url).decode_utf8_lossy();
    match fetch::fetch(&url, &site.resolver).await {
        Ok(fetched) => {
            let head = format!("status: {}\nremote: {}\n\n", fetched.status, fetched.remote);
            Page::text(StatusCode::OK, [head.as_bytes(), &fetched.body].concat())
        }
        Err(error) => Page::text(StatusCode::BAD_GATEWAY, format!("{error:#}\n")),
    }
}

/// Date and time as IIS logs them: UTC, whole seconds.
fn now() -> impl std::fmt::Display {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S").to_string()
}
