//! A router that knows its paths: what is documented and what is there can be
//! compared, and no call has a query parameter that it doesn't look at.

use axum::{
    Router,
    extract::Request,
    handler::Handler,
    http::Method,
    middleware::{self, Next},
    routing::{MethodFilter, on},
};

use super::{
    Shared,
    extract::Params,
    problem::{Answer, Problem},
};

/// Routes, and what can be said of them.
#[derive(Default)]
pub(super) struct Routes {
    router: Router<Shared>,
    known: Vec<Route>,
}

/// One call: its method, path and query parameters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) method: &'static str,
    pub(super) query: Vec<&'static str>,
}

impl Routes {
    pub(super) fn get<H, T>(self, path: &'static str, query: &'static [&str], handler: H) -> Self
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        self.add(MethodFilter::GET, "get", path, query, handler)
    }

    pub(super) fn post<H, T>(self, path: &'static str, query: &'static [&str], handler: H) -> Self
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        self.add(MethodFilter::POST, "post", path, query, handler)
    }

    pub(super) fn put<H, T>(self, path: &'static str, query: &'static [&str], handler: H) -> Self
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        self.add(MethodFilter::PUT, "put", path, query, handler)
    }

    pub(super) fn delete<H, T>(self, path: &'static str, query: &'static [&str], handler: H) -> Self
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        self.add(MethodFilter::DELETE, "delete", path, query, handler)
    }

    /// A call that is documented and refused.
    pub(super) fn refuse(self, method: &Method, path: &'static str, what: &'static str) -> Self {
        let (filter, name) = match *method {
            Method::GET => (MethodFilter::GET, "get"),
            Method::PUT => (MethodFilter::PUT, "put"),
            Method::DELETE => (MethodFilter::DELETE, "delete"),
            _ => (MethodFilter::POST, "post"),
        };
        let refusal = move || async move { Problem::not_supported(what) };
        Self {
            router: self.router.route(path, on(filter, refusal)),
            known: [self.known, vec![Route { path, method: name, query: Vec::new() }]].concat(),
        }
    }

    /// The router itself.
    pub(super) fn router(self) -> Router<Shared> {
        self.router
    }

    /// What was added.
    #[cfg(test)]
    pub(super) fn known(self) -> Vec<Route> {
        self.known
    }

    fn add<H, T>(
        mut self,
        filter: MethodFilter,
        method: &'static str,
        path: &'static str,
        query: &'static [&str],
        handler: H,
    ) -> Self
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        let check = middleware::from_fn(move |request: Request, next: Next| async move {
            Params::read(request.uri(), Some(query))?;
            Answer::Ok(next.run(request).await)
        });
        self.router = self.router.route(path, on(filter, handler).route_layer(check));
        self.known.push(Route { path, method, query: query.to_vec() });
        self
    }
}
