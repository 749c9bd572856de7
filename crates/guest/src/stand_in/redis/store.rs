//! Redis commands, as a function of the store, the request and the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::resp::Reply;

/// Most bytes of keys and values together; then writing is refused as Redis does at `maxmemory`.
const MAX_MEMORY: usize = 64 << 20;
/// Number of databases, as in Redis' own configuration.
const DATABASES: usize = 16;

struct Value {
    bytes: Vec<u8>,
    until: Option<Instant>,
}

/// Everything that the server holds.
pub(crate) struct Store {
    databases: Vec<BTreeMap<Vec<u8>, Value>>,
    used: usize,
    hits: u64,
    misses: u64,
    pub(crate) commands: u64,
    pub(crate) connections: u64,
    pub(crate) clients: u64,
    began: Instant,
    port: u16,
}

/// What one connection is in the middle of.
#[derive(Debug, Default)]
pub(crate) struct Session {
    database: usize,
    /// The client asked to end the connection.
    pub(crate) quit: bool,
}

/// Names in lower case, with the least and the greatest number of words including the name itself.
const COMMANDS: &[(&str, usize, usize)] = &[
    ("append", 3, 3),
    ("auth", 2, 2),
    ("command", 1, usize::MAX),
    ("config", 2, usize::MAX),
    ("dbsize", 1, 1),
    ("decr", 2, 2),
    ("decrby", 3, 3),
    ("del", 2, usize::MAX),
    ("echo", 2, 2),
    ("exists", 2, usize::MAX),
    ("expire", 3, 3),
    ("flushall", 1, 1),
    ("flushdb", 1, 1),
    ("get", 2, 2),
    ("incr", 2, 2),
    ("incrby", 3, 3),
    ("info", 1, 2),
    ("keys", 2, 2),
    ("mget", 2, usize::MAX),
    ("mset", 3, usize::MAX),
    ("persist", 2, 2),
    ("pexpire", 3, 3),
    ("ping", 1, 2),
    ("pttl", 2, 2),
    ("quit", 1, usize::MAX),
    ("select", 2, 2),
    ("set", 3, usize::MAX),
    ("setnx", 3, 3),
    ("strlen", 2, 2),
    ("time", 1, 1),
    ("ttl", 2, 2),
    ("type", 2, 2),
];

impl Store {
    pub(crate) fn new(port: u16, now: Instant) -> Self {
        let databases = (0..DATABASES).map(|_| BTreeMap::new()).collect();
        Self { databases, used: 0, hits: 0, misses: 0, commands: 0, connections: 0, clients: 0, began: now, port }
    }

    /// Does what a request asks for. `args` has at least one word.
    pub(crate) fn answer(&mut self, session: &mut Session, args: &[Vec<u8>], now: Instant) -> Reply {
        self.commands += 1;
        let name = String::from_utf8_lossy(&args[0]).to_lowercase();
        let Some((_, least, most)) = COMMANDS.iter().find(|(known, ..)| *known == name) else {
            return Reply::error(format!("unknown command '{}'", String::from_utf8_lossy(&args[0])));
        };
        if args.len() < *least || args.len() > *most {
            return Reply::error(format!("wrong number of arguments for '{name}' command"));
        }
        self.forget_expired(session.database, &args[1..], now);
        match self.run(&name, session, args, now) {
            Ok(reply) | Err(reply) => reply,
        }
    }

