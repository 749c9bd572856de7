//! The connection's I/O: connects, reads, writes, and connects again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use backoff::Backoff;
use thiserror_ext::AsReport as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::operation::{Outcome, Transaction};
use crate::session::{Lock, Memory, Output, Session, Ticket, Wants};
use crate::stream::{Remote, Stream};
use crate::wire::Framer;
use crate::{Error, Replica, Support};

/// The longest message that is read: the first answer holds all rows of all tables that are used.
const LONGEST_MESSAGE: usize = 64 << 20;
/// How long a connection and its first answers may take.
const START: Duration = Duration::from_secs(30);
/// How long an answer to a transaction may take.
const ANSWER: Duration = Duration::from_secs(60);
/// Delays between connections.
const DELAYS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(8));
/// How many transactions may wait for being sent.
const QUEUE: usize = 64;

/// A client's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The servers, of which one is enough.
    pub remotes: Vec<Remote>,
    /// The database, its tables, the lock.
    pub wants: Wants,
    /// For servers `ssl:…`.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// After so long without a message the server is asked whether it is there, and after as long again given up.
    pub probe: Duration,
}

impl Config {
    /// The usual settings.
    #[must_use]
    pub fn new(remotes: Vec<Remote>, wants: Wants) -> Self {
        Self { remotes, wants, tls: None, probe: Duration::from_secs(5) }
    }
}

/// What a client knows.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Whether there is a connection whose rows these are, and transactions are taken.
    pub connected: bool,
    /// The last known rows; empty before the first connection.
    pub replica: Arc<Replica>,
    /// What the server supports.
    pub support: Arc<Support>,
    /// Whether the lock is held.
    pub lock: Lock,
    /// Why the last connection ended or did not come about.
    pub problem: Option<Arc<str>>,
    /// How many connections there were.
    pub connections: u64,
}

enum Command {
    Transact(Transaction, oneshot::Sender<Result<Vec<Outcome>, Error>>),
    Steal,
    Unlock,
}

/// A client. It connects in the background until it is dropped.
#[derive(Debug)]
pub struct Client {
    database: String,
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
}

impl Client {
    /// Starts connecting. Has to be called in a runtime.
    #[must_use]
    pub fn start(config: Config) -> Self {
        let (commands, received) = mpsc::channel(QUEUE);
        let (publish, state) = watch::channel(State::default());
        let database = config.wants.database.clone();
        let run = Run { config, commands: received, state: publish, answers: HashMap::new(), next_ticket: 0, gave_up: false };
        tokio::spawn(run.forever());
        Self { database, commands, state }
    }

    /// What is known now.
    #[must_use]
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits for the next change of [`Client::state`] since the last call.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a connection, at most so long.
    ///
    /// # Errors
    /// None came about.
    pub async fn ready(&self, limit: Duration) -> Result<State, Error> {
        self.when(limit, |state| state.connected).await
    }

    /// Waits for a state, at most so long.
    ///
    /// # Errors
    /// It did not come about.
    pub async fn when(&self, limit: Duration, mut holds: impl FnMut(&State) -> bool) -> Result<State, Error> {
        let mut state = self.state.clone();
        let waited = tokio::time::timeout(limit, state.wait_for(|state| holds(state))).await;
        if let Ok(Ok(state)) = waited {
            return Ok(state.clone());
        }
        let reason = self.reason();
        Err(Error::Timeout { database: self.database.clone(), seconds: limit.as_secs(), reason })
    }

    fn reason(&self) -> String {
        self.state.borrow().problem.as_deref().unwrap_or("no answer yet").to_owned()
    }

