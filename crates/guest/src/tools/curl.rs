//! `curl` over HTTP and HTTPS: the options that scripts and probes use, curl's exit codes and messages.

mod http;
mod options;
mod tls;

use super::Streams;
use options::{Options, Target};

/// What curl exits with.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let options = match Options::parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let _ = writeln!(streams.out, "{}", options::HELP);
            return 0;
        }
        Err(failure) => {
            let _ = writeln!(streams.err, "curl: {}\ncurl: try 'curl --help' for more information", failure.message);
            return failure.code;
        }
    };
    let mut code = 0;
    for url in &options.urls {
        if let Err(failure) = transfer(&options, url, streams) {
            if !options.silent || options.show_error {
                let _ = writeln!(streams.err, "curl: ({}) {}", failure.code, failure.message);
            }
            code = failure.code;
        }
    }
    code
}

fn transfer(options: &Options, url: &str, streams: &mut Streams<'_>) -> Result<(), Failure> {
    let body = match options.body.as_deref() {
        Some("@-") => {
            let mut body = Vec::new();
            streams.input.read_to_end(&mut body).map_err(|error| Failure::new(26, format!("Failed to read the input: {error}")))?;
            Some(body)
        }
        Some(text) => Some(match text.strip_prefix('@') {
            Some(file) => std::fs::read(file).map_err(|error| Failure::new(26, format!("Failed to open {file}: {error}")))?,
            None => text.as_bytes().to_vec(),
        }),
        None => None,
    };
    let answer = http::exchange(options, url, body.as_deref(), streams.err)?;
    if options.fail && answer.status >= 400 {
        return Err(Failure::new(22, format!("The requested URL returned error: {}", answer.status)));
    }
    let mut content = Vec::new();
    if options.include || options.head {
        content.extend_from_slice(answer.head.as_bytes());
    }
    content.extend_from_slice(&answer.body);
    let broken = |error: std::io::Error| Failure::new(23, format!("Failed writing received data to disk/application: {error}"));
    match options.target(&answer.url)? {
        Target::File(file) => std::fs::write(file, &content).map_err(broken)?,
        Target::Nowhere => {}
        Target::Output => streams.out.write_all(&content).and_then(|()| streams.out.flush()).map_err(broken)?,
    }
    if let Some(format) = &options.write_out {
        let text = format
            .replace("%{http_code}", &format!("{:03}", answer.status))
            .replace("%{response_code}", &format!("{:03}", answer.status))
            .replace("%{remote_ip}", &answer.remote.ip().to_string())
            .replace("%{remote_port}", &answer.remote.port().to_string())
            .replace("%{size_download}", &answer.body.len().to_string())
            .replace("%{time_total}", &format!("{:.6}", answer.took.as_secs_f64()))
            .replace("%{url_effective}", &answer.url)
            .replace("\\n", "\n")
            .replace("\\t", "\t");
        streams.out.write_all(text.as_bytes()).map_err(broken)?;
    }
    // What came before it broke off is shown, as curl does.
    answer.broken.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// Serves the answers one after the other; returns the address and, at the end, what was asked.
    fn serve(answers: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut text, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    text.push_str(&line);
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                asked.push(text + &String::from_utf8(body).unwrap());
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        (address, served)
    }

    pub(super) fn curl(args: &[&str]) -> (u8, String, String) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = main(&args, &mut Streams { input: &mut &b"from input"[..], out: &mut out, err: &mut err });
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn answers_of_every_framing_are_read() {
        let (address, served) = serve(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nuntil the end",
            "HTTP/1.1 302 Found\r\nLocation: /there\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nthis",
            "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
            "",
        ]);
        let url = format!("http://{address}/a?b=c");
        assert_eq!(curl(&["-s", &url]).1, "hello");
        assert_eq!(curl(&["-s", &address]).1, "hello world");
        assert_eq!(curl(&["-sS", "-o", "NUL", "-w", "%{http_code}\\n", &url]).1, "200\n");
        assert_eq!(curl(&["-sL", &url]).1, "this");
        let (code, out, err) = curl(&["-fsS", &url]);
        assert_eq!((code, out.as_str(), err.as_str()), (22, "", "curl: (22) The requested URL returned error: 404\n"));
        assert_eq!(curl(&["-s", "-d", "@-", "-H", "X-Y: z", &url]).1, "ok\r\n");
        let (code, out, _) = curl(&["-s", &url]);
        assert_eq!((code, out.as_str()), (18, "short"));
        assert_eq!(curl(&["-s", &url]).0, 52);
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("GET /a?b=c HTTP/1.1\r\n"), "{}", asked[0]);
        assert!(asked[4].starts_with("GET /there "), "{}", asked[4]);
        assert!(asked[6].starts_with("POST ") && asked[6].contains("X-Y: z\r\n") && asked[6].ends_with("\r\n\r\nfrom input"), "{}", asked[6]);
    }

    #[test]
    fn failures_have_curls_exit_codes() {
        for (args, code) in [
            (&["-s", "http://127.0.0.1:1/"][..], 7),
            (&["-s", "https://127.0.0.1:1/"], 7),
            (&["-s", "ftp://127.0.0.1/"], 1),
            (&["-s", "http://name.invalid/"], 6),
            (&["-s", "http://[::/"], 3),
            (&["--no-such"], 2),
            (&[], 2),
            (&["--help"], 0),
        ] {
            assert_eq!(curl(args).0, code, "{args:?}");
        }
    }
}