    fn run(&mut self, name: &str, session: &mut Session, args: &[Vec<u8>], now: Instant) -> Result<Reply, Reply> {
        let db = session.database;
        Ok(match name {
            "ping" if args.len() == 1 => Reply::Simple("PONG"),
            "ping" | "echo" => Reply::Bulk(args[1].clone()),
            "quit" => {
                session.quit = true;
                Reply::OK
            }
            "select" => {
                let chosen = integer(&args[1]).map_err(|_| Reply::error("invalid DB index"))?;
                let chosen = usize::try_from(chosen).ok().filter(|chosen| *chosen < DATABASES);
                session.database = chosen.ok_or_else(|| Reply::error("invalid DB index"))?;
                Reply::OK
            }
            "auth" => Reply::error("Client sent AUTH, but no password is set"),
            "command" if args.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"count")) => number(COMMANDS.len()),
            "command" => Reply::Array(COMMANDS.iter().map(|(name, ..)| Reply::Bulk(name.as_bytes().to_vec())).collect()),
            "config" if args[1].eq_ignore_ascii_case(b"get") => Reply::Array(Vec::new()),
            "config" => Reply::error("CONFIG: this stand-in of Redis has no configuration to change"),
            "info" => Reply::Bulk(self.info(now).into_bytes()),
            "time" => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                let parts = [since.as_secs().to_string(), since.subsec_micros().to_string()];
                Reply::Array(parts.into_iter().map(|part| Reply::Bulk(part.into_bytes())).collect())
            }
            "get" => self.get(db, &args[1]),
            "mget" => Reply::Array(args[1..].iter().map(|key| self.get(db, key)).collect()),
            "strlen" => number(self.databases[db].get(&args[1]).map_or(0, |value| value.bytes.len())),
            "type" => Reply::Simple(if self.databases[db].contains_key(&args[1]) { "string" } else { "none" }),
            "exists" => number(args[1..].iter().filter(|key| self.databases[db].contains_key(*key)).count()),
            "ttl" | "pttl" => self.remaining(db, &args[1], name == "ttl", now),
            "keys" => self.keys(db, &args[1], now),
            "dbsize" => number(self.databases[db].values().filter(|value| is_current(value, now)).count()),
            _ => return self.write(name, db, args, now),
        })
    }

    fn write(&mut self, name: &str, db: usize, args: &[Vec<u8>], now: Instant) -> Result<Reply, Reply> {
        Ok(match name {
            "set" => return self.set(db, args, now),
            "setnx" if self.databases[db].contains_key(&args[1]) => Reply::Integer(0),
            "setnx" => {
                self.put(db, &args[1], args[2].clone(), None)?;
                Reply::Integer(1)
            }
            "mset" if args.len().is_multiple_of(2) => Reply::error("wrong number of arguments for MSET"),
            "mset" => {
                for pair in args[1..].chunks_exact(2) {
                    self.put(db, &pair[0], pair[1].clone(), None)?;
                }
                Reply::OK
            }
            "append" => {
                let old = self.databases[db].get(&args[1]);
                let (mut bytes, until) = old.map(|value| (value.bytes.clone(), value.until)).unwrap_or_default();
                bytes.extend_from_slice(&args[2]);
                let length = number(bytes.len());
                self.put(db, &args[1], bytes, until)?;
                length
            }
            "incr" => return self.add(db, &args[1], 1),
            "decr" => return self.add(db, &args[1], -1),
            "incrby" => return self.add(db, &args[1], integer(&args[2])?),
            "decrby" => {
                let by = integer(&args[2])?.checked_neg().ok_or_else(|| Reply::error("decrement would overflow"))?;
                return self.add(db, &args[1], by);
            }
            "del" => number(args[1..].iter().filter(|key| self.delete(db, key)).count()),
            "expire" | "pexpire" => {
                let amount = integer(&args[2])?;
                let Some(value) = self.databases[db].get_mut(&args[1]) else { return Ok(Reply::Integer(0)) };
                match deadline(now, amount, name == "expire") {
                    Some(until) => value.until = Some(until),
                    None if amount > 0 => value.until = None,
                    None => {
                        self.delete(db, &args[1]);
                    }
                }
                Reply::Integer(1)
            }
            "persist" => {
                let value = self.databases[db].get_mut(&args[1]);
                number(usize::from(value.is_some_and(|value| value.until.take().is_some())))
            }
            "flushdb" => self.flush(db..db + 1),
            _ => self.flush(0..DATABASES),
        })
    }

    fn set(&mut self, db: usize, args: &[Vec<u8>], now: Instant) -> Result<Reply, Reply> {
        let exists = self.databases[db].contains_key(&args[1]);
        let (mut until, mut refused) = (None, false);
        let mut options = args[3..].iter();
        while let Some(option) = options.next() {
            match option.to_ascii_lowercase().as_slice() {
                b"nx" => refused |= exists,
                b"xx" => refused |= !exists,
                unit @ (b"ex" | b"px") => {
                    let amount = integer(options.next().ok_or_else(|| Reply::error("syntax error"))?)?;
                    if amount <= 0 {
                        return Err(Reply::error("invalid expire time in set"));
                    }
                    until = deadline(now, amount, unit == b"ex");
                }
                _ => return Err(Reply::error("syntax error")),
            }
        }
        if refused {
            return Ok(Reply::Nil);
        }
        self.put(db, &args[1], args[2].clone(), until)?;
        Ok(Reply::OK)
    }

    fn get(&mut self, db: usize, key: &[u8]) -> Reply {
        match self.databases[db].get(key) {
            Some(value) => {
                self.hits += 1;
                Reply::Bulk(value.bytes.clone())
            }
            None => {
                self.misses += 1;
                Reply::Nil
            }
        }
    }

    fn put(&mut self, db: usize, key: &[u8], bytes: Vec<u8>, until: Option<Instant>) -> Result<(), Reply> {
        let old = self.databases[db].get(key).map_or(0, |value| key.len() + value.bytes.len());
        let used = self.used - old + key.len() + bytes.len();
        if used > MAX_MEMORY {
            return Err(Reply::Error("OOM command not allowed when used memory > 'maxmemory'.".to_owned()));
        }
        self.used = used;
        self.databases[db].insert(key.to_vec(), Value { bytes, until });
        Ok(())
    }

    fn add(&mut self, db: usize, key: &[u8], by: i64) -> Result<Reply, Reply> {
        let old = self.databases[db].get(key);
        let until = old.and_then(|value| value.until);
        let sum = old.map_or(Ok(0), |value| integer(&value.bytes))?.checked_add(by);
        let sum = sum.ok_or_else(|| Reply::error("increment or decrement would overflow"))?;
        self.put(db, key, sum.to_string().into_bytes(), until)?;
        Ok(Reply::Integer(sum))
    }

    fn delete(&mut self, db: usize, key: &[u8]) -> bool {
        let Some(value) = self.databases[db].remove(key) else { return false };
        self.used -= key.len() + value.bytes.len();
        true
    }

    fn flush(&mut self, which: std::ops::Range<usize>) -> Reply {
        for database in &mut self.databases[which] {
            for (key, value) in std::mem::take(database) {
                self.used -= key.len() + value.bytes.len();
            }
        }
        Reply::OK
    }

    fn forget_expired(&mut self, db: usize, keys: &[Vec<u8>], now: Instant) {
        for key in keys {
            if self.databases[db].get(key).is_some_and(|value| !is_current(value, now)) {
                self.delete(db, key);
            }
        }
    }

    fn remaining(&self, db: usize, key: &[u8], seconds: bool, now: Instant) -> Reply {
        let Some(value) = self.databases[db].get(key) else { return Reply::Integer(-2) };
        let Some(until) = value.until else { return Reply::Integer(-1) };
        let left = until.saturating_duration_since(now).as_millis();
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        Reply::Integer(if seconds { left.saturating_add(500) / 1000 } else { left })
    }

    fn keys(&self, db: usize, pattern: &[u8], now: Instant) -> Reply {
        let found = self.databases[db].iter().filter(|(key, value)| is_current(value, now) && glob(pattern, key));
        Reply::Array(found.map(|(key, _)| Reply::Bulk(key.clone())).collect())
    }

    fn info(&self, now: Instant) -> String {
        let up = now.saturating_duration_since(self.began).as_secs();
        let mut text = format!(
            "# Server\r\nredis_version:3.0.504\r\nredis_mode:standalone\r\nos:Windows\r\narch_bits:64\r\nprocess_id:1\r\ntcp_port:{}\r\n\
             uptime_in_seconds:{up}\r\nuptime_in_days:{}\r\nmullion_stand_in:redis\r\n\r\n\
             # Clients\r\nconnected_clients:{}\r\n\r\n# Memory\r\nused_memory:{}\r\nmaxmemory:{MAX_MEMORY}\r\n\r\n\
             # Persistence\r\nloading:0\r\n\r\n# Stats\r\ntotal_connections_received:{}\r\ntotal_commands_processed:{}\r\n\
             keyspace_hits:{}\r\nkeyspace_misses:{}\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Keyspace\r\n",
            self.port,
            up / 86_400,
            self.clients,
            self.used,
            self.connections,
            self.commands,
            self.hits,
            self.misses,
        );
        for (number, database) in self.databases.iter().enumerate().filter(|(_, database)| !database.is_empty()) {
            let expires = database.values().filter(|value| value.until.is_some()).count();
            text += &format!("db{number}:keys={},expires={expires},avg_ttl=0\r\n", database.len());
        }
        text
    }
}

