//! Command line of `curl`.

use std::path::PathBuf;
use std::time::Duration;

use super::Failure;

pub(super) const HELP: &str = "Usage: curl [options...] <url>     (Mullion's: HTTP/1.1)
 -d, --data <data|@file|@->   POST this
 -f, --fail                   Fail without output on HTTP errors
 -H, --header <line>          Send this header
 -I, --head                   Show the headers only
 -i, --include                Show the headers too
 -k, --insecure               Do not check the server's certificate
 -L, --location               Follow redirects
 -m, --max-time <seconds>     Allow the whole transfer so long
     --cacert <file>          Trust the authorities of this file alone
     --connect-timeout <s>    Allow the connection so long
 -o, --output <file>          Write to a file
 -O, --remote-name            Write to a file named as in the URL
 -S, --show-error             Show errors in spite of -s
 -s, --silent                 Show neither progress nor errors
 -u, --user <user:password>   Send these
 -v, --verbose                Show both sides' headers
 -w, --write-out <format>     Show %{http_code}, %{remote_ip}, … afterwards
 -X, --request <method>       Use this method";

#[derive(Debug, Default)]
pub(super) struct Options {
    pub urls: Vec<String>,
    pub body: Option<String>,
    pub fail: bool,
    pub headers: Vec<String>,
    pub head: bool,
    pub include: bool,
    pub location: bool,
    pub max_time: Option<Duration>,
    pub connect_timeout: Option<Duration>,
    pub output: Option<String>,
    pub remote_name: bool,
    pub show_error: bool,
    pub silent: bool,
    pub user: Option<String>,
    pub verbose: bool,
    pub write_out: Option<String>,
    pub method: Option<String>,
    pub insecure: bool,
    /// A file with certificates.
    pub authorities: Option<String>,
}

/// Where a transfer goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Target {
    Output,
    File(PathBuf),
    Nowhere,
}

/// Long names of short options.
const LONG: &[(char, &str)] = &[
    ('A', "user-agent"),
    ('d', "data"),
    ('f', "fail"),
    ('H', "header"),
    ('h', "help"),
    ('I', "head"),
    ('i', "include"),
    ('k', "insecure"),
    ('L', "location"),
    ('m', "max-time"),
    ('o', "output"),
    ('O', "remote-name"),
    ('S', "show-error"),
    ('s', "silent"),
    ('u', "user"),
    ('v', "verbose"),
    ('w', "write-out"),
    ('X', "request"),
    ('4', "ipv4"),
];

impl Options {
    /// None: help was asked for.
    pub(super) fn parse(args: &[String]) -> Result<Option<Self>, Failure> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if let Some(long) = arg.strip_prefix("--") {
                let value = if options.wants_value(long)? { Some(args.next().ok_or_else(|| missing(arg))?.clone()) } else { None };
                if long == "help" {
                    return Ok(None);
                }
                options.set(long, value)?;
            } else if let Some(short) = arg.strip_prefix('-').filter(|short| !short.is_empty()) {
                for (at, letter) in short.char_indices() {
                    let long = LONG.iter().find(|(known, _)| *known == letter).map(|(_, long)| *long);
                    let long = long.ok_or_else(|| Failure::new(2, format!("option -{letter}: is unknown")))?;
                    if long == "help" {
                        return Ok(None);
                    }
                    if options.wants_value(long)? {
                        let rest = &short[at + letter.len_utf8()..];
                        let value = if rest.is_empty() { args.next().ok_or_else(|| missing(arg))?.clone() } else { rest.to_owned() };
                        options.set(long, Some(value))?;
                        break;
                    }
                    options.set(long, None)?;
                }
            } else {
                options.urls.push(arg.clone());
            }
        }
        if options.urls.is_empty() {
            return Err(Failure::new(2, "no URL specified"));
        }
        Ok(Some(options))
    }

    fn wants_value(&self, long: &str) -> Result<bool, Failure> {
        match long {
            "cacert" | "user-agent" | "data" | "data-raw" | "data-binary" | "header" | "max-time" | "connect-timeout" | "output" | "user"
            | "write-out" | "request" | "url" => Ok(true),
            "fail" | "help" | "head" | "include" | "insecure" | "location" | "remote-name" | "show-error" | "silent" | "verbose" | "ipv4"
            | "no-progress-meter" => Ok(false),
            other => Err(Failure::new(2, format!("option --{other}: is unknown"))),
        }
    }

    fn set(&mut self, long: &str, value: Option<String>) -> Result<(), Failure> {
        let text = value.unwrap_or_default();
        match long {
            "cacert" => self.authorities = Some(text),
            "insecure" => self.insecure = true,
            "url" => self.urls.push(text),
            "user-agent" => self.headers.push(format!("User-Agent: {text}")),
            "data" | "data-raw" | "data-binary" => {
                self.body = Some(match self.body.take() {
                    Some(before) => format!("{before}&{text}"),
                    None => text,
                });
            }
            "header" => self.headers.push(text),
            "max-time" => self.max_time = Some(seconds(&text)?),
            "connect-timeout" => self.connect_timeout = Some(seconds(&text)?),
            "output" => self.output = Some(text),
            "user" => self.user = Some(text),
            "write-out" => self.write_out = Some(text),
            "request" => self.method = Some(text),
            "fail" => self.fail = true,
            "head" => self.head = true,
            "include" => self.include = true,
            "location" => self.location = true,
            "remote-name" => self.remote_name = true,
            "show-error" => self.show_error = true,
            "silent" | "no-progress-meter" => self.silent |= long == "silent",
            "verbose" => self.verbose = true,
            // Whatever address there is: nothing to change.
            _ => {}
        }
        Ok(())
    }

    /// Where to write to.
    pub(super) fn target(&self, url: &str) -> Result<Target, Failure> {
        if self.remote_name {
            let path = url.split(['?', '#']).next().unwrap_or_default();
            let name = path.rsplit('/').next().filter(|name| !name.is_empty() && path.matches('/').count() > 2);
            let name = name.ok_or_else(|| Failure::new(23, "Remote file name has no length"))?;
            return Ok(Target::File(PathBuf::from(name)));
        }
        Ok(match self.output.as_deref() {
            None | Some("-") => Target::Output,
            // Not a file that could be made anew.
            Some(name) if name.eq_ignore_ascii_case("nul") || name == "/dev/null" => Target::Nowhere,
            Some(name) => Target::File(name.into()),
        })
    }
}

fn missing(option: &str) -> Failure {
    Failure::new(2, format!("option {option}: requires parameter"))
}

fn seconds(text: &str) -> Result<Duration, Failure> {
    let parsed = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed.ok_or_else(|| Failure::new(2, format!("{text:?} is not a number of seconds")))
}
