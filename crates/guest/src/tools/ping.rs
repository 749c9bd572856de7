//! `ping`: real echo requests over IPv4, with Windows' options, messages and exit codes.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use super::{Echo, Request, Streams, api};

const USAGE: &str = "\r\nUsage: ping [-t] [-n count] [-l size] [-f] [-i TTL] [-w timeout] [-4] target_name\r\n\r\nOptions:\r\n\
    \x20   -t             Ping the specified host until stopped.\r\n\
    \x20                  To stop - type Control-C.\r\n\
    \x20   -n count       Number of echo requests to send.\r\n\
    \x20   -l size        Send buffer size.\r\n\
    \x20   -f             Set Don't Fragment flag in packet.\r\n\
    \x20   -i TTL         Time To Live.\r\n\
    \x20   -w timeout     Timeout in milliseconds to wait for each reply.\r\n\
    \x20   -4             Force using IPv4.\r\n";

const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    /// None: until stopped.
    count: Option<u32>,
    request: Request,
    target: String,
}

/// Windows counts answers of routers as received, too, but not in the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    sent: u32,
    received: u32,
    timed: u32,
    least: u32,
    most: u32,
    sum: u64,
}

pub(super) fn main(args: &[String], streams: &mut Streams<'_>) -> u8 {
    let options = match parse(args) {
        Ok(options) => options,
        Err(words) => {
            let _ = write!(streams.out, "{words}");
            return 1;
        }
    };
    let Some(address) = find(&options.target) else {
        let _ = writeln!(streams.out, "Ping request could not find host {}. Please check the name and try again.\r", options.target);
        return 1;
    };
    api::note_interrupts();
    let begins = if options.target.parse::<Ipv4Addr>().is_ok() { address.to_string() } else { format!("{} [{address}]", options.target) };
    let _ = writeln!(streams.out, "\r\nPinging {begins} with {} bytes of data:\r", options.request.size);
    let mut tally = Tally::default();
    while options.count.is_none_or(|count| tally.sent < count) {
        if tally.sent > 0 {
            std::thread::sleep(PAUSE);
        }
        if api::is_interrupted() {
            break;
        }
        let answer = api::echo(address, &options.request);
        // Nobody reads any more.
        if writeln!(streams.out, "{}\r", tally.take(&answer)).and_then(|()| streams.out.flush()).is_err() {
            return 1;
        }
    }
    let _ = write!(streams.out, "{}", tally.summary(address));
    if api::is_interrupted() {
        let _ = writeln!(streams.out, "Control-C\r");
    }
    u8::from(tally.received == 0)
}

fn find(name: &str) -> Option<Ipv4Addr> {
    // Windows knows this name without a hosts file.
    if name.eq_ignore_ascii_case("localhost") {
        return Some(Ipv4Addr::LOCALHOST);
    }
    let found = (name, 0).to_socket_addrs().ok()?;
    found.into_iter().find_map(|address| match address {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    })
}

/// The options, or what to say instead.
fn parse(args: &[String]) -> Result<Options, String> {
    let request = Request { size: 32, ttl: 128, whole: false, timeout: Duration::from_secs(4) };
    let mut options = Options { count: Some(4), request, target: String::new() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Some(option) = arg.strip_prefix(['-', '/']) else {
            if !options.target.is_empty() {
                return Err(format!("Bad parameter {arg}.\r\n"));
            }
            options.target.clone_from(arg);
            continue;
        };
        let mut number = |least: u32, most: u32| -> Result<u32, String> {
            let value = args.next().ok_or_else(|| format!("Value must be supplied for option {arg}.\r\n"))?;
            let number = value.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("Bad value for option {arg}, valid range is from {least} to {most}.\r\n"))
        };
        match option {
            "t" => options.count = None,
            "n" => options.count = Some(number(1, u32::MAX)?),
            "l" => options.request.size = u16::try_from(number(0, 65500)?).unwrap_or(0),
            "i" => options.request.ttl = u8::try_from(number(1, 255)?).unwrap_or(u8::MAX),
            "w" => options.request.timeout = Duration::from_millis(number(0, u32::MAX)?.into()),
            "f" => options.request.whole = true,
            "4" => {}
            "?" => return Err(USAGE.to_owned()),
            "6" => return Err("ping: this container's ping sends echo requests over IPv4 only; leave out -6.\r\n".to_owned()),
            _ => return Err(format!("Bad option {arg}.\r\n\r\n{USAGE}")),
        }
    }
    if options.target.is_empty() {
        return Err(if args.len() == 0 && options.count == Some(4) { USAGE.to_owned() } else { "IP address must be specified.\r\n".to_owned() });
    }
    Ok(options)
}

