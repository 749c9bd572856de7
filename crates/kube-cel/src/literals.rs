//! Checks of literals: durations, timestamps and regular expressions that can only fail.

use crate::ast::{Expr, Kind, Literal};
use crate::lexer::Problem;
use crate::{regexes, time};

pub fn check(root: &Expr, positions: &[usize]) -> Vec<Problem> {
    let mut problems = Vec::new();
    root.walk(&mut |expr| {
        let Kind::Call { target, function, args } = &expr.kind else { return };
        let literal = |index: usize| match args.get(index).map(|arg| &arg.kind) {
            Some(Kind::Literal(Literal::String(text))) => Some((text, positions[args[index].id])),
            _ => None,
        };
        let found = match (function.as_str(), args.len()) {
            ("duration", 1) => literal(0).filter(|(text, _)| time::parse_duration(text).is_err()),
            ("timestamp", 1) => literal(0).filter(|(text, _)| time::parse_timestamp(text).is_none()),
            ("matches", _) => {
                let index = usize::from(target.is_none());
                literal(index).filter(|(text, _)| regexes::compile(text).is_err())
            }
            _ => None,
        };
        if let Some((_, at)) = found {
            problems.push(Problem { at, message: format!("invalid {function} argument") });
        }
    });
    problems
}
