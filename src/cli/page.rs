//! Which part of a list.

use clap::Args;

use super::time::Time;

#[derive(Debug, Args)]
pub(super) struct Page {
    /// Not older than this, such as 2030-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Time>,
    /// Older than this
    #[arg(long, value_name = "TIME")]
    until: Option<Time>,
    /// Items at the most, up to 500
    #[arg(long, value_name = "N")]
    limit: Option<u32>,
    /// Where an earlier page said that the next one begins
    #[arg(long)]
    cursor: Option<String>,
}

impl Page {
    /// The query of a list: its filters that are set, and the page.
    pub(super) fn query(
        &self,
        filters: &[(&'static str, &Option<String>)],
    ) -> Vec<(&'static str, String)> {
        let page = [
            ("since", self.since.map(|time| time.to_string())),
            ("until", self.until.map(|time| time.to_string())),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("cursor", self.cursor.clone()),
        ];
        let filters = filters.iter().map(|(name, value)| (*name, (*value).clone()));
        filters.chain(page).filter_map(|(name, value)| Some((name, value?))).collect()
    }
}
