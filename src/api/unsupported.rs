//! Calls that later versions will have: refused, never ignored.

use axum::http::Method;

use super::routes::Routes;

pub(super) fn routes(routes: Routes) -> Routes {
    [
        (Method::POST, "/v1/projects/{project}/triggers/{name}/try", "trying a trigger"),
        (Method::PUT, "/v1/projects/{project}/statements/{name}", "statements"),
        (Method::PUT, "/v1/projects/{project}/quotas", "quotas"),
        (Method::GET, "/v1/audit", "the audit log"),
    ]
    .into_iter()
    .fold(routes, |routes, (method, path, what)| routes.refuse(&method, path, what))
}
