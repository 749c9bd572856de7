//! Properties: nothing panics, evaluation is bounded, arithmetic agrees with Rust's.

use kube_cel::{Env, PER_CALL_LIMIT, Type, Value, Variables, regexes, shape};
use proptest::prelude::*;
use serde_json::json;

fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "x",
        "y",
        "1",
        "'a'",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ".",
        ",",
        "+",
        "-",
        "*",
        "/",
        "&&",
        "||",
        "?",
        ":",
        "==",
        "<",
        "in",
        ".all(i, ",
        ".map(i, ",
        ".exists(",
        "i",
        "size(",
        ".?",
        "[?",
        "null",
        "true",
        "1.5",
        "2u",
        "b'x'",
        "!",
        "has(",
        ".matches('a')",
        ".orValue(",
        ".join()",
        "optional.of(",
        " ",
        "\n",
        "ü",
        "'",
        "\\",
        "#",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_source_panics(source in pieces()) {
        let env = Env::new().with("x", Type::Dyn).with("y", Type::list(Type::Int));
        if let Ok(program) = env.compile(&source) {
            let object = json!({"a": [1, "b", null, {"c": 1.5}]});
            let numbers = json!([1, 2, 3]);
            let variables = Variables::new().with("x", Value::json(&object)).with("y", Value::json(&numbers));
            let evaluated = program.evaluate(&variables, PER_CALL_LIMIT);
            prop_assert!(evaluated.cost <= PER_CALL_LIMIT);
            let _ = program.estimate(&shape::Shape::new(shape::Form::Dyn, 10, 1));
        }
    }

    #[test]
    fn integers_calculate_as_rust(a in any::<i64>(), b in any::<i64>()) {
        let results = [("+", a.checked_add(b)), ("-", a.checked_sub(b)), ("*", a.checked_mul(b)), ("/", a.checked_div(b))];
        for (operator, expected) in results {
            let env = Env::new().with("a", Type::Int).with("b", Type::Int);
            let program = env.compile(&format!("a {operator} b")).unwrap();
            let variables = Variables::new().with("a", Value::Int(a)).with("b", Value::Int(b));
            match program.evaluate(&variables, PER_CALL_LIMIT).result {
                Ok(Value::Int(value)) => prop_assert_eq!(Some(value), expected),
                Ok(_) => prop_assert!(false, "another type"),
                Err(_) => prop_assert_eq!(None, expected),
            }
        }
    }

    #[test]
    fn strings_are_quoted_back(text in "\\PC{0,20}") {
        let env = Env::new().with("text", Type::String);
        let program = env.compile("strings.quote(text)").unwrap();
        let quoted = program.evaluate(&Variables::new().with("text", Value::str(&text)), PER_CALL_LIMIT).result;
        let source = kube_cel::display(&quoted.unwrap());
        let read = Env::new().compile(&source).unwrap();
        let again = read.evaluate(&Variables::new(), PER_CALL_LIMIT).result.unwrap();
        prop_assert_eq!(kube_cel::display(&again), text);
    }

    #[test]
    fn no_pattern_panics(pattern in "\\PC{0,20}") {
        if let Ok(regex) = regexes::compile(&pattern) {
            let _ = regex.is_match("some text");
        }
    }

    #[test]
    fn escaped_names_can_be_addressed(name in "[a-z_][a-z_./-]{0,8}") {
        let escaped = shape::escape(&name).unwrap();
        prop_assert!(Env::new().with("self", Type::Dyn).compile(&format!("self.{escaped}")).is_ok(), "{}", escaped);
    }
}
