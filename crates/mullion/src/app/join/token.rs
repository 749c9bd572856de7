//! `mullion token`.

use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use join::BootstrapToken;
use join::tokens::{self, Listed, NewToken};
use kube::Client;
use serde_json::{Value, json};

use crate::cli::join_cli::{AdminArgs, CreateArgs, TokenArgs, TokenCommand};
use crate::exit::{Code, Failure, printable};

/// Runs the subcommand.
pub fn main(args: TokenArgs) -> Result<(), Failure> {
    let runtime = super::begin(0)?;
    match args.command {
        TokenCommand::Create(args) => runtime.block_on(create(args)),
        TokenCommand::List(args) => runtime.block_on(async {
            let all = tokens::list(&client(&args.admin).await?).await?;
            let now = Timestamp::now();
            if args.output.is_some() {
                println!("{:#}", Value::from(all.iter().map(document).collect::<Vec<_>>()));
            } else {
                print!("{}", table(&all, now));
            }
            Ok(())
        }),
        TokenCommand::Delete(args) => runtime.block_on(async {
            let client = client(&args.admin).await?;
            for token in &args.tokens {
                println!("bootstrap token {:?} deleted", tokens::delete(&client, &token.0).await?);
            }
            Ok(())
        }),
        TokenCommand::Generate => {
            println!("{}", BootstrapToken::random()?.reveal());
            Ok(())
        }
    }
}

async fn client(args: &AdminArgs) -> Result<Client> {
    cluster::install_crypto_provider();
    match &args.kubeconfig {
        Some(path) => Ok(cluster::client_from_kubeconfig(path).await?),
        None => Client::try_default().await.context("no cluster to ask: give its kubeconfig with --kubeconfig, or in KUBECONFIG"),
    }
}

async fn create(args: CreateArgs) -> Result<(), Failure> {
    let token = match args.token {
        Some(token) => token.0.parse().map_err(|error: join::token::NotAToken| Failure::new(Code::Usage, error))?,
        None => BootstrapToken::random()?,
    };
    let new = NewToken {
        token,
        ttl: Some(args.ttl.0).filter(|ttl| *ttl > Duration::ZERO),
        description: args.description,
        usages: args.usages.into_iter().filter(|usage| !usage.is_empty()).collect(),
        groups: args.groups.into_iter().filter(|group| !group.is_empty()).collect(),
    };
    let client = client(&args.admin).await?;
    tokens::create(&client, &new).await?;
    if args.print_join_command {
        println!("{}", tokens::join_command(&client, &new.token).await?);
    } else {
        println!("{}", new.token.reveal());
    }
    Ok(())
}

fn document(token: &Listed) -> Value {
    json!({
        "token": format!("{}.{}", token.id, token.secret), "expires": token.expires.map(|at| at.to_string()), "usages": token.usages,
        "description": token.description, "groups": token.groups,
    })
}

/// kubeadm's columns.
fn table(all: &[Listed], now: Timestamp) -> String {
    let none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
    let row = |token: &Listed| {
        [
            format!("{}.{}", token.id, token.secret),
            token.expires.map_or_else(|| "<forever>".to_owned(), |end| left(end.duration_since(now).as_secs())),
            token.expires.map_or_else(|| "<never>".to_owned(), |end| end.to_string()),
            token.usages.join(","),
            // Whoever may write Secrets chose them.
            none(line_of(&token.description)),
            none(line_of(&token.groups.join(","))),
        ]
    };
    let header = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"].map(str::to_owned);
    let rows: Vec<[String; 6]> = [header].into_iter().chain(all.iter().map(row)).collect();
    let widths: Vec<usize> = (0..6).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A text of others on one line.
fn line_of(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// A time in its largest unit, as kubectl shows ages.
fn left(seconds: i64) -> String {
    match seconds {
        ..=0 => "<invalid>".to_owned(),
        1..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m", seconds / 60),
        3600..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_listed_in_kubeadms_columns() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let token = |id: &str, expires: Option<&str>, description: &str| Listed {
            id: id.into(),
            secret: "0123456789abcdef".into(),
            expires: expires.map(|text| text.parse().unwrap()),
            usages: vec!["authentication".into(), "signing".into()],
            description: description.into(),
            groups: vec![tokens::GROUP.into()],
        };
        let hostile = table(&[token("abcdef", None, "a\u{1b}[2J\nb")], now);
        assert!(hostile.contains(r"a\u{1b}[2J\nb") && hostile.lines().count() == 2, "{hostile}");
        let text = table(&[token("abcdef", Some("2026-01-01T23:30:00Z"), ""), token("ghijkl", None, "for win01")], now);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("TOKEN                     TTL         EXPIRES"), "{text}");
        assert!(lines[1].starts_with("abcdef.0123456789abcdef   23h         2026-01-01T23:30:00Z   authentication,signing   <none>"), "{text}");
        assert!(lines[2].starts_with("ghijkl.0123456789abcdef   <forever>   <never>                authentication,signing   for win01"), "{text}");
    }

    #[test]
    fn times_left_have_one_unit() {
        for (seconds, text) in [(-5, "<invalid>"), (59, "59s"), (61, "1m"), (86_399, "23h"), (172_800, "2d")] {
            assert_eq!(left(seconds), text);
        }
    }
}
