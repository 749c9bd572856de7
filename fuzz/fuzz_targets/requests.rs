//! Requests: any method, path, query and body is answered, failures in upstream's shape. An input has a request line (method, target), a
//! content type and a body, one a line.

#![no_main]

mod server;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut lines = data.splitn(3, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let (Ok(request), Ok(content_type)) = (std::str::from_utf8(line()), std::str::from_utf8(line())) else { return };
    let Some((method, target)) = request.split_once(' ') else { return };
    if target.starts_with('/') {
        server::ask(method, target, content_type, line());
    }
});