    /// Sends a transaction, and waits for what comes of it. It is sent once or not at all.
    ///
    /// # Errors
    /// There is no connection, it was lost before the answer, or the server refused the transaction.
    pub async fn transact(&self, transaction: Transaction) -> Result<Vec<Outcome>, Error> {
        let (answer, answered) = oneshot::channel();
        if self.commands.send(Command::Transact(transaction, answer)).await.is_err() {
            return Err(Error::NotConnected { database: self.database.clone(), reason: "the client has ended".into() });
        }
        let lost = || Err(Error::Lost { database: self.database.clone() });
        let late = || Err(Error::Late { database: self.database.clone(), seconds: ANSWER.as_secs() });
        tokio::time::timeout(ANSWER, answered).await.map_or_else(|_| late(), |answer| answer.unwrap_or_else(|_| lost()))
    }

    /// Takes the lock from whoever holds it.
    pub async fn steal(&self) {
        let _ = self.commands.send(Command::Steal).await;
    }

    /// Gives the lock away, and does not ask for it again.
    pub async fn unlock(&self) {
        let _ = self.commands.send(Command::Unlock).await;
    }
}

struct Run {
    config: Config,
    commands: mpsc::Receiver<Command>,
    state: watch::Sender<State>,
    answers: HashMap<Ticket, oneshot::Sender<Result<Vec<Outcome>, Error>>>,
    next_ticket: Ticket,
    /// Whether this side closed the last connection, which would be of no more use at once.
    gave_up: bool,
}

/// The client was dropped.
struct Dropped;

impl Run {
    async fn forever(mut self) {
        let mut backoff = Backoff::new(DELAYS.0, DELAYS.1);
        let mut memory = Memory::default();
        let mut next = 0;
        loop {
            let Some(remote) = self.config.remotes.get(next).cloned() else { return };
            next = (next + 1) % self.config.remotes.len();
            let mut session = Session::new(self.config.wants.clone(), std::mem::take(&mut memory));
            let began = Instant::now();
            let ended = self.connection(&remote, &mut session).await;
            let gave_up = std::mem::take(&mut self.gave_up);
            // A server that ends each connection soon is no better than one that refuses it.
            if session.is_ready() && !gave_up && began.elapsed() > DELAYS.1 {
                backoff.reset();
            }
            memory = session.into_memory();
            let Ok(reason) = ended else { return };
            tracing::debug!(%remote, reason, "the connection to the database ended");
            let database = &self.config.wants.database;
            let reason: Arc<str> = format!("{remote}: {reason}").into();
            self.answers.drain().for_each(|(_, answer)| drop(answer.send(Err(Error::Lost { database: database.clone() }))));
            self.state.send_modify(|state| {
                state.connected = false;
                state.lock = Lock::None;
                state.problem = Some(reason);
            });
            // The first round over all servers waits for none: the leader may be the last of them.
            let delay = if next == 0 || self.config.remotes.len() == 1 { backoff.next_delay() } else { DELAYS.0 };
            if self.pause(delay).await.is_err() {
                return;
            }
        }
    }

