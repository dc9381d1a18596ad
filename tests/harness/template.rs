//! `template.yaml` as CloudFormation would see it: its text as JSON, and its functions resolved for chosen parameters.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value, json};

/// The template, with the parameters of one deployment.
pub struct Template {
    text: Value,
    parameters: BTreeMap<String, Value>,
}

impl Template {
    /// Reads it; parameters that are not given have their defaults.
    pub fn with(given: &[(&str, &str)]) -> Self {
        let yaml = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../template.yaml")).unwrap();
        let documents = Yaml::load_from_str(&yaml).unwrap_or_else(|error| panic!("template.yaml: {error}"));
        let text = to_json(&documents[0]);
        let mut parameters = BTreeMap::new();
        for (name, declared) in text["Parameters"].as_object().unwrap() {
            let given = given.iter().find(|(given, _)| given == name);
            let value = given.map_or_else(|| declared["Default"].clone(), |(_, value)| json!(value));
            let is_list = declared["Type"] == "CommaDelimitedList";
            let value = if is_list { text_of(&value).split(',').map(|item| json!(item)).collect() } else { value };
            parameters.insert(name.clone(), value);
        }
        for (name, _) in given {
            assert!(parameters.contains_key(*name), "there is no parameter {name}");
        }
        Self { text, parameters }
    }

    /// What the template says of a parameter.
    pub fn parameter(&self, name: &str) -> &Value {
        &self.text["Parameters"][name]
    }

    /// The resources of this type that exist with these parameters, by name, with everything resolved.
    pub fn resources(&self, kind: &str) -> BTreeMap<String, Value> {
        let all = self.text["Resources"].as_object().unwrap().iter();
        let of_kind = all.filter(|(_, resource)| resource["Type"] == kind);
        let there = of_kind.filter(|(_, resource)| resource["Condition"].as_str().is_none_or(|name| self.holds(name)));
        there.map(|(name, resource)| (name.clone(), self.resolve(resource))).collect()
    }

    /// One of them that must exist.
    pub fn resource(&self, kind: &str, name: &str) -> Value {
        self.resources(kind).remove(name).unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// What the user of Redis may do, in the words of `ACL SETUSER`.
    pub fn redis_permissions(&self) -> Vec<String> {
        let user = self.resource("AWS::ElastiCache::User", "RedisUser");
        text_of(&user["Properties"]["AccessString"]).split(' ').map(str::to_owned).collect()
    }

    fn holds(&self, condition: &str) -> bool {
        let formula = self.text["Conditions"].get(condition).unwrap_or_else(|| panic!("no condition {condition}"));
        self.is_true(formula)
    }

    fn is_true(&self, formula: &Value) -> bool {
        let (function, argument) = function_of(formula).unwrap_or_else(|| panic!("no condition: {formula}"));
        let all = |argument: &Value| argument.as_array().unwrap().iter().map(|part| self.is_true(part)).collect();
        match function {
            "Condition" => self.holds(argument.as_str().unwrap()),
            "Fn::Not" => !self.is_true(&argument[0]),
            "Fn::And" => {
                let parts: Vec<bool> = all(argument);
                parts.into_iter().all(|part| part)
            }
            "Fn::Or" => {
                let parts: Vec<bool> = all(argument);
                parts.into_iter().any(|part| part)
            }
            "Fn::Equals" => text_of(&self.resolve(&argument[0])) == text_of(&self.resolve(&argument[1])),
            _ => panic!("unknown function {function} in a condition"),
        }
    }

    /// The value with its functions resolved. What only a deployment knows is a name in angle brackets.
    fn resolve(&self, value: &Value) -> Value {
        if let Some((function, argument)) = function_of(value) {
            return self.call(function, argument);
        }
        match value {
            Value::Array(items) => {
                items.iter().map(|item| self.resolve(item)).filter(|item| *item != no_value()).collect()
            }
            Value::Object(fields) => {
                let resolved = fields.iter().map(|(name, field)| (name.clone(), self.resolve(field)));
                resolved.filter(|(_, field)| *field != no_value()).collect::<Map<_, _>>().into()
            }
            other => other.clone(),
        }
    }

    fn call(&self, function: &str, argument: &Value) -> Value {
        match function {
            "Ref" => self.reference(argument.as_str().unwrap()),
            "Fn::GetAtt" => attribute(argument),
            "Fn::If" => {
                let branch = if self.holds(argument[0].as_str().unwrap()) { 1 } else { 2 };
                self.resolve(&argument[branch])
            }
            "Fn::Sub" => self.substitute(argument),
            "Fn::FindInMap" => {
                let path = self.resolve(argument);
                let [map, first, second] = [0, 1, 2].map(|index| text_of(&path[index]));
                let found = &self.text["Mappings"][&map][&first][&second];
                assert!(!found.is_null(), "no {map}.{first}.{second}");
                found.clone()
            }
            "Fn::Select" => {
                let index: usize = text_of(&argument[0]).parse().unwrap();
                self.resolve(&argument[1]).get(index).unwrap_or_else(|| panic!("no item {index} in {argument}")).clone()
            }
            "Fn::Split" => {
                let text = text_of(&self.resolve(&argument[1]));
                text.split(argument[0].as_str().unwrap()).map(|part| json!(part)).collect()
            }
            "Fn::Join" => {
                let parts = self.resolve(&argument[1]);
                let parts: Vec<_> = parts.as_array().unwrap().iter().map(text_of).collect();
                json!(parts.join(argument[0].as_str().unwrap()))
            }
            _ => json!(format!("<{function}>")),
        }
    }

    fn reference(&self, name: &str) -> Value {
        match name {
            "AWS::NoValue" => no_value(),
            "AWS::StackName" => json!("onrush"),
            "AWS::StackId" => json!("arn:aws:cloudformation:eu-west-1:123456789012:stack/onrush/0-1-2-3-4"),
            _ => self.parameters.get(name).cloned().unwrap_or_else(|| {
                assert!(name.contains("::") || !self.text["Resources"][name].is_null(), "nothing has the name {name}");
                json!(format!("<{name}>"))
            }),
        }
    }

    fn substitute(&self, argument: &Value) -> Value {
        let (text, own) = match argument {
            Value::Array(parts) => (&parts[0], self.resolve(&parts[1])),
            text => (text, Value::Null),
        };
        let mut pieces = text.as_str().unwrap().split("${");
        let mut text = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (name, rest) = piece.split_once('}').unwrap();
            let value = match (own.get(name), name.split_once('.')) {
                (Some(value), _) => value.clone(),
                (None, Some(_)) => attribute(&json!(name)),
                (None, None) => self.reference(name),
            };
            text = text + &text_of(&value) + rest;
        }
        json!(text)
    }
}