fn is_current(value: &Value, now: Instant) -> bool {
    value.until.is_none_or(|until| until > now)
}

/// When a key with that time to live ends; none when that is not in the future, or further than clocks reach.
fn deadline(now: Instant, amount: i64, seconds: bool) -> Option<Instant> {
    let amount = u64::try_from(amount).ok().filter(|amount| *amount > 0)?;
    now.checked_add(if seconds { Duration::from_secs(amount) } else { Duration::from_millis(amount) })
}

fn integer(text: &[u8]) -> Result<i64, Reply> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Reply::error("value is not an integer or out of range"))
}

fn number(count: usize) -> Reply {
    Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// `*`, `?` and `\` of Redis' patterns. Linear in memory, and quadratic in time at worst.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let (literal, width) = match pattern.get(p) {
            Some(b'\\') if p + 1 < pattern.len() => (Some(pattern[p + 1]), 2),
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
                continue;
            }
            Some(b'?') => (Some(text[t]), 1),
            other => (other.copied(), 1),
        };
        if literal == Some(text[t]) {
            (p, t) = (p + width, t + 1);
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            (p, t) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Client(Store, Session, Instant);

    impl Client {
        fn ask(&mut self, line: &str) -> String {
            let args: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            let mut out = Vec::new();
            self.0.answer(&mut self.1, &args, self.2).write(&mut out);
            String::from_utf8(out).unwrap().replace("\r\n", "|")
        }
    }

    #[test]
    fn commands_answer_as_redis_does() {
        let now = Instant::now();
        let mut client = Client(Store::new(6379, now), Session::default(), now);
        for (line, reply) in [
            ("PING", "+PONG|"),
            ("ping hi", "$2|hi|"),
            ("ECHO x", "$1|x|"),
            ("GET k", "$-1|"),
            ("SET k v", "+OK|"),
            ("get k", "$1|v|"),
            ("SET k w NX", "$-1|"),
            ("SET other w XX", "$-1|"),
            ("INCR k", "-ERR value is not an integer or out of range|"),
            ("INCR n", ":1|"),
            ("INCRBY n 41", ":42|"),
            ("DECR n", ":41|"),
            ("INCRBY n 9223372036854775807", "-ERR increment or decrement would overflow|"),
            ("EXISTS k n missing", ":2|"),
            ("TTL k", ":-1|"),
            ("TTL missing", ":-2|"),
            ("EXPIRE k 10", ":1|"),
            ("TTL k", ":10|"),
            ("PERSIST k", ":1|"),
            ("EXPIRE missing 10", ":0|"),
            ("APPEND k w", ":2|"),
            ("MGET k missing", "*2|$2|vw|$-1|"),
            ("KEYS ?", "*2|$1|k|$1|n|"),
            ("TYPE k", "+string|"),
            ("SELECT 1", "+OK|"),
            ("GET k", "$-1|"),
            ("SELECT 16", "-ERR invalid DB index|"),
            ("SELECT 0", "+OK|"),
            ("DEL k n missing", ":2|"),
            ("DBSIZE", ":0|"),
            ("SET k v EX 0", "-ERR invalid expire time in set|"),
            ("SET k v EX", "-ERR syntax error|"),
            ("GET", "-ERR wrong number of arguments for 'get' command|"),
            ("NoSuch", "-ERR unknown command 'NoSuch'|"),
            ("QUIT", "+OK|"),
        ] {
            assert_eq!(client.ask(line), reply, "{line}");
        }
        assert!(client.1.quit);
        assert!(client.ask("INFO").contains("redis_version:3.0"));
    }

    #[test]
    fn keys_end_when_their_time_is_over() {
        let now = Instant::now();
        let mut client = Client(Store::new(6379, now), Session::default(), now);
        client.ask("SET k v PX 1500");
        client.2 += Duration::from_millis(1400);
        assert_eq!(client.ask("GET k"), "$1|v|");
        client.2 += Duration::from_millis(100);
        assert_eq!(client.ask("EXISTS k"), ":0|");
        assert_eq!(client.0.used, 0);
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut client = Client(Store::new(6379, now), Session::default(), now);
        let big = "x".repeat(16 << 20);
        let replies: Vec<String> = (0..5).map(|number| client.ask(&format!("SET k{number} {big}"))).collect();
        assert_eq!(replies.iter().filter(|reply| *reply == "+OK|").count(), 3);
        assert!(replies[4].starts_with("-OOM command not allowed"));
    }

    #[test]
    fn patterns_match_like_redis() {
        for (pattern, text, fits) in [("*", "", true), ("a*c", "abbc", true), ("a*c", "abb", false), ("h?llo", "hallo", true), (r"\*", "x", false)] {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
        }
    }
}