    /// Waits between connections; what is asked for meanwhile is refused.
    async fn pause(&mut self, delay: Duration) -> Result<(), Dropped> {
        let end = Instant::now() + delay;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return Ok(()),
                command = self.commands.recv() => self.refuse(command.ok_or(Dropped)?),
            }
        }
    }

    fn refuse(&mut self, command: Command) {
        match command {
            Command::Transact(_, answer) => {
                let reason = self.state.borrow().problem.as_deref().unwrap_or("no answer yet").to_owned();
                let _ = answer.send(Err(Error::NotConnected { database: self.config.wants.database.clone(), reason }));
            }
            Command::Steal => {}
            Command::Unlock => self.config.wants.lock = None,
        }
    }

    /// One connection, until it ends for the reason that is returned.
    async fn connection(&mut self, remote: &Remote, session: &mut Session) -> Result<String, Dropped> {
        let (remote, tls) = (remote.clone(), self.config.tls.clone());
        let connecting = async move { remote.connect(tls.as_ref()).await };
        tokio::pin!(connecting);
        let start = Instant::now() + START;
        let mut stream = loop {
            tokio::select! {
                connected = &mut connecting => match connected {
                    Ok(stream) => break stream,
                    Err(error) => return Ok(error.to_report_string()),
                },
                () = tokio::time::sleep_until(start) => return Ok("no connection within 30 s".into()),
                command = self.commands.recv() => self.refuse(command.ok_or(Dropped)?),
            }
        };
        let first = session.start();
        if let Some(reason) = self.perform(first, session, &mut stream).await {
            return Ok(reason);
        }
        self.converse(session, &mut stream, start).await
    }

    async fn converse(&mut self, session: &mut Session, stream: &mut Box<dyn Stream>, start: Instant) -> Result<String, Dropped> {
        let mut framer = Framer::new(LONGEST_MESSAGE);
        let mut buffer = vec![0; 64 << 10];
        let mut heard = Instant::now();
        let mut probed = false;
        loop {
            let limit = if session.is_ready() { heard + self.config.probe * if probed { 2 } else { 1 } } else { start };
            let outputs = tokio::select! {
                // What waits to be read is no silence.
                biased;
                read = stream.read(&mut buffer) => {
                    let length = match read {
                        Ok(0) => return Ok("the server closed the connection".into()),
                        Ok(length) => length,
                        Err(error) => return Ok(error.to_report_string()),
                    };
                    (heard, probed) = (Instant::now(), false);
                    framer.push(&buffer[..length]);
                    let mut outputs = Vec::new();
                    loop {
                        match framer.next_message() {
                            Ok(Some(message)) => outputs.extend(session.receive(message)),
                            Ok(None) => break,
                            Err(error) => return Ok(error.to_report_string()),
                        }
                    }
                    outputs
                }
                command = self.commands.recv() => self.command(command.ok_or(Dropped)?, session),
                () = tokio::time::sleep_until(limit) => {
                    if probed || !session.is_ready() {
                        return Ok("the server does not answer".into());
                    }
                    probed = true;
                    vec![session.probe()]
                }
            };
            if let Some(reason) = self.perform(outputs, session, stream).await {
                return Ok(reason);
            }
        }
    }

    fn command(&mut self, command: Command, session: &mut Session) -> Vec<Output> {
        match command {
            Command::Transact(transaction, answer) if session.is_ready() => {
                let ticket = self.next_ticket;
                self.next_ticket += 1;
                self.answers.insert(ticket, answer);
                vec![session.transact(ticket, transaction)]
            }
            Command::Steal => session.steal(),
            Command::Unlock => {
                self.config.wants.lock = None;
                session.unlock().into_iter().collect()
            }
            other => {
                self.refuse(other);
                Vec::new()
            }
        }
    }

    /// Does what the session asks for; the reason, if the connection has to end.
    async fn perform(&mut self, outputs: Vec<Output>, session: &Session, stream: &mut Box<dyn Stream>) -> Option<String> {
        // Rows first: who is answered finds his own change in them.
        if outputs.iter().any(|output| matches!(output, Output::Changed)) {
            self.publish(session);
        }
        let mut bytes = Vec::new();
        let mut closed = None;
        for output in outputs {
            match output {
                Output::Send(message) => bytes.extend(message.to_bytes()),
                Output::Changed => {}
                Output::Answer(ticket, result) => {
                    if let Some(answer) = self.answers.remove(&ticket) {
                        let _ = answer.send(result.map_err(Error::from));
                    }
                }
                Output::Close(problem) => {
                    self.gave_up = true;
                    closed = closed.or(Some(problem.to_report_string()));
                }
            }
        }
        if closed.is_none() && !bytes.is_empty() {
            let written = tokio::time::timeout(START, async {
                stream.write_all(&bytes).await?;
                stream.flush().await
            });
            closed = match written.await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_report_string()),
                Err(_) => Some("the server takes no more bytes".into()),
            };
        }
        closed
    }

    fn publish(&self, session: &Session) {
        self.state.send_modify(|state| {
            if !state.connected {
                state.connections += 1;
                state.problem = None;
            }
            state.connected = session.is_ready();
            state.replica = session.replica().clone();
            state.support = session.support().clone();
            state.lock = session.lock();
        });
    }
}