/// What stands for "leave it out".
fn no_value() -> Value {
    json!({"Ref": "AWS::NoValue"})
}

/// `{"Fn::If": […]}` is a call; anything else is what it is.
fn function_of(value: &Value) -> Option<(&str, &Value)> {
    let (name, argument) = value.as_object().filter(|fields| fields.len() == 1)?.iter().next()?;
    (name == "Ref" || name.starts_with("Fn::") || (name == "Condition" && argument.is_string()))
        .then_some((name.as_str(), argument))
}

/// Something of the form that the attribute has once it is deployed.
fn attribute(of: &Value) -> Value {
    let name = of.as_str().unwrap();
    match name.rsplit('.').next().unwrap() {
        "Port" => json!("6379"),
        "Address" => json!("server.example"),
        "AmqpEndpoints" => json!(["amqps://broker.example:5671"]),
        _ => json!(format!("<{name}>")),
    }
}

/// Parameters and settings are text in the end.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `!Ref X` becomes `{"Ref": "X"}`, and any other `!F x` becomes `{"Fn::F": x}`.
fn to_json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(value)) => json!(value),
        Yaml::Value(Scalar::Integer(value)) => json!(value),
        Yaml::Value(Scalar::FloatingPoint(value)) => json!(value.into_inner()),
        Yaml::Value(Scalar::String(text)) => json!(text),
        Yaml::Sequence(items) => items.iter().map(to_json).collect(),
        Yaml::Mapping(fields) => {
            let fields = fields.iter().map(|(name, field)| (text_of(&to_json(name)), to_json(field)));
            fields.collect::<Map<_, _>>().into()
        }
        Yaml::Tagged(tag, argument) => match tag.suffix.as_str() {
            name @ ("Ref" | "Condition") => json!({ name: to_json(argument) }),
            name => json!({ format!("Fn::{name}"): to_json(argument) }),
        },
        other => panic!("template.yaml has something that CloudFormation does not take: {other:?}"),
    }
}
