//! The API's document, OpenAPI 3.1, made from the table of routes.

use schemars::Schema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::access::{Permission, RouteEffect};
use crate::problem::{MEDIA_TYPE, ProblemDetails};
use crate::route::{Operation, RouteFacts};

/// Place of the schemas in the document.
const SCHEMAS: &str = "/components/schemas";

/// Schemas of what comes in and of what goes out. They differ: a member with a default may be absent in
/// a request, and is always there in an answer.
struct Schemas {
    inbound: SchemaGenerator,
    outbound: SchemaGenerator,
}

/// Makes the document of the routes below `/api/` that are documented.
pub fn document<'a>(version: &str, routes: impl Iterator<Item = &'a RouteFacts>) -> Value {
    let settings =
        || SchemaSettings::draft2020_12().with(|set| set.definitions_path = SCHEMAS.into());
    let mut schemas = Schemas {
        inbound: settings().for_deserialize().into_generator(),
        outbound: settings().for_serialize().into_generator(),
    };
    let problem = schemas.outbound.subschema_for::<ProblemDetails>();
    let mut paths: Map<String, Value> = Map::new();
    for facts in routes {
        let Some(operation) = &facts.operation else { continue };
        let described = schemas.operation(facts, operation, &problem);
        let method = facts.effect.method().as_str().to_ascii_lowercase();
        let path = paths.entry(facts.path).or_insert_with(|| json!({}));
        path[method] = described;
    }
    let mut named = schemas.inbound.take_definitions(true);
    named.extend(schemas.outbound.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Spillway console", "version": version },
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "token": [] }],
    })
}

impl Schemas {
    fn operation(&mut self, facts: &RouteFacts, operation: &Operation, problem: &Schema) -> Value {
        let mut parameters: Vec<Value> = path_parameters(facts.path).collect();
        if let Some(query) = operation.query {
            parameters.extend(query_parameters(&query(&mut self.inbound)));
        }
        let answer = (operation.answer)(&mut self.outbound);
        let mut described = json!({
            "operationId": operation_id(facts),
            "summary": operation.summary,
            "description": format!("Needs {}.", facts.permission.description()),
            "parameters": parameters,
            "responses": {
                "200": {
                    "description": "Done",
                    "content": { "application/json": { "schema": answer } },
                },
                "default": {
                    "description": "A problem",
                    "content": { MEDIA_TYPE: { "schema": problem } },
                },
            },
        });
        if let Some(body) = operation.body {
            let schema = body(&mut self.inbound);
            described["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        }
        if facts.permission == Permission::Public {
            described["security"] = json!([]);
        }
        described
    }
}

/// Name of the operation for generated clients, such as `get_webhooks_id`.
fn operation_id(facts: &RouteFacts) -> String {
    let verb = match facts.effect {
        RouteEffect::Read => "get",
        RouteEffect::Change => "post",
    };
    let path = facts.path.trim_start_matches("/api/v1");
    let words =
        path.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(verb).chain(words).collect::<Vec<_>>().join("_")
}

/// Parameters in the path: `{id}`.
fn path_parameters(path: &str) -> impl Iterator<Item = Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    })
}

/// Parameters of the query: the members of an object.
fn query_parameters(object: &Schema) -> Vec<Value> {
    let required = object.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let members = object.get("properties").and_then(Value::as_object).into_iter().flatten();
    let parameter = |(name, schema): (&String, &Value)| {
        let is_required = required.iter().any(|one| one == name);
        let schema = without_null(schema);
        json!({ "name": name, "in": "query", "required": is_required, "schema": schema })
    };
    members.map(parameter).collect()
}

/// The schema without `null`: a parameter that is absent is left out of the query.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    let Some(Value::Array(types)) = schema.get("type") else { return schema };
    let left: Vec<Value> = types.iter().filter(|one| *one != "null").cloned().collect();
    schema["type"] = match <[Value; 1]>::try_from(left) {
        Ok([only]) => only,
        Err(several) => Value::Array(several),
    };
    if schema["default"].is_null()
        && let Some(members) = schema.as_object_mut()
    {
        members.remove("default");
    }
    schema
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::route::{ConsoleRoute, RouteTable};

    #[derive(Serialize, JsonSchema)]
    struct Letters {
        total: u64,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct LetterQuery {
        shop: Option<String>,
        #[serde(default)]
        limit: u32,
        consumer: String,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct LetterDrop {
        expected: u64,
    }

    #[test]
    fn the_document_names_parameters_bodies_answers_and_problems() {
        let done = || async {};
        let list = ConsoleRoute::<()>::read("/api/v1/dead/{consumer}", Permission::Search, done)
            .answers::<Letters>("Dead letters")
            .with_query::<LetterQuery>();
        let drop = ConsoleRoute::change("/api/v1/dead/{consumer}", Permission::Operate, done)
            .answers::<Letters>("Drop them")
            .with_body::<LetterDrop>();
        let page = ConsoleRoute::read("/", Permission::Look, done);
        let document = document("0.1", RouteTable::new([list, drop, page]).facts());
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["paths"].as_object().unwrap().len(), 1, "pages are left out");
        let path = &document["paths"]["/api/v1/dead/{consumer}"];
        assert_eq!(path["get"]["operationId"], "get_dead_consumer");
        let parameters = path["get"]["parameters"].as_array().unwrap();
        let is_required = |name: &str, place: &str| {
            let is_it = |one: &&Value| one["name"] == name && one["in"] == place;
            parameters.iter().find(is_it).map(|found| found["required"] == true)
        };
        assert_eq!(is_required("consumer", "path"), Some(true));
        assert_eq!(is_required("shop", "query"), Some(false));
        assert_eq!(is_required("limit", "query"), Some(false), "it has a default");
        let shop = parameters.iter().find(|one| one["name"] == "shop").expect("it is there");
        assert_eq!(shop["schema"]["type"], "string", "a query has no null");
        let body = &path["post"]["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(body["$ref"], "#/components/schemas/LetterDrop");
        for name in ["Letters", "LetterDrop", "ProblemDetails"] {
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
