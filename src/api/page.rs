//! Lists: which part is asked for, and how it is answered.

use serde::Serialize;

use super::{
    extract::{self, Params},
    problem::Answer,
};
use crate::{
    model::UnixMillis,
    store::{Page, PageRequest},
};

/// Items of a page that says nothing else.
const LIMIT: u32 = 50;

/// Items of a page at the most.
pub(super) const LIMIT_MAX: u32 = 500;

/// A part of a list.
#[derive(Debug, Serialize)]
pub(super) struct Items<T> {
    items: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// The part that a query asks for.
pub(super) fn request(params: &Params) -> Answer<PageRequest> {
    Ok(PageRequest {
        limit: limit(params)?.unwrap_or(LIMIT),
        cursor: cursor(params)?,
        since: time(params, "since")?,
        until: time(params, "until")?,
    })
}

/// How many items a query asks for.
pub(super) fn limit(params: &Params) -> Answer<Option<u32>> {
    let what = "a number from 1 to 500";
    match params.parse("limit", what)? {
        Some(n) if !(1..=LIMIT_MAX).contains(&n) => {
            Err(extract::wrong("limit", &n.to_string(), what))
        }
        limit => Ok(limit),
    }
}

fn cursor(params: &Params) -> Answer<Option<i64>> {
    let Some(text) = params.text("cursor") else { return Ok(None) };
    let position = text.strip_prefix('p').and_then(|hex| u64::from_str_radix(hex, 16).ok());
    match position {
        Some(position) => Ok(Some(position.cast_signed())),
        None => Err(extract::wrong("cursor", &text, "the `next` of an earlier page")),
    }
}

/// A point in time that a query names.
pub(super) fn time(params: &Params, name: &str) -> Answer<Option<UnixMillis>> {
    params.parse(name, "a time in milliseconds since 1970")
}

impl<T> Items<T> {
    /// A page as the store gave it.
    pub(super) fn page<R>(page: Page<R>, show: impl Fn(R) -> T) -> Self {
        Self {
            items: page.items.into_iter().map(show).collect(),
            next: page.next.map(|position| format!("p{position:x}")),
        }
    }

    /// A part of a short list that is sorted by `name`: all of it unless the
    /// query says otherwise.
    pub(super) fn sorted(
        all: Vec<T>,
        params: &Params,
        name: impl Fn(&T) -> String,
    ) -> Answer<Self> {
        let limit = limit(params)?.map_or(usize::MAX, |limit| limit as usize);
        let after = params.text("cursor");
        let skipped = |item: &T| after.as_ref().is_some_and(|after| name(item) <= *after);
        let mut items: Vec<T> = all.into_iter().skip_while(skipped).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(name);
        Ok(Self { items, next })
    }

    /// Items, and the name behind which the next page begins.
    pub(super) const fn named(items: Vec<T>, next: Option<String>) -> Self {
        Self { items, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(query: &str) -> Params {
        let uri = format!("/p?{query}").parse().expect("a URI");
        Params::read(&uri, None).unwrap_or_else(|_| panic!("{query}"))
    }

    #[test]
    fn pages_of_a_short_list_meet() {
        let all = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let page = |query| {
            Items::sorted(all(), &params(query), String::clone)
                .map(|page| (page.items.concat(), page.next))
                .map_err(|problem| problem.status().as_u16())
        };
        assert_eq!(page(""), Ok(("abc".into(), None)));
        assert_eq!(page("limit=2"), Ok(("ab".into(), Some("b".into()))));
        assert_eq!(page("limit=2&cursor=b"), Ok(("c".into(), None)));
        assert_eq!(page("limit=0"), Err(400));
        assert_eq!(page("limit=501"), Err(400));
    }

    #[test]
    fn a_cursor_is_read_back() {
        let page = Page { items: vec![()], next: Some(-77) };
        let next = Items::page(page, |()| ()).next.expect("a cursor");
        assert_eq!(cursor(&params(&format!("cursor={next}"))).ok(), Some(Some(-77)));
        assert!(cursor(&params("cursor=77")).is_err());
    }
}
