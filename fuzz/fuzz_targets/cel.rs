//! CEL: any source is compiled or refused, and what compiles ends within the cost limit.

#![no_main]

use kube_cel::shape::Form;
use kube_cel::{Env, Shape, Type, Value, Variables};
use libfuzzer_sys::fuzz_target;

const LIMIT: u64 = 100_000;

fuzz_target!(|source: &str| {
    let env = Env::new().with("self", Type::Dyn).with("n", Type::list(Type::Int)).with("s", Type::String);
    let program = match env.compile(source) {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let object = serde_json::json!({"a": [1, "b", null, {"c": 1.5}], "s": "text"});
    let numbers = serde_json::json!([3, 1, 2]);
    let variables = Variables::new()
        .with("self", Value::json(&object))
        .with("n", Value::json(&numbers))
        .with("s", Value::str("grüße 1"));
    let evaluated = program.evaluate(&variables, LIMIT);
    if let Ok(value) = evaluated.result {
        let _ = (value.to_json(), kube_cel::display(&value));
    }
    let _ = program.estimate(&Shape::new(Form::Dyn, 10, 1));
});
