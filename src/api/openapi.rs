//! `GET /openapi.json`: the interface's own description.

use axum::{http::header, response::IntoResponse};

use super::routes::Routes;

const DOCUMENT: &str = include_str!("openapi.json");

pub(super) fn routes(routes: Routes) -> Routes {
    routes.get("/openapi.json", &[], document)
}

async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::api::{all_routes, health};

    fn described(document: &Value) -> BTreeSet<(String, String, Vec<String>)> {
        let mut calls = BTreeSet::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, call) in item.as_object().expect("a path item") {
                if method == "parameters" {
                    continue;
                }
                let parameters = call["parameters"].as_array().cloned().unwrap_or_default();
                let mut query: Vec<String> = parameters
                    .iter()
                    .map(|parameter| resolve(document, parameter))
                    .filter(|parameter| parameter["in"] == "query")
                    .map(|parameter| parameter["name"].as_str().expect("a name").to_owned())
                    .collect();
                query.sort();
                calls.insert((path.clone(), method.clone(), query));
            }
        }
        calls
    }

    fn resolve<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => document
                .pointer(reference.trim_start_matches('#'))
                .unwrap_or_else(|| panic!("{reference} leads nowhere")),
            None => value,
        }
    }

    fn each_reference(value: &Value, see: &mut impl FnMut(&str)) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    if let ("$ref", Some(reference)) = (key.as_str(), value.as_str()) {
                        see(reference);
                    }
                    each_reference(value, see);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| each_reference(value, see)),
            _ => {}
        }
    }

    #[test]
    fn the_description_and_the_router_agree() {
        let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let routes = [all_routes(), health::open_routes()].into_iter().flat_map(Routes::known);
        let there: BTreeSet<_> = routes
            .map(|route| {
                let mut query: Vec<String> = route.query.iter().map(|&q| q.to_owned()).collect();
                query.sort();
                (route.path.to_owned(), route.method.to_owned(), query)
            })
            .collect();
        let described = described(&document);
        let missing: Vec<_> = there.difference(&described).collect();
        let wrong: Vec<_> = described.difference(&there).collect();
        assert!(missing.is_empty() && wrong.is_empty(), "missing {missing:?}, wrong {wrong:?}");
    }

    #[test]
    fn the_description_is_complete() {
        let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
        let mut used = BTreeSet::new();
        each_reference(&document, &mut |reference| {
            let value = Value::String(reference.to_owned());
            resolve(&document, &serde_json::json!({ "$ref": value }));
            used.insert(reference.to_owned());
        });
        for (name, _) in document["components"]["schemas"].as_object().expect("schemas") {
            assert!(used.contains(&format!("#/components/schemas/{name}")), "{name} isn't used");
        }
        for (path, item) in document["paths"].as_object().expect("paths") {
            let names: Vec<&str> = path
                .split('/')
                .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
                .collect();
            let given: Vec<&str> = item["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|parameter| resolve(&document, parameter)["name"].as_str())
                .collect();
            assert_eq!(names, given, "parameters of {path}");
            for (method, call) in item.as_object().expect("a path item") {
                if method != "parameters" {
                    assert!(call["summary"].is_string(), "{method} {path} has no summary");
                    assert!(call["operationId"].is_string(), "{method} {path} has no id");
                    assert!(call["responses"].is_object(), "{method} {path} has no responses");
                }
            }
        }
    }
}
