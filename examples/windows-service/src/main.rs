//! A web server of one file: who and where it is, and the message that came in its image.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::{env, fs, io, thread};

const MESSAGE: &str = r"C:\greeter\message.txt";

fn main() -> io::Result<()> {
    let port = env::var("PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(8080);
    let listener = TcpListener::bind(("0.0.0.0", port))?;
    println!("greeter: listening on port {port}");
    for stream in listener.incoming() {
        thread::spawn(move || {
            if let Err(error) = stream.and_then(answer) {
                println!("greeter: {error}");
            }
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or("/");
    let (status, body) = match path {
        "/" => ("200 OK", greeting()),
        "/env" => ("200 OK", env::vars().map(|(name, value)| format!("{name}={value}\r\n")).collect()),
        "/healthz" => ("200 OK", "ok\r\n".to_owned()),
        _ => ("404 Not Found", "there is /, /env and /healthz\r\n".to_owned()),
    };
    println!("greeter: {} {status}", request.trim_end());
    write!(stream, "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn greeting() -> String {
    let message = fs::read_to_string(MESSAGE).unwrap_or_else(|error| format!("{MESSAGE}: {error}"));
    let computer = env::var("COMPUTERNAME").unwrap_or_default();
    let dir = env::current_dir().map(|dir| dir.display().to_string()).unwrap_or_default();
    format!("{}\r\nThis is {computer}, in {dir}, on {}.\r\n", message.trim_end(), env::consts::OS)
}