impl Tally {
    /// Counts an answer and formats it.
    fn take(&mut self, answer: &Result<Echo, u32>) -> String {
        self.sent += 1;
        let echo = match answer {
            Ok(echo) => echo,
            Err(11010) => return "Request timed out.".to_owned(),
            Err(11003) => return "Destination host unreachable.".to_owned(),
            Err(11002) => return "Destination net unreachable.".to_owned(),
            Err(_) => return "PING: transmit failed. General failure. ".to_owned(),
        };
        let Echo { from, millis, size, ttl, .. } = echo;
        let reply = |words: &str| format!("Reply from {from}: {words}");
        let words = match echo.status {
            0 => {
                self.least = if self.timed == 0 { *millis } else { self.least.min(*millis) };
                self.most = self.most.max(*millis);
                self.sum += u64::from(*millis);
                self.timed += 1;
                let time = if *millis == 0 { "time<1ms".to_owned() } else { format!("time={millis}ms") };
                reply(&format!("bytes={size} {time} TTL={ttl}"))
            }
            11002 => reply("Destination net unreachable."),
            11003 => reply("Destination host unreachable."),
            11004 => reply("Destination protocol unreachable."),
            11005 => reply("Destination port unreachable."),
            11009 => reply("Packet needs to be fragmented but DF set."),
            11010 => return "Request timed out.".to_owned(),
            11013 => reply("TTL expired in transit."),
            _ => return "General failure.".to_owned(),
        };
        self.received += 1;
        words
    }

    fn summary(&self, address: Ipv4Addr) -> String {
        let lost = self.sent - self.received;
        let share = if self.sent == 0 { 0 } else { u64::from(lost) * 100 / u64::from(self.sent) };
        let mut text = format!(
            "\r\nPing statistics for {address}:\r\n    Packets: Sent = {}, Received = {}, Lost = {lost} ({share}% loss),\r\n",
            self.sent, self.received
        );
        if self.timed > 0 {
            text += &format!(
                "Approximate round trip times in milli-seconds:\r\n    Minimum = {}ms, Maximum = {}ms, Average = {}ms\r\n",
                self.least,
                self.most,
                self.sum / u64::from(self.timed)
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_windows() {
        let plain = options("web").unwrap();
        assert_eq!((plain.count, plain.request.size, plain.request.ttl, plain.request.timeout), (Some(4), 32, 128, Duration::from_secs(4)));
        let all = options("-4 -n 2 -w 500 -l 64 -i 9 -f web").unwrap();
        let request = Request { size: 64, ttl: 9, whole: true, timeout: Duration::from_millis(500) };
        assert_eq!(all, Options { count: Some(2), request, target: "web".into() });
        assert_eq!(options("-t localhost").unwrap().count, None);
        assert_eq!(options("web /n 1").unwrap().count, Some(1));
        for (line, words) in [
            ("-n 0 web", "Bad value for option -n, valid range is from 1 to 4294967295."),
            ("-n", "Value must be supplied for option -n."),
            ("-x web", "Bad option -x."),
            ("-n 3", "IP address must be specified."),
            ("", "Usage: ping"),
            ("-l 65501 web", "valid range is from 0 to 65500"),
            ("a b", "Bad parameter b."),
        ] {
            let message = options(line).unwrap_err();
            assert!(message.contains(words), "{line}: {message}");
        }
    }

    #[test]
    fn answers_are_printed_and_counted() {
        let mut tally = Tally::default();
        let echo = |status, millis| Ok(Echo { from: [10, 0, 0, 1].into(), status, millis, size: 32, ttl: 64 });
        assert_eq!(tally.take(&echo(0, 0)), "Reply from 10.0.0.1: bytes=32 time<1ms TTL=64");
        assert_eq!(tally.take(&echo(0, 5)), "Reply from 10.0.0.1: bytes=32 time=5ms TTL=64");
        assert_eq!(tally.take(&echo(11003, 0)), "Reply from 10.0.0.1: Destination host unreachable.");
        assert_eq!(tally.take(&Err(11010)), "Request timed out.");
        let text = tally.summary([10, 0, 0, 1].into());
        assert!(text.contains("Packets: Sent = 4, Received = 3, Lost = 1 (25% loss),"), "{text}");
        assert!(text.contains("Minimum = 0ms, Maximum = 5ms, Average = 2ms"), "{text}");
        assert!(!Tally::default().summary([10, 0, 0, 1].into()).contains("Minimum"));
    }
}
